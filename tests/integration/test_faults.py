"""What a run survives: killed processes, locked catalogs, failing chunks; each fault is committed for real.
Its workers need no Spark (tests/support/tiny_worker.py); what Spark makes of faults is in test_faults_spark.py."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import dagster as dg
import pytest

from lakehouse_assets.cli.instance import tidy
from lakehouse_assets.declare.modes import Append
from lakehouse_assets.drive.liveness import reap, start_time
from lakehouse_assets.drive.slots import POOL
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.run.progress import Progress, listening
from tests.conftest import failure_text
from tests.support.faults import (
    FaultyLake,
    Signs,
    age,
    fill,
    from_failure,
    read_only,
    rows_by_day,
    small_disk,
    staged_again,
    taken,
    tiny,
    wait_for,
)
from tests.support.tables import numbers
from tests.support.twins import twins

pytestmark = pytest.mark.spark
DAYS = ("2024-01-01", "2024-01-02", "2024-01-03")
SPAN = (DAYS[0], DAYS[-1])
RECEIPTS = "unit/drive/test_journal.py holds the same comparison for everything that a worker is given."


@pytest.fixture
def lake(settings: Settings, instance: dg.DagsterInstance) -> FaultyLake:
    settings.home.mkdir(exist_ok=True)
    return FaultyLake(settings, instance)


@pytest.fixture
def small_warehouse(settings: Settings) -> Iterator[Path]:
    with small_disk(settings.home / "warehouse") as disk:
        yield disk


@pytest.fixture
def signs(lake: FaultyLake) -> Signs:
    return Signs(lake)


def are_gone(pids: list[int]) -> Callable[[], bool]:
    return lambda: all(start_time(pid) is None for pid in pids)


def rows(lake: FaultyLake) -> dict[str, int]:
    """Rows by day, as everybody sees them."""
    return rows_by_day(lake, numbers())


def green(lake: FaultyLake) -> set[str]:
    """The partitions Dagster holds for materialized."""
    return lake.instance.get_materialized_partitions(numbers().key)


def one_at_a_time(lake: FaultyLake) -> None:
    lake.instance.event_log_storage.set_concurrency_slots(POOL, 1)


@contextmanager
def before_publish(act: Callable[[], object]) -> Iterator[None]:
    """Do something as soon as everything is staged."""
    done: list[object] = []

    def hear(state: Progress) -> None:
        if state.done == state.total and not done:
            done.append(act())

    with listening(hear):
        yield
    assert done


# Retries and re-executions


@pytest.mark.slow("What a person does after a failure.")
def test_a_resumed_run_stages_only_what_is_missing_and_any_other_begins_afresh(lake: FaultyLake, signs: Signs) -> None:
    one_at_a_time(lake)
    signs.fail("once", DAYS[1])
    first = lake.run(tiny(), *SPAN)
    assert not first.success
    assert sorted(signs.started()) == [*DAYS[:2]]
    text = failure_text(first)
    assert all(word in text for word in ("demo.numbers", DAYS[1], "KeyError", "re-execute from failure")), text
    assert rows(lake) == {}
    assert green(lake) == set()

    second = lake.run(tiny(), *SPAN, tags=from_failure(first.run_id))
    assert second.success
    assert staged_again(lake, second) == []
    assert [*sorted(signs.started()[:2]), *sorted(signs.started()[2:])] == [*DAYS[:2], *DAYS[1:]]
    assert rows(lake) == dict.fromkeys(DAYS, 3)

    everything = {k: v for k, v in from_failure(first.run_id).items() if "resume" not in k}
    assert lake.run(tiny(), *SPAN, tags=everything).success
    assert signs.started()[4:] == [*DAYS]
    assert rows(lake) == dict.fromkeys(DAYS, 3)
    assert lake.snapshots(tiny()) == 2


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        pytest.param(
            "LAKEHOUSE_SPARK__spark__sql__ansi__enabled",
            "false",
            id="Spark setting",
            marks=pytest.mark.long(RECEIPTS),
        ),
        pytest.param("LAKEHOUSE_LANDING", "/elsewhere", id="drop zone", marks=pytest.mark.long(RECEIPTS)),
    ],
)
def test_a_resumed_run_takes_no_receipt_of_other_work(
    lake: FaultyLake,
    signs: Signs,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
) -> None:
    one_at_a_time(lake)
    signs.fail(DAYS[2])
    first = lake.run(tiny(), *SPAN)
    assert not first.success
    assert sorted(signs.started()) == [*DAYS]
    signs.fail()
    monkeypatch.setenv(variable, value)
    changed = FaultyLake(read_settings(), lake.instance)
    assert changed.run(tiny(), *SPAN, tags=from_failure(first.run_id)).success
    assert DAYS[0] in signs.started()[3:], "day 1 was staged by what was before"
    assert rows(lake) == dict.fromkeys(DAYS, 3)
    assert lake.snapshots(tiny()) == 1


def test_a_resumed_run_does_what_was_planned_whatever_is_declared_now(lake: FaultyLake, signs: Signs) -> None:
    one_at_a_time(lake)
    signs.fail(DAYS[2])
    first = lake.run(tiny(), *SPAN)
    assert sorted(signs.started()) == [*DAYS]
    signs.fail()
    second = lake.run(tiny(partitions_per_worker=3), *SPAN, tags=from_failure(first.run_id))
    assert second.success
    assert staged_again(lake, second) == []
    assert signs.started()[3:] == [DAYS[2]]
    assert rows(lake) == dict.fromkeys(DAYS, 3)
    assert lake.snapshots(tiny()) == 1


def test_a_resumed_run_whose_partitions_are_others_by_now_is_refused(lake: FaultyLake, signs: Signs) -> None:
    signs.fail(DAYS[0])
    first = lake.run(tiny(), *SPAN)
    signs.fail()
    resumed = lake.run(tiny(), SPAN[0], SPAN[0], tags=from_failure(first.run_id))
    assert not resumed.success
    assert "planned differently" in failure_text(resumed)
    assert rows(lake) == {}


def test_an_old_run_is_not_resumed_over_newer_rows(lake: FaultyLake, signs: Signs) -> None:
    first = lake.run(tiny(), *SPAN)
    assert first.success
    assert lake.run(tiny(), *SPAN).success
    newer = lake.table(tiny()).current_snapshot().snapshot_id
    age(lake.instance, first.run_id, timedelta(days=15))
    with lake.table(tiny()).transaction() as tx:
        tx.remove_properties(f"lakehouse.run.{first.run_id}")  # as a month of other runs does

    resumed = lake.run(tiny(), *SPAN, tags=from_failure(first.run_id))
    assert not resumed.success
    assert len(signs.started()) == 6
    text = failure_text(resumed)
    assert "15 days before this one" in text, text
    assert "Materialize the partitions again" in text, text
    assert lake.table(tiny()).current_snapshot().snapshot_id == newer


@pytest.mark.long("A resumed run takes the same way.")
def test_a_retry_of_the_op_stages_only_what_is_missing(lake: FaultyLake, signs: Signs) -> None:
    one_at_a_time(lake)
    signs.fail("once", DAYS[1])
    assert lake.run(tiny(retry_policy=dg.RetryPolicy(max_retries=1)), *SPAN).success
    assert [*sorted(signs.started()[:2]), *sorted(signs.started()[2:])] == [*DAYS[:2], *DAYS[1:]]
    assert rows(lake) == dict.fromkeys(DAYS, 3)
    assert lake.snapshots(tiny()) == 1


def test_a_run_that_dagster_resumes_frees_what_its_dead_process_held_for_chunks_that_are_done(
    lake: FaultyLake, signs: Signs
) -> None:
    one_at_a_time(lake)
    signs.fail(DAYS[1])
    first = lake.run(tiny(), *SPAN)
    signs.fail()
    resumed = str(uuid4())
    assert lake.instance.event_log_storage.claim_concurrency_slot(POOL, resumed, "demo__numbers[0]").is_claimed

    deadline = time.monotonic() + 60

    def watch(_: object) -> None:
        assert time.monotonic() < deadline, "it waits for the slot that it holds itself"

    with listening(watch):
        assert lake.run(tiny(), *SPAN, tags=from_failure(first.run_id), run_id=resumed).success
    assert rows(lake) == dict.fromkeys(DAYS, 3)


@pytest.mark.long("test_journal.py holds the comparison.")
def test_receipts_of_other_code_are_not_taken(lake: FaultyLake, signs: Signs) -> None:
    one_at_a_time(lake)
    signs.fail("once", DAYS[1])
    first = lake.run(tiny(), *SPAN)
    assert lake.run(tiny(unique=[]), *SPAN, tags=from_failure(first.run_id)).success
    assert [*sorted(signs.started()[:2]), *sorted(signs.started()[2:])] == [*DAYS[:2], *DAYS]


# The run's own process is killed


def test_killed_while_workers_run(lake: FaultyLake, signs: Signs, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "system").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "system"))
    signs.hold(*DAYS[1:])
    child = lake.start(*DAYS)
    # A receipt that has no content yet is not written whole: a run killed then stages its chunk again.
    wait_for(
        lambda: (
            len(signs.started()) == 3
            and any(one.stat().st_size for one in lake.settings.home.glob("staging/*/*/0*.json"))
        )
    )
    child.kill()
    wait_for(are_gone(signs.workers()))

    (run_id,) = reaped(lake, child)
    signs.hold()
    assert lake.run(tiny(), *SPAN, tags=from_failure(run_id)).success
    assert sorted(signs.started()) == sorted([*DAYS, *DAYS[1:]])
    assert rows(lake) == dict.fromkeys(DAYS, 3)
    assert lake.snapshots(tiny()) == 1

    scratch = lake.settings.home / "tmp"
    assert list(scratch.iterdir())
    assert not list((tmp_path / "system").iterdir())
    tidy(lake.instance, lake.settings)
    assert not list(scratch.iterdir())


def test_killed_while_it_commits(lake: FaultyLake, signs: Signs) -> None:
    assert lake.run(tiny(partitions_per_worker=3), *SPAN).success
    reader = sqlite3.connect(lake.settings.home / "catalog.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM iceberg_tables").fetchall()  # from here on others can read, and write, but not commit
    child = lake.start(*DAYS)
    wait_for(lambda: list(lake.settings.home.glob("warehouse/**/00002-*.metadata.json")))
    child.kill()
    (run_id,) = reaped(lake, child)
    reader.close()

    assert rows(lake) == dict.fromkeys(DAYS, 3)
    assert lake.snapshots(tiny()) == 1
    assert lake.run(tiny(), *SPAN, tags=from_failure(run_id)).success
    assert len(signs.started()) == 1 + 3, "nothing is staged again"
    assert rows(lake) == dict.fromkeys(DAYS, 3)
    assert lake.snapshots(tiny()) == 2


def test_killed_behind_its_commit(lake: FaultyLake, signs: Signs) -> None:
    child = lake.start(*DAYS, killed_behind_commit=True)
    (run_id,) = reaped(lake, child)
    assert rows(lake) == dict.fromkeys(DAYS, 3)
    assert green(lake) == set()

    shutil.rmtree(lake.settings.home / "staging")  # the worst case: nothing but the table knows
    assert lake.run(tiny(), *SPAN, tags=from_failure(run_id)).success
    assert len(signs.started()) == 3
    assert green(lake) == set(DAYS)
    assert rows(lake) == dict.fromkeys(DAYS, 3)
    assert lake.snapshots(tiny()) == 1


def reaped(lake: FaultyLake, child: subprocess.Popen[bytes]) -> list[str]:
    assert child.wait(300) == -signal.SIGKILL
    runs = reap(lake.instance)
    assert [lake.instance.get_run_by_id(run).status for run in runs] == [dg.DagsterRunStatus.FAILURE]
    assert taken(lake.instance) == 0
    return runs


@pytest.mark.parametrize("number", twins([signal.SIGTERM, signal.SIGINT], "Dagster handles both alike."))
def test_a_terminated_run_takes_its_workers_along(lake: FaultyLake, signs: Signs, number: signal.Signals) -> None:
    one_at_a_time(lake)
    signs.hold(*DAYS)
    child = lake.start(*DAYS)
    wait_for(signs.started)
    child.send_signal(number)
    wait_for(are_gone(signs.workers()))
    assert child.wait(300) not in (0, -signal.SIGKILL)
    (run,) = lake.instance.get_runs()
    assert run.is_finished
    assert not run.is_success
    assert len(signs.started()) == 1
    assert rows(lake) == {}
    assert taken(lake.instance) == 0


# Two runs at once


@pytest.mark.slow("Two runs at once, as nothing else has them.")
def test_two_runs_of_the_same_partitions_both_land_and_spare_their_neighbours(lake: FaultyLake, signs: Signs) -> None:
    assert lake.run(tiny(partitions_per_worker=3), *SPAN).success
    signs.hold(*DAYS)
    children = [lake.start(*DAYS[:2]) for _ in range(2)]
    wait_for(lambda: len(signs.started()) == 1 + 4)
    signs.hold()
    assert [child.wait(300) for child in children] == [0, 0]
    assert rows(lake) == dict.fromkeys(DAYS, 3)
    assert lake.snapshots(tiny()) == 3


# The catalog is locked by somebody else

LOCKER = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
time.sleep(10)
"""


@contextmanager
def locker() -> Iterator[Callable[[FaultyLake], None]]:
    """A function that has another process lock the catalog, for 10 s from then on."""
    processes: list[subprocess.Popen[str]] = []

    def lock(lake: FaultyLake) -> None:
        command = [sys.executable, "-c", LOCKER, str(lake.settings.home / "catalog.db")]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert processes[-1].stdout.readline() == "locked\n"

    yield lock
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.long("Waits for ten seconds, three times; test_publish_commit.py holds the same for one commit.")
def test_a_catalog_locked_for_ten_seconds_is_waited_for(lake: FaultyLake) -> None:
    with locker() as lock, before_publish(lambda: lock(lake)):
        lock(lake)
        result = lake.run(tiny(partitions_per_worker=None), *SPAN)
    assert result.success, failure_text(result)
    assert rows(lake) == dict.fromkeys(DAYS, 3)
    assert lake.snapshots(tiny()) == 1


# The disk is full


def test_a_disk_that_fills_up_before_the_commit(lake: FaultyLake, small_warehouse: Path, signs: Signs) -> None:
    table = tiny(partitions_per_worker=3)
    assert lake.run(table, *SPAN).success
    with before_publish(lambda: fill(small_warehouse)):
        first = lake.run(table, *SPAN)
    assert not first.success
    text = failure_text(first)
    full = f"free on the file system of {small_warehouse}; free up space there"
    assert "demo.numbers" in text, text
    assert full in text, text
    assert "the same command begins a new run" in text, text
    assert rows(lake) == dict.fromkeys(DAYS, 3)
    assert lake.snapshots(table) == 1

    (small_warehouse / "filler").unlink()
    assert lake.run(table, *SPAN, tags=from_failure(first.run_id)).success
    assert len(signs.started()) == 2
    assert rows(lake) == dict.fromkeys(DAYS, 3)
    assert lake.snapshots(table) == 2


# What is missing on the machine


def test_no_java_is_said_before_anything_starts(lake: FaultyLake, signs: Signs, monkeypatch) -> None:
    monkeypatch.delenv("LAKEHOUSE_JAVA_HOME", raising=False)
    for home in ("/nonexistent", ""):
        monkeypatch.setenv("JAVA_HOME", home)
        monkeypatch.setenv("PATH", "/nonexistent")
        result = lake.run(tiny(), DAYS[0])
        assert not result.success
        text = failure_text(result)
        assert "Java 17 or later" in text, text
        assert (home or "no java is on PATH") in text, text
    assert signs.started() == []


def test_a_home_that_cannot_be_written(lake: FaultyLake) -> None:
    home = lake.settings.home
    assert lake.run(tiny(partitions_per_worker=3), *SPAN).success
    with read_only(home):
        result = lake.run(tiny(), DAYS[0])
        assert not result.success
        assert rows(lake) == dict.fromkeys(DAYS, 3)
        text = failure_text(result)
        assert "demo.numbers" in text, text
        assert "Read-only file system" in text, text
        assert str(home) in text, text

        lake.settings = read_settings({"LAKEHOUSE_HOME": str(home / "below")})
        text = failure_text(lake.run(tiny(), DAYS[0]))
        assert f"LAKEHOUSE_HOME={home / 'below'}" in text, text
        assert "Read-only" in text, text


def test_a_key_that_can_be_no_partition_is_refused_before_anything_starts(lake: FaultyLake, signs: Signs) -> None:
    shops = dg.DynamicPartitionsDefinition(name="shops")
    table = tiny(partitions=shops, partitioned_by=["text"])
    lake.instance.add_dynamic_partitions("shops", ["a", "", "b"])
    text = failure_text(lake.run(table, "a", "b"))
    assert "'demo.numbers'" in text, text
    assert "the empty key '' can't be a partition" in text, text
    assert signs.started() == []


# Some chunks fail and the table lets the others through


@pytest.mark.long("test_plan.py holds that a plan is read as it was written.")
def test_a_resumed_run_appends_only_what_is_missing_of_its_plan_whatever_is_declared_now(
    lake: FaultyLake, signs: Signs
) -> None:
    appends = {"write_mode": Append(), "unique": (), "publish_others": True}
    signs.fail(DAYS[2])
    first = lake.run(tiny(**appends), DAYS[0], DAYS[2])
    assert not first.success
    assert rows(lake) == {DAYS[0]: 3, DAYS[1]: 3}
    signs.fail()
    divided = tiny(**appends | {"partitions_per_worker": 2})
    assert lake.run(divided, DAYS[0], DAYS[2], tags=from_failure(first.run_id)).success
    assert rows(lake) == dict.fromkeys(DAYS, 3)
    assert lake.run(tiny(**appends), DAYS[0], DAYS[2], tags=from_failure(first.run_id)).success
    assert rows(lake) == dict.fromkeys(DAYS, 3)


def test_the_others_are_published_and_a_resumed_run_adds_what_failed(lake: FaultyLake, signs: Signs) -> None:
    table = tiny(publish_others=True)
    signs.fail(DAYS[1])
    first = lake.run(table, DAYS[0], DAYS[2])
    assert not first.success
    assert green(lake) == {DAYS[0], DAYS[2]}
    assert rows(lake) == {DAYS[0]: 3, DAYS[2]: 3}
    assert DAYS[1] in failure_text(first)
    assert "KeyError" in failure_text(first)
    events = lake.instance.fetch_materializations(table.key, limit=3).records
    tags = [event.asset_materialization.tags for event in events]
    assert [of["dagster/code_version"] for of in tags] == [table.code_version] * 2
    head = lake.table(table).current_snapshot().snapshot_id
    assert [of["dagster/data_version"] for of in tags] == [str(head)] * 2

    second = lake.run(table, DAYS[0], DAYS[2], tags=from_failure(first.run_id))  # still failing
    assert not second.success
    assert rows(lake) == {DAYS[0]: 3, DAYS[2]: 3}
    assert lake.snapshots(table) == 1

    signs.fail()
    third = lake.run(table, DAYS[0], DAYS[2], tags=from_failure(second.run_id))
    assert third.success, failure_text(third)
    assert rows(lake) == dict.fromkeys(DAYS, 3)
    # Those of a run start at once, in any order.
    assert sorted(signs.started()[:3]) == list(DAYS)
    assert signs.started()[3:] == [DAYS[1], DAYS[1]]
    assert green(lake) == set(DAYS)
    assert lake.snapshots(table) == 2

    fourth = lake.run(table, DAYS[0], DAYS[2], tags=from_failure(third.run_id))
    assert fourth.success, "nothing is left to do"
    assert lake.snapshots(table) == 2, "nothing is left to do"

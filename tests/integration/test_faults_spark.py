"""What a run survives with Spark in it: a killed JVM, a full disk, a locked catalog, steps that return something else.
The faults that need no Spark are in test_faults.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lakehouse_assets.commit.target import open_target
from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.liveness import reap, start_time
from lakehouse_assets.drive.slots import POOL
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.run.progress import listening
from tests.conftest import failure_text
from tests.support.deaths import Stage
from tests.support.faults import MODES, FaultyLake, from_failure, moded, small_disk, wait_for
from tests.support.tables import numbers
from tests.support.twins import twins

pytestmark = pytest.mark.spark
DAYS = ("2024-01-01", "2024-01-02")


def faulty(step: str, **differences: Any) -> Table:
    return replace(numbers(**differences), step=f"tests.{step}" if ":" in step else f"tests.support.fault_steps:{step}")


def helped_table() -> Table:
    """Declared anew, as the code location is by each run's process."""
    return replace(numbers(partitions_per_worker=1), step="helped_step:helped")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short lives: compile little, on a small heap."""
    monkeypatch.setenv("LAKEHOUSE_SPARK__spark__driver__extraJavaOptions", "-XX:TieredStopAtLevel=1")
    monkeypatch.setenv("LAKEHOUSE_SPARK__spark__driver__memory", "1g")


@pytest.fixture
def lake(quick: None, settings: Settings, instance: dg.DagsterInstance) -> FaultyLake:
    settings.home.mkdir(exist_ok=True)
    return FaultyLake(settings, instance)


def started(lake: FaultyLake) -> list[list[str]]:
    """(worker's pid, JVM's pid, day) of the workers of tests.support.fault_steps:waiting."""
    file = lake.settings.home / "started"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def hold(lake: FaultyLake, *days: str) -> None:
    (lake.settings.home / "hold").write_text(" ".join(days))


@contextmanager
def once(condition: Callable[[], object], act: Callable[[], object]) -> Iterator[None]:
    """Do something when something has come true, while a run goes on."""
    done: list[object] = []

    def hear(_: object) -> None:
        if not done and condition():
            done.append(act())

    with listening(hear):
        yield
    assert done


# Killed processes


@pytest.mark.slow("A JVM that dies, as the system kills it.")
@pytest.mark.parametrize(
    ("which", "says"),
    twins(
        [(1, "JVMEnded: the worker's JVM was killed (SIGKILL), by a person"), (0, "killed (SIGKILL)")],
        "unit/drive kills workers without Spark.",
    ),
    ids=["JVM", "worker"],
)
def test_a_killed_worker_is_told_and_its_chunk_alone_staged_again(lake: FaultyLake, which: int, says: str) -> None:
    table = faulty("waiting", partitions_per_worker=1)
    days = DAYS if which == 0 else DAYS[1:]
    hold(lake, DAYS[1])

    def kill() -> None:
        os.kill(int(started(lake)[-1][which]), signal.SIGKILL)
        hold(lake)  # Python notices the JVM's death when it next asks for something

    with once(lambda: len(started(lake)) == len(days), kill):
        lake.instance.event_log_storage.set_concurrency_slots("lake_workers", 1)
        first = lake.run(table, days[0], days[-1])
    assert not first.success
    text = failure_text(first)
    assert all(word in text for word in ("demo.numbers", DAYS[1], says, "Nothing was published", "from failure")), text
    assert "\tat " not in text
    assert "in the JVM" not in text
    assert "re-execute from failure to redo only what is missing" in text, "nothing is wrong with the step"
    assert lake.snapshots(table) == 0
    wait_for(lambda: start_time(int(started(lake)[-1][1])) is None)

    assert lake.run(table, days[0], days[-1], tags=from_failure(first.run_id)).success
    assert [day for *_, day in started(lake)] == [*days, DAYS[1]]
    assert lake.rows(table).num_rows == 3 * len(days)
    assert lake.snapshots(table) == 1


@pytest.mark.slow("A run that is killed, with a real worker and its JVM.")
def test_a_worker_and_its_jvm_end_when_the_run_is_killed(lake: FaultyLake) -> None:
    child = lake.start(DAYS[0], step="tests.support.fault_steps:waiting_in_java")
    wait_for(lambda: started(lake))
    child.kill()
    wait_for(lambda: all(start_time(int(pid)) is None for pid in started(lake)[0][:2]))
    child.wait()
    assert list((lake.settings.home / "tmp").glob("sqlite-*")), "what the JVM unpacked is where `tidy` finds it"


@pytest.mark.long("The JVM of a run's own process, which production has not.")
def test_an_inline_run_that_is_terminated_ends_with_its_jvm(inline: None, lake: FaultyLake) -> None:
    child = lake.start(DAYS[0], step="tests.support.fault_steps:waiting_in_java")
    wait_for(lambda: started(lake))
    child.terminate()
    wait_for(lambda: child.poll() is not None and start_time(int(started(lake)[0][1])) is None)
    (run,) = lake.instance.get_runs()
    assert run.is_finished
    assert not run.is_success
    assert lake.snapshots(numbers()) == 0


# What the step returns


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("without_n", ["missing n, unknown none"]),
        ("without_text", ["missing text, unknown none"]),
        ("renamed", ["missing text, unknown label"]),
        ("retyped", ["`n`", "STRING", "BIGINT"]),
        ("nothing_returned", ["returned NoneType", "missing day, n, text"]),
        ("appending", ["lake.demo.numbers, which is not one of this run's inputs"]),
        ("dropping", ["lake.demo.numbers, which is not one of this run's inputs"]),
        ("exiting", ["StageError: the step tests.support.fault_steps:exiting raised SystemExit(0)", "fault_steps.py"]),
        ("support.broken_steps:step", ["ModuleNotFoundError", "no_such_module", "broken_steps.py"]),
    ],
)
def test_what_a_step_returns_is_compared(inline: None, lake: FaultyLake, step: str, says: list[str]) -> None:
    result = lake.run(faulty(step), DAYS[0])
    assert not result.success
    text = failure_text(result)
    assert all(word in text for word in ["demo.numbers", DAYS[0], *says]), text
    assert "fork_" not in text, text
    assert "\tat " not in text, text
    assert "site-packages" not in text, text
    assert lake.snapshots(numbers()) == 0


# The disk is full


def test_a_disk_that_is_full_while_staging(inline: None, lake: FaultyLake) -> None:
    with small_disk(lake.settings.home / "warehouse") as disk:
        first = lake.run(faulty("large", unique=[]), DAYS[0])
        assert not first.success
        text = failure_text(first)
        assert "demo.numbers" in text, text
        assert DAYS[0] in text, text
        assert "No space left on device" in text, text
        assert "re-execute from failure to redo only what is missing" in text, "nothing is wrong with the step"
        assert "\tat " not in text
        assert lake.snapshots(numbers()) == 0
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        again = lake.run(faulty("large", unique=[]), DAYS[0], tags=from_failure(first.run_id))
        assert again.success, failure_text(again)
        assert lake.rows(numbers()).num_rows == 5000
        assert lake.snapshots(numbers()) == 1


HELPER = """
def told(day):
    if {fails} and str(day) == "2024-01-02":
        raise ValueError("not mended yet")
    return "v{version}"
"""
STEP = """
from pyspark.sql import functions as F
from helped_helper import told

def helped(spark, window):
    rows = [(key, n, told(key)) for key in window.keys for n in range(2)]
    frame = spark.createDataFrame(rows, "day string, n long, text string")
    return frame.withColumn("day", F.to_date("day"))
"""


@pytest.fixture
def helped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A step outside of this package, with a helper in a module of its own; returns the helper's file."""
    folder = tmp_path / "steps"
    folder.mkdir()
    (folder / "helped_step.py").write_text(STEP)
    helper = folder / "helped_helper.py"
    helper.write_text(HELPER.format(version=1, fails=True))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ['PYTHONPATH']}")
    return helper


@pytest.mark.long("Three runs of real workers; test_code_check.py and test_step_code.py hold the rule without Spark.")
def test_a_mended_helper_is_what_all_rows_are_made_by(lake: FaultyLake, helped: Path) -> None:
    lake.instance.event_log_storage.set_concurrency_slots(POOL, 1)
    first = lake.run(helped_table(), *DAYS)
    assert not first.success
    assert "not mended yet" in failure_text(first)
    helped.write_text(HELPER.format(version=2, fails=False))
    table = helped_table()
    assert lake.run(table, *DAYS, tags=from_failure(first.run_id)).success
    assert set(lake.rows(table, ["text"])["text"].to_pylist()) == {"v2"}
    assert lake.snapshots(table) == 1


def test_a_process_that_imported_what_was_edited_since_is_not_believed(
    inline: None, lake: FaultyLake, helped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = FaultyLake(read_settings(), lake.instance)
    helped.write_text(HELPER.format(version=1, fails=False))
    table = helped_table()
    try:
        assert lake.run(table, DAYS[0]).success
        helped.write_text(HELPER.format(version=2, fails=False))
        result = lake.run(helped_table(), DAYS[1])
        assert not result.success
        assert "after this process imported it" in failure_text(result)
    finally:
        for module in ("helped_step", "helped_helper"):
            sys.modules.pop(module, None)
    assert lake.snapshots(table) == 1


@pytest.mark.long("Two runs of real workers; test_code_check.py holds the rule without Spark.")
def test_code_that_is_edited_while_its_run_works_is_not_mixed_with_what_it_was(lake: FaultyLake, helped: Path) -> None:
    table = helped_table()
    itself = "from pathlib import Path\nPath(__file__).write_text(Path(__file__).read_text().replace('v2', 'v3'))\n"
    helped.write_text(HELPER.format(version=2, fails=False) + itself)
    result = lake.run(table, DAYS[0])
    assert not result.success
    assert "edited after the run had begun" in failure_text(result)
    assert lake.snapshots(table) == 0


@pytest.mark.long("All processes are real; test_faults.py kills runs at these places without Spark.")
@pytest.mark.parametrize("mode", sorted(MODES, reverse=True))
@pytest.mark.parametrize(
    "death", [{"dies_at": Stage.SEEN}, {"killed_behind_commit": True}], ids=["staged", "published"]
)
def test_rows_are_added_and_merged_once_though_the_run_was_killed(
    lake: FaultyLake, mode: str, death: dict[str, Any]
) -> None:
    days, of = ("2024-01-01", "2024-01-02"), moded(mode)
    there = open_target(load_lake(lake.settings), of)
    before = [{"day": date.fromisoformat(day), "n": n, "text": "old"} for day in days for n in (0, 9)]
    there.append(pa.Table.from_pylist(before, schema=there.schema().as_arrow()))
    child = lake.start(*days, mode=mode, **death)
    assert child.wait(240) == -signal.SIGKILL
    (run,) = reap(lake.instance)
    elsewhere = {"day": date(2024, 1, 9), "n": 0, "text": "another's"}
    load_lake(lake.settings).load_table(of.identifier).append(
        pa.Table.from_pylist([elsewhere], schema=there.schema().as_arrow())
    )
    resumed = lake.run(of, *days, tags=from_failure(run))
    assert resumed.success
    said = [entry.user_message for entry in lake.instance.all_logs(resumed.run_id)]
    assert any("0 to stage" in message for message in said), "others' commits elsewhere cost no work that was done"
    texts = {"append": ["n0", "n1", "n2", "old", "old"], "merge": ["n0", "n1", "n2", "old"]}
    rows = lake.rows(of).to_pylist()
    assert {day: sorted(r["text"] for r in rows if str(r["day"]) == day) for day in days} == dict.fromkeys(
        days, texts[mode]
    )
    assert lake.snapshots(of) == 3

"""Workers as ECS tasks that really run, driven by the real loop: lost, refused, terminated, found again.
ECS is a fake over HTTP, S3 is SeaweedFS; workers are tests/support/tiny_worker.py's, and once the real one."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lakehouse_assets.drive import chunks, workers
from lakehouse_assets.drive import chunks as journal
from lakehouse_assets.drive.chunks import Results
from lakehouse_assets.drive.slots import POOL
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.environment.sizes import Size
from lakehouse_assets.extensions.aws import ecs
from lakehouse_assets.extensions.aws.ecs import EcsLauncher
from tests.conftest import Lake, advice, failure_text
from tests.support.driven import Death, Run, chosen, runs, soon, tiny_site
from tests.support.fakes.agent import Process
from tests.support.fakes.ecs import EcsSite, ecs_site
from tests.support.fakes.wire import Fault
from tests.support.servers import SeaweedFS
from tests.support.tables import numbers
from tests.support.twins import twins

pytestmark = pytest.mark.server


@pytest.fixture
def site(weed: SeaweedFS, tmp_path: Path) -> Iterator[EcsSite]:
    with tiny_site("ecs", weed, tmp_path) as site:
        yield site


@pytest.fixture
def run(site: EcsSite, tmp_path: Path, instance: dg.DagsterInstance) -> Iterator[Run]:
    with runs(tmp_path / "home", instance) as run:
        yield run


def test_a_worker_leaves_its_receipt_and_tells_what_it_used(run: Run, site: EcsSite) -> None:
    progress = run.drive("attend")
    assert sorted(progress.receipts) == [0]
    assert not progress.failures
    assert progress.links[0].startswith("https://us-east-1.console.aws.amazon.com/ecs/v2/clusters/lakehouse/tasks/")
    (used,) = progress.usages
    assert used.estimated_usd > 0
    assert "Fargate Spot" in used.source
    assert site.started() == 1
    assert run.taken() == 0


def test_five_thousand_keys_fit(run: Run) -> None:
    progress = run.drive("attend", keys=5_000)
    assert len(progress.receipts[0].keys) == 5_000


def test_a_worker_lost_to_spot_is_made_again_once(run: Run, site: EcsSite) -> None:
    run.hold()

    def interrupt() -> None:
        site.interrupt()
        run.release()

    progress = run.drive("attend", look=run.once(interrupt))
    assert sorted(progress.receipts) == [0]
    assert not progress.failures
    assert site.started() == len(run.started()) == 2
    assert len(progress.usages) == 2  # what was lost was paid for


def test_no_capacity_is_waited_for(run: Run, site: EcsSite) -> None:
    site.ecs.refusals.append("Capacity is unavailable at this time. Please try again later")
    progress = run.drive("attend")
    assert sorted(progress.receipts) == [0]
    assert site.started() == 1


def test_capacity_that_never_comes_ends_the_chunk_with_what_ecs_said(
    run: Run, site: EcsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "REFUSED_SECONDS", 1.0)
    site.ecs.refusals.extend(["RESOURCE:ENI"] * 1000)
    (failure,) = run.drive("attend").failures
    assert "RESOURCE:ENI" in failure.message
    assert re.search(r"not started, \d+ times", failure.message)
    assert site.started() == 0
    assert run.taken() == 0


def test_an_error_of_the_step_is_told_and_not_tried_again(run: Run, site: EcsSite) -> None:
    (failure,) = run.drive("complain").failures
    assert (failure.message, failure.traceback) == ("KeyError: 'carrier'", "  line 1\n")
    assert site.started() == 1


def test_a_worker_that_exits_with_0_and_left_nothing_has_failed(run: Run, site: EcsSite) -> None:
    (failure,) = run.drive("leave").failures
    assert "exited with status 0" in failure.message
    assert "left no receipt" in failure.message
    assert "I leave nothing" in failure.log
    assert site.started() == 1


def test_memory_that_ran_out_is_told_with_the_size_and_not_tried_again(run: Run, site: EcsSite) -> None:
    run.hold()
    (failure,) = run.drive("attend", look=run.once(site.ecs.run_out_of_memory)).failures
    assert "1 vCPUs and 4 GiB" in failure.message
    assert "LAKEHOUSE_ECS_MEMORY_GIB" in failure.message
    assert site.started() == 1


def test_an_image_that_is_not_there_is_told_and_not_tried_again(run: Run, site: EcsSite) -> None:
    site.ecs.start_failures.append("CannotPullContainerError: pull image manifest has been retried 5 time(s)")
    (failure,) = run.drive("attend").failures
    assert "lakehouse:1" in failure.message
    assert site.started() == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, dg.DagsterExecutionInterruptedError], ids=lambda e: e.__name__)
def test_a_terminated_run_stops_its_tasks(run: Run, site: EcsSite, error: type[BaseException]) -> None:
    run.hold()

    def interrupt() -> None:
        raise error

    with pytest.raises(error):
        run.drive("attend", look=run.once(interrupt))
    assert [task.stopping[0] for task in site.ecs.tasks.values() if task.stopping] == ["UserInitiated"]
    assert soon(lambda: {task.status for task in site.ecs.tasks.values()} == {"STOPPED"})
    assert run.taken() == 0
    assert advice(run.instance) == []


def test_what_a_terminated_run_is_still_stopping_is_made_again_by_the_next(
    run: Run, site: EcsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Process.stop

    def slowly(self: Process) -> None:
        time.sleep(2)
        stop(self)

    def interrupt() -> None:
        raise dg.DagsterExecutionInterruptedError

    monkeypatch.setattr(Process, "stop", slowly)
    run.hold()
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        run.drive("attend", look=run.once(interrupt))

    def release(state: Results) -> None:
        if len(run.started()) == 2 and (run.home / "hold").exists():
            run.release()

    progress = run.drive("attend", look=release)
    assert sorted(progress.receipts) == [0]
    assert not progress.failures
    assert site.started() == 2


def test_a_run_terminated_while_its_chunk_waits_for_a_slot_stops_the_task_it_had(run: Run, site: EcsSite) -> None:
    run.die_while_it_runs()
    run.instance.event_log_storage.set_concurrency_slots(POOL, 0)

    def interrupt(state: Results) -> None:
        raise dg.DagsterExecutionInterruptedError

    with pytest.raises(dg.DagsterExecutionInterruptedError):
        run.drive("attend", look=interrupt)
    assert [task.stopping[0] for task in site.ecs.tasks.values() if task.stopping] == ["UserInitiated"]


def test_a_run_terminated_while_it_asks_for_a_task_stops_it(
    run: Run, site: EcsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = EcsLauncher.submit

    def interrupted(self: EcsLauncher, *arguments: Any) -> None:
        submit(self, *arguments)
        raise dg.DagsterExecutionInterruptedError

    monkeypatch.setattr(EcsLauncher, "submit", interrupted)
    run.hold()
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        run.drive("attend")
    assert site.started() == 1
    assert soon(lambda: {task.status for task in site.ecs.tasks.values()} == {"STOPPED"})


def test_a_run_that_died_is_resumed_with_the_task_it_had(run: Run, site: EcsSite) -> None:
    run.die_while_it_runs()
    run.release()
    progress = run.drive("attend")
    assert sorted(progress.receipts) == [0]
    assert not progress.failures
    assert site.started() == len(run.started()) == 1


def test_a_run_that_died_before_it_noted_the_task_finds_it(run: Run, site: EcsSite) -> None:
    run.die_while_it_runs()
    run.record_unconfirmed(1)
    progress = run.drive("attend", look=run.once(run.release))
    assert sorted(progress.receipts) == [0]
    assert not progress.failures
    assert site.started() == len(run.started()) == 1


def test_a_run_that_died_before_there_was_a_task_starts_one(run: Run, site: EcsSite) -> None:
    run.drive("complain")
    run.record_unconfirmed(2)
    progress = run.drive("attend")
    assert sorted(progress.receipts) == [0]
    assert site.started() == 2


def test_a_task_that_was_lost_while_nobody_looked_is_made_again_once(run: Run, site: EcsSite) -> None:
    run.die_while_it_runs()
    run.record_unconfirmed(1)
    site.interrupt()
    run.release()
    progress = run.drive("attend")
    assert sorted(progress.receipts) == [0]
    assert not progress.failures
    assert site.started() == len(run.started()) == 2


def test_a_task_that_ecs_has_forgotten_since_is_not_waited_for(
    run: Run, site: EcsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.die_while_it_runs()
    site.interrupt()
    site.ecs.forget()
    monkeypatch.setattr(ecs, "MISSING_SECONDS", 5.0)
    run.age_record(minutes=90)
    run.release()
    progress = run.drive("attend")
    assert sorted(progress.receipts) == [0]
    assert not progress.failures
    found = [r for r in run.instance.all_logs(run.instance.get_runs(limit=1)[0].run_id) if "found" in r.user_message]
    assert not found
    assert site.started() == 2


def test_a_record_torn_by_an_interruption_takes_no_earlier_one_away(run: Run, site: EcsSite, monkeypatch) -> None:
    written = journal.Journal.record

    def write(self: journal.Journal, chunks: int, record: journal.AttemptRecord) -> None:
        if record.id:
            with monkeypatch.context() as patch:
                patch.setattr(journal.json, "dumps", lambda _: (_ for _ in ()).throw(Death()))
                written(self, chunks, record)
        written(self, chunks, record)

    run.hold()
    with monkeypatch.context() as patch, pytest.raises(Death):
        patch.setattr(journal.Journal, "record", write)
        run.drive("attend", dies=True)
    assert run.journal.last([0])[0].number == 1
    progress = run.drive("attend", look=run.once(run.release))
    assert sorted(progress.receipts) == [0]
    assert site.started() == 1


def test_a_receipt_that_came_while_nobody_looked_is_taken(run: Run, site: EcsSite) -> None:
    run.drive("attend")
    progress = run.drive("attend")
    assert sorted(progress.receipts) == [0]
    assert site.started() == 1


def test_a_worker_of_another_plan_is_ended_and_its_receipt_not_taken(run: Run, site: EcsSite) -> None:
    run.die_while_it_runs()

    def release(state: Results) -> None:
        if len(run.started()) == 2 and (run.home / "hold").exists():
            run.release()

    progress = run.drive("attend", keys=2, look=release)
    assert len(progress.receipts[0].keys) == 2
    assert not progress.failures
    first, second = site.ecs.tasks.values()
    assert first.stopping
    assert first.stopping[0] == "UserInitiated"
    assert first.process.ended_at
    assert second.process.started_at
    assert first.process.ended_at <= second.process.started_at


@pytest.mark.parametrize(
    "error",
    twins(
        [KeyboardInterrupt, dg.DagsterExecutionInterruptedError],
        "Dagster raises either for a signal; both are caught alike.",
    ),
    ids=lambda e: e.__name__,
)
def test_a_run_whose_own_task_is_taken_away_leaves_its_workers_to_the_one_that_resumes_it(
    run: Run, site: EcsSite, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    run.hold()

    def interrupt() -> None:
        raise error

    # What run monitoring answers, where the run launcher can resume runs.
    monkeypatch.setattr(dg.DagsterInstance, "run_will_resume", lambda self, run_id: True)
    with pytest.raises(error):
        run.drive("attend", look=run.once(interrupt))
    gc.collect()
    assert site.running() == 1
    assert run.taken()
    progress = run.drive("attend", look=run.once(run.release))
    assert sorted(progress.receipts) == [0]
    assert not progress.failures
    assert site.started() == len(run.started()) == 1


def test_a_worker_that_left_its_receipt_and_can_not_be_ended_holds_nobody_up(
    run: Run, site: EcsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "ENDING_SECONDS", 0.5)
    site.service.fail(
        "StopTask", Fault("AccessDeniedException", "not authorized to perform ecs:StopTask", 400), times=99
    )
    progress = run.drive("linger")
    assert sorted(progress.receipts) == [0]
    assert not progress.failures
    assert run.taken() == 0
    assert site.running() == 1


@pytest.mark.slow("The only real worker that ECS starts.")
@pytest.mark.spark
def test_a_table_that_chose_it_is_filled_by_the_real_worker(
    weed: SeaweedFS, tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance.event_log_storage.set_concurrency_slots(POOL, 2)
    table = numbers(identifier="ecs.numbers", compute="ecs", size=Size(2, 5, 30))
    with ecs_site(weed, tmp_path) as site, chosen(site, tmp_path / "home"), monkeypatch.context() as patch:
        patch.setenv("LAKEHOUSE_COMPUTE", "local")
        lake = Lake(read_settings(also={"ecs": ["shop.orders"]}), instance)
        done = lake.run(table, "2024-01-01", "2024-01-02")
        assert done.success, failure_text(done)
        assert lake.rows(table).num_rows == 6
        assert lake.snapshots(table) == 1
        assert site.started() == 1
        (task,) = site.ecs.tasks.values()
    asked = task.request["overrides"]
    assert (asked["cpu"], asked["memory"], asked["ephemeralStorage"]) == ("2048", "5120", {"sizeInGiB": 30})
    assert {tag["key"]: tag["value"] for tag in task.request["tags"]} == {
        "lakehouse:run": done.run_id,
        "lakehouse:asset": "ecs/numbers",
        "lakehouse:partitions": "2024-01-01..2024-01-02 2",
    }

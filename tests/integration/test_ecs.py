"""Workers as ECS tasks that really run, driven by the real loop: lost, refused, terminated, found again.
ECS is a fake over HTTP, S3 is SeaweedFS; workers are tests/tiny_worker.py's, and once the real one."""

# No `from __future__ import annotations` here: Dagster compares the context's annotation itself.

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyiceberg.io import load_file_io

from lakehouse_assets.lakehouse import drive as drive_module
from lakehouse_assets.lakehouse.attempts import Attempts, Made
from lakehouse_assets.lakehouse.drive import Drive
from lakehouse_assets.lakehouse.plan import Chunk
from lakehouse_assets.lakehouse.receipts import Receipts
from lakehouse_assets.lakehouse.slots import POOL, Slots
from lakehouse_assets.lakehouse.staging import Staging
from lakehouse_assets.worker.assignment import Assignment, Receipt, Window
from resources.catalog import catalog_properties
from resources.launchers import ecs, remote
from resources.launchers.base import Attempt
from resources.launchers.ecs import EcsLauncher
from resources.secrets import public
from resources.settings import Compute, read_settings
from tests.conftest import Lake
from tests.fakes.agent import Process
from tests.fakes.ecs import EcsSite, ecs_site
from tests.servers import SeaweedFS
from tests.tables import numbers

pytestmark = pytest.mark.server
TINY = ("python", "-m", "tests.tiny_worker")
Hook = Callable[[Staging], None]


@pytest.fixture
def site(weed: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EcsSite]:
    monkeypatch.setattr(ecs, "FIND_WAITS", (0.0, 0.2, 0.5))
    monkeypatch.setattr(remote, "READ_SECONDS", 0.2)
    monkeypatch.setattr(drive_module, "FIRST_WAIT_SECONDS", 0.1)
    with ecs_site(weed, tmp_path) as site:
        for name, value in (site.environment | {"LAKEHOUSE_HOME": str(tmp_path / "home")}).items():
            monkeypatch.setenv(name, value)
        yield site


@dataclass
class Run:
    """Runs of one token, as the factory makes them; each is a process of its own as far as ECS can tell."""

    site: EcsSite
    home: Path
    instance: dg.DagsterInstance
    progress: Staging = field(default_factory=Staging)
    dead: list[Drive] = field(default_factory=list)

    def drive(self, step: str, *, keys: int = 1, look: Hook = lambda state: None, dies: bool = False) -> Staging:
        """One chunk. look: called in the loop. dies: the process ends without a word when ``look`` raises."""
        settings = read_settings()
        properties = catalog_properties(settings)
        chunk = Chunk(0, tuple(f"2024-01-01-{n:04}" for n in range(keys)))
        receipts = Receipts(load_file_io(properties, settings.staging), f"{settings.staging}/demo.tiny")
        first = Attempt(
            Assignment(
                table="demo.tiny",
                step=step,
                token="token",
                chunk=0,
                window=Window(keys=chunk.keys),
                fork_base="base",
                receipt=receipts.location("token", 0),
                code_version="1",
                compute=Compute.ECS,
                catalog=public(properties),
            ),
            tags={"lakehouse:partitions": "2024-01-01..2024-01-31 (31)"},
        )
        self.attempts = Attempts(receipts.io, receipts.folder("token"))
        self.progress = Staging()

        def found() -> Mapping[int, Receipt]:
            return {r.chunk: r for r in receipts.find("token", 1)}

        @dg.asset
        def tiny(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
            slots = Slots(context.instance, context.run.run_id, "tiny")
            launcher = EcsLauncher(settings, command=TINY, poll_seconds=0.1)
            drive = Drive(context, launcher, slots, found, look, self.attempts)
            if dies:
                self.dead.append(drive)  # its sessions stay open, as nobody is there to close them
                drive.run([chunk], {0: first}, self.progress, True)
            with drive:
                drive.run([chunk], {0: first}, self.progress, True)
            return dg.MaterializeResult()

        dg.materialize([tiny], instance=self.instance)
        return self.progress

    def die_while_it_runs(self) -> None:
        """A process that ends without a word while its worker runs."""
        self.hold()

        def look(state: Staging) -> None:
            if self.started():
                raise Death

        with pytest.raises(Death):
            self.drive("attend", look=look, dies=True)

    def hold(self) -> None:
        self.home.mkdir(exist_ok=True)
        (self.home / "hold").touch()

    def release(self) -> None:
        (self.home / "hold").unlink()

    def started(self) -> list[str]:
        """Of each worker that began, its process id."""
        return (self.home / "started").read_text().split() if (self.home / "started").exists() else []

    def once(self, do: Callable[[], Any]) -> Hook:
        """A hook that does something as soon as a worker has begun, once."""
        done: list[bool] = []

        def look(state: Staging) -> None:
            if self.started() and not done:
                done.append(True)
                do()

        return look

    def taken(self) -> int:
        info = self.instance.event_log_storage.get_concurrency_info(POOL)
        return info.active_slot_count + info.pending_step_count + info.assigned_step_count


class Death(BaseException):
    """Nobody catches it."""


@pytest.fixture
def run(site: EcsSite, tmp_path: Path, instance: dg.DagsterInstance) -> Iterator[Run]:
    instance.event_log_storage.set_concurrency_slots(POOL, 4)
    (tmp_path / "home").mkdir()
    run = Run(site, tmp_path / "home", instance)
    yield run
    for worker in [worker for drive in run.dead for worker in drive._running.values()]:
        worker.stack.close()  # while there is still an S3 to close it with


def test_a_worker_leaves_its_receipt_and_tells_what_it_used(run: Run, site: EcsSite) -> None:
    progress = run.drive("attend")
    assert sorted(progress.receipts) == [0] and not progress.failures
    assert progress.links[0].startswith("https://us-east-1.console.aws.amazon.com/ecs/v2/clusters/lakehouse/tasks/")
    (used,) = progress.usages
    assert used.estimated_usd > 0 and "Fargate Spot" in used.source
    assert site.started() == 1 and run.taken() == 0


def test_five_thousand_keys_fit(run: Run) -> None:
    progress = run.drive("attend", keys=5_000)
    assert len(progress.receipts[0].keys) == 5_000


def test_a_worker_lost_to_spot_is_made_again_once(run: Run, site: EcsSite) -> None:
    run.hold()

    def interrupt() -> None:
        site.interrupt()
        run.release()

    progress = run.drive("attend", look=run.once(interrupt))
    assert sorted(progress.receipts) == [0] and not progress.failures
    assert site.started() == len(run.started()) == 2
    assert len(progress.usages) == 2  # what was lost was paid for


def test_no_capacity_is_waited_for(run: Run, site: EcsSite) -> None:
    site.ecs.refusals.append("Capacity is unavailable at this time. Please try again later")
    progress = run.drive("attend")
    assert sorted(progress.receipts) == [0] and site.started() == 1


def test_capacity_that_never_comes_ends_the_chunk_with_what_ecs_said(
    run: Run, site: EcsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drive_module, "REFUSED_SECONDS", 1.0)
    site.ecs.refusals.extend(["RESOURCE:ENI"] * 1000)
    (failure,) = run.drive("attend").failures
    assert "RESOURCE:ENI" in failure.message and re.search(r"not started, \d+ times", failure.message)
    assert site.started() == 0 and run.taken() == 0


def test_an_error_of_the_step_is_told_and_not_tried_again(run: Run, site: EcsSite) -> None:
    (failure,) = run.drive("complain").failures
    assert (failure.message, failure.traceback) == ("KeyError: 'carrier'", "  line 1\n")
    assert site.started() == 1


def test_a_worker_that_exits_with_0_and_left_nothing_has_failed(run: Run, site: EcsSite) -> None:
    (failure,) = run.drive("leave").failures
    assert "exited with status 0" in failure.message and "left no receipt" in failure.message
    assert "I leave nothing" in failure.log
    assert site.started() == 1


def test_memory_that_ran_out_is_told_with_the_size_and_not_tried_again(run: Run, site: EcsSite) -> None:
    run.hold()
    (failure,) = run.drive("attend", look=run.once(site.ecs.run_out_of_memory)).failures
    assert "1 vCPUs and 4 GiB" in failure.message and "LAKEHOUSE_ECS_MEMORY_GIB" in failure.message
    assert site.started() == 1


def test_an_image_that_is_not_there_is_told_and_not_tried_again(run: Run, site: EcsSite) -> None:
    site.ecs.start_failures.append("CannotPullContainerError: pull image manifest has been retried 5 time(s)")
    (failure,) = run.drive("attend").failures
    assert "lakehouse:1" in failure.message and site.started() == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, dg.DagsterExecutionInterruptedError], ids=lambda e: e.__name__)
def test_a_terminated_run_stops_its_tasks(run: Run, site: EcsSite, error: type[BaseException]) -> None:
    run.hold()

    def interrupt() -> None:
        raise error

    with pytest.raises(error):
        run.drive("attend", look=run.once(interrupt))
    assert [task.stopping[0] for task in site.ecs.tasks.values() if task.stopping] == ["UserInitiated"]
    assert _soon(lambda: {task.status for task in site.ecs.tasks.values()} == {"STOPPED"})
    assert run.taken() == 0


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

    def release(state: Staging) -> None:
        if len(run.started()) == 2 and (run.home / "hold").exists():
            run.release()

    progress = run.drive("attend", look=release)
    assert sorted(progress.receipts) == [0] and not progress.failures
    assert site.started() == 2


def test_a_run_terminated_while_its_chunk_waits_for_a_slot_stops_the_task_it_had(run: Run, site: EcsSite) -> None:
    run.die_while_it_runs()
    run.instance.event_log_storage.set_concurrency_slots(POOL, 0)

    def interrupt(state: Staging) -> None:
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
    assert _soon(lambda: {task.status for task in site.ecs.tasks.values()} == {"STOPPED"})


def test_a_run_that_died_is_resumed_with_the_task_it_had(run: Run, site: EcsSite) -> None:
    run.die_while_it_runs()
    run.release()
    progress = run.drive("attend")
    assert sorted(progress.receipts) == [0] and not progress.failures
    assert site.started() == len(run.started()) == 1


def test_a_run_that_died_before_it_noted_the_task_finds_it(run: Run, site: EcsSite) -> None:
    run.die_while_it_runs()
    run.attempts.note(0, Made(1, "EcsLauncher"))
    progress = run.drive("attend", look=run.once(run.release))
    assert sorted(progress.receipts) == [0] and not progress.failures
    assert site.started() == len(run.started()) == 1


def test_a_run_that_died_before_there_was_a_task_starts_one(run: Run, site: EcsSite) -> None:
    run.drive("complain")
    run.attempts.note(0, Made(2, "EcsLauncher"))
    progress = run.drive("attend")
    assert sorted(progress.receipts) == [0] and site.started() == 2


def test_a_task_that_was_lost_while_nobody_looked_is_made_again_once(run: Run, site: EcsSite) -> None:
    run.die_while_it_runs()
    run.attempts.note(0, Made(1, "EcsLauncher"))
    site.interrupt()
    run.release()
    progress = run.drive("attend")
    assert sorted(progress.receipts) == [0] and not progress.failures
    assert site.started() == len(run.started()) == 2


def test_a_receipt_that_came_while_nobody_looked_is_taken(run: Run, site: EcsSite) -> None:
    run.drive("attend")
    progress = run.drive("attend")
    assert sorted(progress.receipts) == [0] and site.started() == 1


@pytest.mark.spark
def test_a_table_is_filled_by_the_real_worker(
    site: EcsSite, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance.event_log_storage.set_concurrency_slots(POOL, 2)
    table = numbers(identifier="ecs.numbers")
    lake = Lake(read_settings(), instance)
    assert lake.run(table, "2024-01-01", "2024-01-02").success
    assert lake.rows(table).num_rows == 6 and lake.snapshots(table) == 1
    assert site.started() == 1


def _soon(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 15
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return held

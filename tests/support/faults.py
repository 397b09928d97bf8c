"""A run in a process of its own, so that tests can kill it: ``python -m tests.support.faults '<JSON>'``, see Order.
Also the one lakehouse of the fault tests: tiny workers for tiny steps, real workers for the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy
from dagster._core.definitions.assets.job.asset_job import IMPLICIT_ASSET_JOB_NAME
from dagster._core.definitions.reconstruct import ReconstructableRepository
from pyiceberg.catalog import Catalog

from lakehouse_assets.declare.modes import Append, Merge
from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.slots import POOL
from lakehouse_assets.environment.event_log import BatchedSqliteEventLog
from lakehouse_assets.environment.launchers.base import Attempt, Handle, Launcher
from lakehouse_assets.environment.launchers.local import LocalLauncher
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.run.asset import table_asset
from lakehouse_assets.run.resource import WORKER, Lakehouse
from tests.conftest import Lake
from tests.support.tables import numbers
from tests.support.without_pandas import COMMAND

TINY = "tests.support.tiny_worker"
ORDER = "LAKEHOUSE_TEST_ORDER"
POLL_SECONDS = 0.1


class TinyOrReal(LocalLauncher):
    """The local launcher, with another program for the steps of tests/support/tiny_worker.py."""

    _tiny = LocalLauncher([*COMMAND, TINY])

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        launcher = self._tiny if attempt.payload["step"].startswith(TINY) else super()
        return launcher.submit(attempt, environment)


class FaultyLakehouse(Lakehouse):
    """Asks remote services more often than costs would have it. killed_behind_commit: the process is killed as soon as
    a commit landed, before it can know."""

    def __init__(self, settings: Settings, killed_behind_commit: bool = False) -> None:
        super().__init__(settings)
        self._killed_behind_commit = killed_behind_commit

    def launcher(self, compute: str | None = None) -> Launcher:
        if self.settings.compute == "local":
            return TinyOrReal((sys.executable, "-m", WORKER))
        launcher = super().launcher(compute)
        launcher.poll_seconds = POLL_SECONDS
        return launcher

    def catalog(self) -> Catalog:
        catalog = super().catalog()
        if self._killed_behind_commit:
            commit = catalog.commit_table

            def die(*arguments: Any) -> None:
                commit(*arguments)
                os.kill(os.getpid(), signal.SIGKILL)

            catalog.commit_table = die  # type: ignore[method-assign]
        return catalog


def tiny(**differences: Any) -> Table:
    """``demo.numbers`` filled by tiny workers, one a day."""
    return replace(numbers(**{"partitions_per_worker": 1} | differences), step=f"{TINY}:stage")


def many(named: str) -> Table:
    """``demo.numbers`` with dynamic partitions of that name, all of a run's filled by one tiny worker."""
    return tiny(partitions=dg.DynamicPartitionsDefinition(name=named), partitions_per_worker=None)


MODES = {"append": Append(), "merge": Merge(("day", "n"), by_partition=True)}


def moded(mode: str) -> Table:
    """``demo.numbers`` in another write mode, filled by real workers, one a day where the mode splits a run."""
    return numbers(write_mode=MODES[mode], unique=(), partitions_per_worker=1)


@dataclass(frozen=True)
class Order:
    """What a child process is to run. step: ``module:function``; None is a tiny worker's. dies_at: a stage of
    tests/support/deaths.py. killed_reporting: as soon as a first part of its materializations is stored. named: of the
    partitions, dynamic ones. mode: of MODES."""

    keys: Sequence[str]
    step: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    killed_behind_commit: bool = False
    killed_reporting: bool = False
    named: str | None = None
    table: str = "demo.numbers"
    dies_at: str | None = None
    mode: str | None = None


def span(keys: Sequence[str]) -> dict[str, str]:
    """The tags of a range run, as the UI gives and copies them."""
    return {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}


def from_failure(run_id: str) -> dict[str, str]:
    """The tags of a re-execution from failure, as the UI gives them."""
    return {"dagster/parent_run_id": run_id, "dagster/root_run_id": run_id, "dagster/is_resume_retry": "true"}


class FaultyLake(Lake):
    """As Lake, with runs in processes of their own as well."""

    def run(self, table, first=None, last=None, *, tags=None, run_id=None) -> dg.ExecuteInProcessResult:
        lakehouse = FaultyLakehouse(self.settings)
        definitions = dg.Definitions([table_asset(table, EXTENSIONS)], resources={"lakehouse": lakehouse})
        return definitions.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=self.instance,
            tags={**(span([first, last or first]) if first else {}), **(tags or {})},
            raise_on_error=False,
            run_id=run_id,
        )

    def start(self, *keys: str, **order: Any) -> subprocess.Popen[bytes]:
        """Run the keys from the first to the last in a process of its own; see Order."""
        return subprocess.Popen(
            [*COMMAND, "tests.support.faults"],
            env={
                **os.environ,
                "DAGSTER_HOME": self.instance.root_directory,
                ORDER: json.dumps(asdict(Order(keys, **order))),
            },
        )


class Signs:
    """Files by which tests and tiny workers tell each other; see tests/support/tiny_worker.py."""

    def __init__(self, lake: Lake) -> None:
        self.home = lake.settings.home

    def hold(self, *days: str) -> None:
        (self.home / "hold").write_text(" ".join(days))

    def fail(self, *days: str) -> None:
        (self.home / "fail").write_text(" ".join(days))

    def started(self) -> list[str]:
        """The days of the workers started so far, in order."""
        return [line.split()[1] for line in self._lines()]

    def workers(self) -> list[int]:
        return [int(line.split()[0]) for line in self._lines()]

    def _lines(self) -> list[str]:
        file = self.home / "started"
        return file.read_text().splitlines() if file.exists() else []


def rows_by_day(lake: Lake, table: Table) -> dict[str, int]:
    """Rows by day, as everybody sees them."""
    if not lake.snapshots(table):
        return {}
    found = lake.rows(table, ["day"]).column("day").to_pylist()
    return {str(day): found.count(day) for day in sorted(set(found))}


def taken(instance: dg.DagsterInstance) -> int:
    """Slots of the pool that are held or waited for."""
    info = instance.event_log_storage.get_concurrency_info(POOL)
    return info.active_slot_count + info.pending_step_count + info.assigned_step_count


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 8 MiB at the folder."""
    folder.mkdir(parents=True)
    with _mounted(folder, "-t", "tmpfs", "-o", "size=8m", "tmpfs"):
        yield folder


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nobody may write there, not even root."""
    with _mounted(folder, "--bind", str(folder)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield


@contextmanager
def _mounted(folder: Path, *arguments: str) -> Iterator[None]:
    if os.geteuid() or subprocess.run(["mount", *arguments, str(folder)]).returncode:
        pytest.skip("needs root, to mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Leave no byte free, by a file named filler."""
    with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
        while filler.write(b"0" * 2**16):
            pass


def age(instance: dg.DagsterInstance, run_id: str, by: timedelta) -> None:
    """Have a run created earlier, as Dagster's storage knows it (SQLite)."""
    with instance.run_storage.connect() as connection:  # type: ignore[attr-defined]
        text = "UPDATE runs SET create_timestamp = datetime(create_timestamp, :by) WHERE run_id = :run"
        changed = connection.execute(sqlalchemy.text(text), {"by": f"-{by.total_seconds()} seconds", "run": run_id})
        assert changed.rowcount == 1


def wait_for(condition: Callable[[], object], seconds: float = 300) -> None:
    """Until it is true, or fail."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def order() -> Order:
    return Order(**json.loads(os.environ[ORDER]))


def main() -> int:
    job = ReconstructableRepository.for_module("tests.support.faults", "defs").get_reconstructable_job(
        IMPLICIT_ASSET_JOB_NAME
    )
    if order().killed_reporting:
        _die_reporting()
    with _doomed(order().dies_at), dg.DagsterInstance.get() as instance:
        return not dg.execute_job(job, instance, tags={**span(order().keys), **order().tags}).success


def _doomed(stage: str | None) -> AbstractContextManager[None]:
    if stage is None:
        return nullcontext()
    from tests.support.deaths import Stage, doomed  # the fakes of services take a while to import

    return doomed(Stage(stage))


def _die_reporting() -> None:
    """This process is killed behind its first batch of materializations."""
    store = BatchedSqliteEventLog.store_event_batch

    def stored(log: BatchedSqliteEventLog, events: Sequence[dg.EventLogEntry]) -> None:
        store(log, events)
        if any(event.get_dagster_event().is_step_materialization for event in events):
            os.kill(os.getpid(), signal.SIGKILL)

    BatchedSqliteEventLog.store_event_batch = stored  # type: ignore[method-assign]


def _ordered() -> Table:
    if order().mode:
        return moded(order().mode)
    if order().named:
        return many(order().named)
    return replace(numbers(), step=order().step) if order().step else tiny(identifier=order().table)


if ORDER in os.environ:
    defs = dg.Definitions(
        [table_asset(_ordered(), EXTENSIONS)],
        resources={"lakehouse": FaultyLakehouse(read_settings(), order().killed_behind_commit)},
        executor=dg.in_process_executor,
    )

if __name__ == "__main__":
    sys.exit(main())


def staged_again(lake: Lake, run: dg.ExecuteInProcessResult) -> list[str]:
    """What a resumed run says of chunks that are staged again."""
    logged = (entry.user_message for entry in lake.instance.all_logs(run.run_id))
    return [text for text in logged if "staged again: " in text]

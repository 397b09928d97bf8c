"""A rewrite by Spark workers of a launcher, driven from an op of Dagster's: from fragments to one landed commit.
What a worker does to its fork is in test_fork_rewrites.py, how units land in test_landing.py."""

# No `from __future__ import annotations` here: Dagster compares the context's annotation itself.

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any, NoReturn

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record

from lakehouse_assets.commit.target import open_target
from lakehouse_assets.declare.options import Maintenance
from lakehouse_assets.drive.slots import POOL
from lakehouse_assets.environment.launchers.base import Attempt, Handle
from lakehouse_assets.environment.launchers.local import LocalLauncher
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.maintenance.job import maintenance_job
from lakehouse_assets.maintenance.rewrite import spark_rewrite
from lakehouse_assets.maintenance.rewrite.compact import CompactionReport, Outcome
from lakehouse_assets.maintenance.rewrite.plan import WORKER_BYTES
from lakehouse_assets.maintenance.rewrite.spark_rewrite import SparkRewrite
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.run.resume import run_token
from tests.conftest import Lake
from tests.support.faults import from_failure
from tests.support.outsiders import commit_deletes, equality_deletes, live, live_deletes, multiset
from tests.support.tables import numbers

pytestmark = pytest.mark.spark

TABLE = numbers(identifier="demo.fragments", maintenance=Maintenance(quiet_period=timedelta(0)))
DAYS = [date(2024, 1, n) for n in (1, 2, 3)]


@dataclass
class Rewriting:
    """Runs of one job, whose op rewrites a table of 20 small files in 3 partitions."""

    lake: Lake
    reports: list[CompactionReport] = field(default_factory=list)

    def fill(self) -> None:
        table = open_target(Lakehouse(self.lake.settings).catalog(), TABLE)
        for n in range(20):
            rows = [{"day": DAYS[n % 3], "n": 10 * n + at, "text": f"n{at}"} for at in range(5)]
            table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))

    def run(self, tags: dict[str, str] | None = None, worker_bytes: int = WORKER_BYTES) -> dg.ExecuteInProcessResult:
        @dg.op
        def rewrite(context: dg.OpExecutionContext) -> None:
            token = run_token(TABLE.identifier, context.instance, context.run)
            work = SparkRewrite(context, Lakehouse(self.lake.settings), TABLE, token, worker_bytes=worker_bytes)
            self.reports.append(work.run({"lakehouse.run-id": context.run.run_id}))

        @dg.job
        def rewriting() -> None:
            rewrite()

        return rewriting.execute_in_process(instance=self.lake.instance, tags=tags, raise_on_error=False)


@pytest.fixture
def rewriting(lake: Lake) -> Rewriting:
    lake.instance.event_log_storage.set_concurrency_slots(POOL, 2)
    rewriting = Rewriting(lake)
    rewriting.fill()
    return rewriting


class Death(BaseException):
    """Nobody catches it."""


@pytest.mark.slow("The only rewrite by real workers.")
def test_workers_work_lands_as_one_commit_by_the_run_that_resumes_one_that_died(
    rewriting: Rewriting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run starts no worker. The table has changed meanwhile: planned anew it would be other work."""
    table = rewriting.lake.table(TABLE)

    def dies(*_: Any, **__: Any) -> NoReturn:
        raise Death

    with monkeypatch.context() as patch:
        patch.setattr(spark_rewrite, "land", dies)
        assert not rewriting.run().success
    (first,) = rewriting.lake.instance.get_runs()
    rows = [{"day": DAYS[0], "n": 1000, "text": "later"}]
    table.refresh().append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    before, snapshots = multiset(table), len(table.snapshots())
    assert before.total() == 101, "nothing is visible yet"
    assert len(live(table)) == 21, "nothing is visible yet"

    monkeypatch.setattr(LocalLauncher, "submit", dies)
    result = rewriting.run(from_failure(first.run_id))

    assert result.success
    (report,) = rewriting.reports
    assert [(p.partition, p.outcome, p.files_before, p.files_after) for p in report.partitions] == [
        ("day=2024-01-01", Outcome.LANDED, 7, 1),
        ("day=2024-01-02", Outcome.LANDED, 7, 1),
        ("day=2024-01-03", Outcome.LANDED, 6, 1),
    ]
    assert all(p.proof and p.proof.holds for p in report.partitions)
    table = rewriting.lake.table(TABLE)
    assert multiset(table) == before
    assert len(live(table)) == 3 + 1
    assert len(table.snapshots()) == snapshots + 1
    snapshot = table.current_snapshot()
    assert snapshot.summary.operation is Operation.REPLACE
    assert snapshot.snapshot_id == report.snapshot_id
    assert rewriting.lake.instance.event_log_storage.get_concurrency_info(POOL).active_slot_count == 0

    again = rewriting.run(from_failure(first.run_id))
    assert again.success
    assert rewriting.reports[-1].snapshot_id == report.snapshot_id
    assert not rewriting.reports[-1].partitions, "the second resumption finds the commit"


@pytest.mark.long("Four real workers; that a run goes on from what is staged is held by the test before.")
def test_a_worker_that_is_killed_takes_no_other_partition_with_it(
    rewriting: Rewriting, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, submit = multiset(rewriting.lake.table(TABLE)), LocalLauncher.submit

    def start(launcher: LocalLauncher, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        handle = submit(launcher, attempt, environment)
        if attempt.ordinal == 0:
            os.killpg(int(handle.id), signal.SIGKILL)
        return handle

    monkeypatch.setattr(LocalLauncher, "submit", start)
    size = sum(entry.data_file.file_size_in_bytes for entry in live(rewriting.lake.table(TABLE)))
    assert rewriting.run(worker_bytes=size * 3 // 4).success
    (report,) = rewriting.reports
    *killed, landed = report.partitions
    assert {p.outcome for p in killed} == {Outcome.FAILED}
    assert len(killed) == 2
    assert report.faults == killed
    assert all("SIGKILL" in p.reason for p in killed)
    assert landed.outcome is Outcome.LANDED
    table = rewriting.lake.table(TABLE)
    assert multiset(table) == before
    assert len(live(table)) == 7 + 7 + 1


@pytest.mark.long("Real workers; test_maintenance_job.py holds what is left to them.")
def test_the_maintenance_job_leaves_to_workers_what_it_cannot_rewrite_itself(rewriting: Rewriting) -> None:
    lake, table = rewriting.lake, rewriting.lake.table(TABLE)
    partition = Record((DAYS[0] - date(1970, 1, 1)).days)
    commit_deletes(table, equality_deletes(table, "n", [0, 33], partition))
    before = multiset(lake.table(TABLE))
    assert before.total() == 100 - 2

    result = maintenance_job([TABLE], EXTENSIONS).execute_in_process(
        run_config={"dry_run": False},
        resources={"lakehouse": Lakehouse(lake.settings)},
        instance=lake.instance,
        raise_on_error=False,
    )

    assert result.success
    (output,) = [event.step_output_data for event in result.all_events if event.is_successful_output]
    done = [dict(record.data) for record in output.metadata["done"].records]
    assert any(row["proof"].startswith("33 rows, digest ") for row in done), done
    after = lake.table(TABLE)
    assert multiset(after) == before
    assert not live_deletes(after)
    assert len([e for e in live(after) if e.data_file.partition == partition]) == 1

"""Carries out the actions of a plan on their tables, one after the other, and says what each really did.
Which ones are worth it is decided in policy.py; how they are shown is plan_tables.py's."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import dagster as dg
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from lakehouse_assets.collect.pass_report import Report
from lakehouse_assets.collect.site import Site
from lakehouse_assets.commit.dangling import remove_dangling_deletes
from lakehouse_assets.commit.entries import Partition
from lakehouse_assets.commit.expire_commit import expire
from lakehouse_assets.commit.expiry_update import Expiry
from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.declare.care import Level
from lakehouse_assets.declare.table import Table
from lakehouse_assets.maintenance.collection import collected, look_through
from lakehouse_assets.maintenance.compact import CompactionReport, Outcome, compact
from lakehouse_assets.maintenance.compaction_result import compacted
from lakehouse_assets.maintenance.costs import Rate, Rates
from lakehouse_assets.maintenance.expiry import ExpiryPlan, plan_expiry
from lakehouse_assets.maintenance.manifests import rewrite_manifests
from lakehouse_assets.maintenance.memory import Ending, Found
from lakehouse_assets.maintenance.planned import Action, Cost, Engine, Gain, PartitionWork
from lakehouse_assets.maintenance.result import Result
from lakehouse_assets.maintenance.retention import ExpiryPolicy
from lakehouse_assets.maintenance.spark_rewrite import rewrite_with_spark
from lakehouse_assets.maintenance.text import error_text, size_text
from lakehouse_assets.run.resource import Lakehouse


@dataclass(frozen=True)
class Means:
    """What actions are carried out with. run: the id and time of the run that does it; the same run does an action
    once. properties: of the snapshots. site: what the collector works with; reports: what it found so far. allow_large:
    whether more than a fifth of a table may go to the trash."""

    context: dg.OpExecutionContext
    lakehouse: Lakehouse
    catalog: Catalog
    tables: Mapping[str, Table]
    rates: Rates
    run: RunToken
    properties: Mapping[str, str]
    site: Site
    allow_large: bool = False
    reports: list[Report] = field(default_factory=list)

    def token(self, action: Action) -> RunToken:
        """Of the action's commit."""
        return RunToken(f"{self.run.text}.{action.level}.{action.engine}", self.run.created)


@dataclass(frozen=True)
class State:
    """A table's metadata at one moment. size: bytes of data files; None, as both counts of files, where its writer does
    not say so in the snapshot."""

    snapshots: int
    manifests: int
    files: int | None
    delete_files: int | None
    size: int | None
    metadata_size: int

    @classmethod
    def of(cls, table: IcebergTable) -> State:
        snapshot = table.current_snapshot()
        totals = snapshot.summary if snapshot and snapshot.summary else {}
        files, deletes, size = (
            int(found) if (found := totals.get(f"total-{name}")) is not None else None
            for name in ("data-files", "delete-files", "files-size")
        )
        return cls(
            snapshots=len(table.metadata.snapshots),
            manifests=len(snapshot.manifests(table.io)) if snapshot else 0,
            files=files,
            delete_files=deletes,
            size=size,
            metadata_size=len(table.io.new_input(table.metadata_location)),
        )

    def __str__(self) -> str:
        counts = {"files": self.files, "deletes": self.delete_files, "manifests": self.manifests}
        text = ", ".join(f"{n:,} {name}" for name, n in {**counts, "snapshots": self.snapshots}.items() if n)
        return f"{text}, metadata.json {size_text(self.metadata_size)}"


@dataclass(frozen=True)
class Done:
    """What an action really did, beside what was expected of it. before, after: the table, writers' work included; None
    where it could not be read afterwards."""

    action: Action
    result: Result
    cost: Cost
    before: State
    after: State | None

    @property
    def found(self) -> Found:
        """What is remembered of it."""
        result = self.result
        return Found(result.ending, result.gain.things, self.cost, result.partitions)


def carry_out(means: Means, action: Action) -> Done:
    """Do one action. Only the collector takes files away, and it can give them back.

    Raises LakehouseError where the table can't be maintained, and what the catalog and the storage raise.
    """
    before = State.of(means.catalog.load_table(action.table))
    started = time.monotonic()
    result = WORK[action.level, action.engine](means, action)
    cost = _cost(means.rates[action.engine], time.monotonic() - started, result)
    try:
        after = State.of(means.catalog.load_table(action.table))
    except Exception as error:  # the work is done, whether or not the table can be read now
        result, after = replace(result, faults=(*result.faults, f"afterwards: {error_text(error)}")), None
    return Done(action, result, cost, before, after)


def _cost(rate: Rate, seconds: float, result: Result) -> Cost:
    """Of workers, what their launcher says that they used; slots that they waited for cost nothing."""
    own = rate.of_seconds(seconds, result.size)
    if not result.usages:
        return own
    vcpu_hours, usd = (sum(getattr(of, name) for of in result.usages) for name in ("vcpu_hours", "estimated_usd"))
    return replace(own, seconds=vcpu_hours / rate.machine.vcpus * 3600, vcpu_hours=vcpu_hours, usd=usd)


def _rewrite(means: Means, action: Action) -> Result:
    report = compact(means.catalog, action.table, means.token(action), _partitions(action), summary=means.properties)
    here = [of for of in report.partitions if of.outcome is not Outcome.NEEDS_SPARK]
    others = {at for of in report.partitions if of.outcome is Outcome.NEEDS_SPARK for at in of.partitions}
    if not others:
        return _landed(means, action, report)
    # What only their files say, as of files in other formats, is known when they are read.
    parts = (tuple(w for w in action.work if (_partition(w) in others) is there) for there in (False, True))
    mine, sparks = (replace(action, work=work) for work in parts)
    done = _landed(means, mine, replace(report, partitions=tuple(here)))
    return done + _rewrite_with_spark(means, replace(sparks, engine=Engine.SPARK))


def _rewrite_with_spark(means: Means, action: Action) -> Result:
    declared = means.tables[action.table]
    run, properties = means.run, means.properties
    report = rewrite_with_spark(means.context, means.lakehouse, declared, action, run, properties)
    return _landed(means, action, report)


def _landed(means: Means, action: Action, report: CompactionReport) -> Result:
    """Of any engine's rewrite: what its snapshot says that it removed and added. Delete files that apply to nothing any
    more go after it, in a commit of their own: what a rewrite applied may have been the last that needed them."""
    result = compacted(means.catalog.load_table(action.table).metadata, action, report)
    if action.level is not Level.DELETES:
        return result
    try:
        return _without_dangling(means, action, result)
    except Exception as error:  # the rewrite has landed
        return replace(result, faults=(*result.faults, f"delete files that apply to nothing: {error_text(error)}"))


def _without_dangling(means: Means, action: Action, result: Result) -> Result:
    token = replace(means.token(action), text=f"{means.token(action).text}.dangling")
    _, dangling = remove_dangling_deletes(means.catalog, action.table, token, means.properties)
    also = f"; removed delete files that applied to nothing: {dangling:,}" if dangling else ""
    return replace(result, gain=result.gain + Gain(delete_files=dangling), summary=result.summary + also)


def _partitions(action: Action) -> set[Partition]:
    return set(map(_partition, action.work))


def _partition(work: PartitionWork) -> Partition:
    return work.partition.spec_id, Record(*work.partition.values)


def _expire(means: Means, action: Action) -> Result:
    plans: list[ExpiryPlan] = []

    def expiry(metadata: TableMetadata) -> Expiry:
        plans.append(plan_expiry(action.table, metadata, ExpiryPolicy(), int(time.time() * 1000)))
        return plans[-1].expiry

    expired = expire(means.catalog, action.table, expiry)
    before, after = expired.before, expired.after
    sizes = f"metadata.json {size_text(before.metadata_bytes)} → {size_text(after.metadata_bytes)}"
    kept = Counter(reasons[0].why.value for reasons in plans[-1].kept.values())
    why = ", ".join(f"{count:,} {reason}" for reason, count in kept.items())
    return Result(
        Ending.DONE,
        Gain(snapshots=before.snapshots - after.snapshots),
        summary=f"{before.snapshots:,} snapshots → {after.snapshots:,} ({why}), {sizes}",
        faults=tuple(finding.message for finding in expired.findings),
    )


def _manifests(means: Means, action: Action) -> Result:
    report = rewrite_manifests(means.catalog, action.table, means.token(action), means.properties)
    before, after = report.before, report.after
    sizes = " → ".join(f"{of.manifests:,} manifests of {size_text(of.size)}" for of in (before, after))
    dropped = (f"{report.dropped:,} manifests that writers changed meanwhile",) if report.dropped else ()
    nothing = report.snapshot_id is None
    return Result(
        Ending.CONFLICT if nothing and dropped else Ending.DONE,
        Gain(manifests=before.manifests - after.manifests),
        size=report.replaced.size,
        summary="no manifest is worth rewriting any more" if nothing else sizes,
        proof=f"{report.entries:,} entries" if report.entries else "",
        dropped=dropped,
    )


def _collect(means: Means, action: Action) -> Result:
    report = look_through(means.site, action.table, means.run.text, allow_large=means.allow_large, dry_run=False)
    means.reports.append(report)
    return collected(report)


Work = Callable[[Means, Action], Result]
WORK: Mapping[tuple[Level, Engine], Work] = {
    (Level.DELETES, Engine.PYTHON): _rewrite,
    (Level.UNDERSIZED, Engine.PYTHON): _rewrite,
    (Level.FRAGMENTS, Engine.PYTHON): _rewrite,
    (Level.DELETES, Engine.SPARK): _rewrite_with_spark,
    (Level.UNDERSIZED, Engine.SPARK): _rewrite_with_spark,
    (Level.FRAGMENTS, Engine.SPARK): _rewrite_with_spark,
    (Level.SORT, Engine.SPARK): _rewrite_with_spark,
    (Level.MANIFESTS, Engine.PYTHON): _manifests,
    (Level.EXPIRE, Engine.PYTHON): _expire,
    (Level.COLLECT, Engine.PYTHON): _collect,
}
"""What carries out each level, by engine: all that a plan may take."""

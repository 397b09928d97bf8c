"""Carries out the actions of a plan on their tables, one after the other, and says what each really did.

Which ones are worth it is decided in policy.py; how they are shown is plan_tables.py's.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.expire_commit import expire
from lakehouse_assets.commit.expiry_update import Expiry
from lakehouse_assets.declare.care import Level
from lakehouse_assets.health.gain import Gain
from lakehouse_assets.health.text import error_text, size_text
from lakehouse_assets.maintenance.collection import collected, look_through
from lakehouse_assets.maintenance.costs import Rate
from lakehouse_assets.maintenance.expiry import ExpiryPlan, plan_expiry
from lakehouse_assets.maintenance.means import Means
from lakehouse_assets.maintenance.memory import Ending, Found
from lakehouse_assets.maintenance.planned import Action, Cost, Engine
from lakehouse_assets.maintenance.result import Result
from lakehouse_assets.maintenance.retention import ExpiryPolicy
from lakehouse_assets.maintenance.rewrite_actions import rewrite_by_spark, rewrite_here
from lakehouse_assets.rewrite.manifests import rewrite_manifests


@dataclass(frozen=True)
class TableState:
    """The numbers of a table's files and metadata at one moment; None what the snapshot's summary does not say."""

    snapshots: int
    manifests: int
    files: int | None
    delete_files: int | None
    size: int | None
    """Bytes of data files."""
    metadata_size: int
    """Bytes of the metadata file."""

    @classmethod
    def of(cls, table: IcebergTable) -> TableState:
        """Reads a table's numbers from its metadata and the summary of its current snapshot."""
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
    """The work that an action really did, beside what was expected of it."""

    action: Action
    result: Result
    cost: Cost
    before: TableState
    """The table before the action."""
    after: TableState | None
    """The table after it, with what writers did meanwhile; None where it could not be read any more."""

    @property
    def found(self) -> Found:
        """The part of the result that maintenance remembers."""
        result = self.result
        return Found(result.ending, result.gain.things, self.cost, result.partitions)


def carry_out(means: Means, action: Action) -> Done:
    """Does one action. Only the collector takes files away, and it can give them back.

    Raises LakehouseError where the table can't be maintained, and what the catalog and the storage raise.
    """
    before = TableState.of(means.catalog.load_table(action.table))
    started = time.monotonic()
    result = WORK[action.level, action.engine](means, action)
    cost = _cost(means.rates[action.engine], time.monotonic() - started, result)
    try:
        after = TableState.of(means.catalog.load_table(action.table))
    except Exception as error:  # the work is done, whether or not the table can be read now
        result, after = replace(result, faults=(*result.faults, f"afterwards: {error_text(error)}")), None
    return Done(action, result, cost, before, after)


def _cost(rate: Rate, seconds: float, result: Result) -> Cost:
    """Computes what an action cost: of workers, what their launcher says that they used.

    Waiting for a slot costs nothing.
    """
    own = rate.of_seconds(seconds, result.size)
    if not result.usages:
        return own
    vcpu_hours, usd = (sum(getattr(of, name) for of in result.usages) for name in ("vcpu_hours", "estimated_usd"))
    return replace(own, seconds=vcpu_hours / rate.machine.vcpus * 3600, vcpu_hours=vcpu_hours, usd=usd)


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
    (Level.DELETES, Engine.PYTHON): rewrite_here,
    (Level.UNDERSIZED, Engine.PYTHON): rewrite_here,
    (Level.FRAGMENTS, Engine.PYTHON): rewrite_here,
    (Level.DELETES, Engine.SPARK): rewrite_by_spark,
    (Level.UNDERSIZED, Engine.SPARK): rewrite_by_spark,
    (Level.FRAGMENTS, Engine.SPARK): rewrite_by_spark,
    (Level.SORT, Engine.SPARK): rewrite_by_spark,
    (Level.MANIFESTS, Engine.PYTHON): _manifests,
    (Level.EXPIRE, Engine.PYTHON): _expire,
    (Level.COLLECT, Engine.PYTHON): _collect,
}
"""The function that carries out each level, by engine. A plan may take no other pairs."""

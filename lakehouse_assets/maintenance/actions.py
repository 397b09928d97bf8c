"""Carries out the actions of a plan on their tables, one after the other, and says what each really did.
Which ones are worth it is decided in policy.py; how they are shown is job.py's."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from lakehouse_assets.commit.entries import Partition
from lakehouse_assets.commit.expire_commit import expire
from lakehouse_assets.commit.expiry_update import Expiry
from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.maintenance.compact import CompactionReport, compact
from lakehouse_assets.maintenance.expiry import ExpiryPlan, plan_expiry
from lakehouse_assets.maintenance.findings import size_text
from lakehouse_assets.maintenance.policy import Action
from lakehouse_assets.maintenance.retention import ExpiryPolicy


@dataclass(frozen=True)
class Done:
    """What an action really did. fewer: so many files, delete files or snapshots less; Action.fewer was the estimate.
    summary: a person reads it. faults: what must be shown in red, sentences."""

    action: Action
    fewer: int
    summary: str
    faults: tuple[str, ...]
    seconds: float


def carry_out(catalog: Catalog, action: Action, run: RunToken, properties: Mapping[str, str]) -> Done:
    """Do one action. No file is deleted.

    run: the id and time of the run that does it; the same run does an action once. properties: of the snapshot.
    Raises LakehouseError where the table can't be maintained, and what the catalog and the storage raise.
    """
    started = time.monotonic()
    fewer, summary, faults = _rewrite(catalog, action, run, properties) if action.work else _expire(catalog, action)
    return Done(action, fewer, summary, faults, time.monotonic() - started)


def _rewrite(
    catalog: Catalog, action: Action, run: RunToken, properties: Mapping[str, str]
) -> tuple[int, str, tuple[str, ...]]:
    token = RunToken(f"{run.text}.{action.level}", run.created)
    report = compact(catalog, action.table, token, _partitions(action), summary=properties)
    fewer = sum(p.files_before + p.deletes - p.files_after for p in report.landed)
    return fewer, _compacted(report), tuple(f"{p.partition or 'whole table'}: {p.reason}" for p in report.faults)


def _compacted(report: CompactionReport) -> str:
    """What became of the partitions, and for those that did not land the reasons."""
    landed = report.landed
    files = f"{sum(p.files_before for p in landed):,} → {sum(p.files_after for p in landed):,} files"
    size = " → ".join(map(size_text, (sum(p.bytes_before for p in landed), sum(p.bytes_after for p in landed))))
    numbers = f"{files}, {size}; " if landed else ""
    outcomes = Counter(p.outcome.value for p in report.partitions)
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.items()) or "no partition gains any more"
    reasons = "; ".join(f"{p.partition or 'whole table'}: {p.reason}" for p in report.partitions if p.reason)
    return f"{numbers}partitions: {counts}" + (f" ({reasons})" if reasons else "")


def _partitions(action: Action) -> set[Partition]:
    return {(work.partition.spec_id, Record(*work.partition.values)) for work in action.work}


def _expire(catalog: Catalog, action: Action) -> tuple[int, str, tuple[str, ...]]:
    plans: list[ExpiryPlan] = []

    def expiry(metadata: TableMetadata) -> Expiry:
        plans.append(plan_expiry(action.table, metadata, ExpiryPolicy(), int(time.time() * 1000)))
        return plans[-1].expiry

    expired = expire(catalog, action.table, expiry)
    before, after = expired.before, expired.after
    sizes = f"metadata.json {size_text(before.metadata_bytes)} → {size_text(after.metadata_bytes)}"
    kept = Counter(reasons[0].why.value for reasons in plans[-1].kept.values())
    why = ", ".join(f"{count:,} {reason}" for reason, count in kept.items())
    summary = f"{before.snapshots:,} snapshots → {after.snapshots:,} ({why}), {sizes}"
    return before.snapshots - after.snapshots, summary, tuple(finding.message for finding in expired.findings)

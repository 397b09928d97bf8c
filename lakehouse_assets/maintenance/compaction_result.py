"""Turns a compaction's report and its landed snapshot into the result of an action.

Pure. The rewrite itself is compact.py's.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.entries import values_of
from lakehouse_assets.commit.proof import Digest
from lakehouse_assets.health.gain import Gain
from lakehouse_assets.health.partition_health import partition_id
from lakehouse_assets.health.text import size_text
from lakehouse_assets.maintenance.memory import Ending
from lakehouse_assets.maintenance.planned import Action
from lakehouse_assets.maintenance.result import Result
from lakehouse_assets.rewrite.compact import CompactionReport, Outcome, PartitionReport

ENDINGS = {Outcome.LANDED: Ending.DONE, Outcome.DROPPED: Ending.CONFLICT}


def compacted(metadata: TableMetadata, action: Action, report: CompactionReport) -> Result:
    """Returns the result of a rewrite. metadata: of the table after it, in which the gain is looked up."""
    fates = {
        partition_id(spec_id, values_of(values)): ENDINGS.get(p.outcome, Ending.FAILED)
        for p in report.partitions
        for spec_id, values in p.partitions
    }
    asked = [of.partition.id for of in action.work]
    return Result(
        ending=_ending(fates.values()),
        gain=_gain(metadata, report.snapshot_id),
        size=sum(p.bytes_before for p in report.partitions if p.proof),
        summary=_summary(report),
        proof=_proof(report),
        dropped=tuple(_named(p) for p in report.partitions if p.reason),
        faults=tuple(_named(p) for p in report.faults),
        # One that the report lacks had nothing to gain any more: it is done as well.
        partitions=dict.fromkeys(asked, Ending.DONE) | fates,
        usages=report.usages,
    )


def _ending(fates: Iterable[Ending]) -> Ending:
    """Returns DONE if anything landed or nothing was to be done; else FAILED if any failed, else CONFLICT."""
    found = set(fates)
    if not found or Ending.DONE in found:
        return Ending.DONE
    return Ending.FAILED if Ending.FAILED in found else Ending.CONFLICT


def _gain(metadata: TableMetadata, snapshot_id: int | None) -> Gain:
    """Reads the gain in the snapshot's own summary.

    The report can't tell it: delete files that were applied may still be needed by other files, and stay.
    """
    snapshot = metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    summary = snapshot.summary if snapshot and snapshot.summary else {}
    removed, added, deletes = (
        int(summary.get(name) or 0) for name in ("deleted-data-files", "added-data-files", "removed-delete-files")
    )
    return Gain(files=removed - added, delete_files=deletes)


def _summary(report: CompactionReport) -> str:
    """Says, for people, what became of the partitions."""
    landed = report.landed
    files = f"{sum(p.files_before for p in landed):,} → {sum(p.files_after for p in landed):,} files"
    size = " → ".join(map(size_text, (sum(p.bytes_before for p in landed), sum(p.bytes_after for p in landed))))
    numbers = f"{files}, {size}; " if landed else ""
    outcomes = Counter(p.outcome.value for p in report.partitions)
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.items()) or "no partition gains any more"
    return f"{numbers}partitions: {counts}"


def _proof(report: CompactionReport) -> str:
    """Returns the rows and the digest that all that landed has in common before and after; "" without a proof."""
    proofs = [p.proof for p in report.landed if p.proof]
    total = sum((proof.after for proof in proofs), Digest())
    digest = hashlib.sha256(repr(total).encode()).hexdigest()[:16]
    return f"{total.rows:,} rows, digest {digest}" if proofs else ""


def _named(report: PartitionReport) -> str:
    return f"{report.partition or 'whole table'}: {report.reason}"

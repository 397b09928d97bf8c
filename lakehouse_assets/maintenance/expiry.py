"""Plans an expiry: which snapshots, branches and tags of a table go, and the reasons of each snapshot that stays.

Pure. The reasons are found in retention.py; what goes with a snapshot, and the commit, is the business of commit/.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.utils.properties import property_as_bool

from lakehouse_assets.commit.expiry_update import Expiry, oldest_first
from lakehouse_assets.errors import MaintenanceRefused
from lakehouse_assets.maintenance.retention import Ages, ExpiryPolicy, Reason, Retention, Why

GC_ENABLED = "gc.enabled"
Kept = Mapping[int, tuple[Reason, ...]]


@dataclass(frozen=True)
class ExpiryPlan:
    """The snapshots, branches and tags that go, and the reasons of those that stay."""

    expiry: Expiry
    """What to commit."""
    kept: Kept
    """The reasons of each snapshot that stays, by its id."""
    beyond_maximum: tuple[int, ...]
    """The snapshots that go although their age would have kept them, oldest first."""


def plan_expiry(
    table: str, metadata: TableMetadata, policy: ExpiryPolicy, now_ms: int, protected: Collection[int] = ()
) -> ExpiryPlan:
    """Plans what may expire: all that has no reason to stay, and beyond the policy's maximum what only its age keeps.

    table: its name, for messages. now_ms: milliseconds since 1970.
    protected: the snapshots that forks in flight began with.
    Raises MaintenanceRefused for a table whose snapshots must not expire, or whose properties can't be read.
    """
    _refuse(table, metadata)
    retention = Retention(metadata, Ages.of(table, metadata, policy), now_ms)
    outlived = [name for name, ref in metadata.refs.items() if retention.is_outlived(name, ref)]
    reasons: dict[int, list[Reason]] = defaultdict(list)
    for snapshot_id, reason in retention.reasons(outlived, protected):
        reasons[snapshot_id].append(reason)
    kept = {snapshot_id: tuple(found) for snapshot_id, found in reasons.items()}
    surplus = _surplus(metadata, kept, policy.maximum)
    gone = {s.snapshot_id for s in metadata.snapshots} - kept.keys() | set(surplus)
    stay = {snapshot_id: found for snapshot_id, found in kept.items() if snapshot_id not in gone}
    return ExpiryPlan(Expiry.of(metadata, gone, outlived), stay, surplus)


def _surplus(metadata: TableMetadata, kept: Kept, maximum: int) -> tuple[int, ...]:
    """Returns the oldest snapshots that only their age keeps, as many as there are beyond the maximum."""
    only_young = [
        s.snapshot_id
        for s in oldest_first(metadata)
        if s.snapshot_id in kept and all(reason.why is Why.YOUNG for reason in kept[s.snapshot_id])
    ]
    return tuple(only_young[: max(0, len(kept) - maximum)])


def _refuse(table: str, metadata: TableMetadata) -> None:
    if metadata.format_version != 2:
        raise MaintenanceRefused(
            f"table {table}: its format version is {metadata.format_version}, expected 2, the version whose metadata "
            "PyIceberg 0.12 writes in full. Expire its snapshots by Spark"
        )
    if not property_as_bool(metadata.properties, GC_ENABLED, True):
        raise MaintenanceRefused(
            f"table {table}: {GC_ENABLED} is false, so other tables may use its files, and its snapshots stay. Set it "
            "to true where that is no longer so"
        )

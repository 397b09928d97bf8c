"""The level ``expire``: removes old snapshots from a table's metadata.

Which snapshots go is decided in expiry.py; the commit is commit/'s.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lakehouse_assets.declare.options import Level, Maintenance
from lakehouse_assets.health.health import Check, Finding, Limit, size_text
from lakehouse_assets.maintenance.level import MIB, Action, Candidate, Gain, MaintenanceLevel, Means, Result

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

    from lakehouse_assets.commit.expire import Expiry, ExpiryPlan
    from lakehouse_assets.health.health import TableHealth

SNAPSHOTS = Limit(1_001, 10_000)
"""Snapshots of the table: a commit takes 0.3 s longer for each 1,000 (measured with PyIceberg), so 10,000 cost it
three seconds."""
METADATA = Limit(8 * MIB, 80 * MIB)
"""The bytes of metadata.json, which each commit writes and each load reads. A snapshot takes about 1 KiB: as many as
SNAPSHOTS allows take an eighth of the limit."""


class ExpireLevel(MaintenanceLevel):
    """Expires snapshots; it comes first, as a shorter history makes the commits after it faster."""

    name = Level.EXPIRE.value
    order = 0

    def findings(self, health: TableHealth) -> Iterator[Finding]:
        """Yields the snapshots, and the metadata.json, if they are too many or too large."""
        if severity := SNAPSHOTS.severity(health.snapshots):
            most = f"expected at most {SNAPSHOTS.warn - 1:,}: each makes every commit slower"
            yield Finding(Check.HISTORY, severity, self.name, f"there are {health.snapshots:,} snapshots, {most}")
        if severity := METADATA.severity(health.metadata_size):
            message = (
                f"metadata.json has {size_text(health.metadata_size)}: every commit writes it, every load reads it"
            )
            yield Finding(Check.STORAGE, severity, self.name, message)

    def measured(self, health: TableHealth) -> str:
        """Says the number of snapshots and the size of metadata.json, with their limits."""
        sizes = f"{size_text(health.metadata_size)} of {size_text(METADATA.warn)}"
        return f"{health.snapshots:,} of {SNAPSHOTS.warn:,} snapshots, metadata.json {sizes}"

    def candidates(self, health: TableHealth, care: Maintenance, *, force: bool) -> Iterator[Candidate]:
        """Yields the expiry of the table's snapshots, unless all of them must stay."""
        if health.expirable == 0:
            return
        if health.snapshots >= (2 if force else SNAPSHOTS.warn) or health.metadata_size >= METADATA.warn:
            reason = f"{health.snapshots:,} snapshots in a metadata.json of {size_text(health.metadata_size)}"
            gone = health.snapshots if health.expirable is None else health.expirable
            gain = Gain(snapshots=gone, scan_work=health.metadata_size * gone // max(1, health.snapshots))
            yield Candidate(health.identifier, self, reason, gain)

    def carry_out(self, means: Means, action: Action) -> Result:
        """Expires what nothing keeps, in one commit."""
        from lakehouse_assets.collect.leases import Leavings, pinned_snapshots
        from lakehouse_assets.commit.expire import ExpiryPolicy, expire, plan_expiry
        from lakehouse_assets.releases.pointer import released_snapshots

        plans: list[ExpiryPlan] = []
        site = means.site
        readers = [name for name, table in means.tables.items() if action.table in table.inputs]

        def expiry(metadata: TableMetadata) -> Expiry:
            # Looked up for each version of the table: a run loads the head, and leaves its copy, in this order.
            leavings = (Leavings.of(site.receipts_of(name), site.list_receipts(name)) for name in readers)
            pinned = pinned_snapshots(action.table, leavings, site.chains, site.now_ms()) if readers else set()
            pinned |= released_snapshots(means.catalog, action.table, means.domains)
            plans.append(plan_expiry(action.table, metadata, ExpiryPolicy(), int(time.time() * 1000), pinned))
            return plans[-1].expiry

        expired = expire(means.catalog, action.table, expiry)
        before, after = len(expired.before.snapshots), len(expired.after.snapshots)
        sizes = " → ".join(size_text(len(one.model_dump_json())) for one in (expired.before, expired.after))
        kept = Counter(reasons[0].value for reasons in plans[-1].kept.values())
        why = ", ".join(f"{count:,} {reason}" for reason, count in kept.items())
        return Result(
            Gain(snapshots=before - after),
            summary=f"{before:,} snapshots → {after:,} ({why}), metadata.json {sizes}",
            faults=expired.faults,
        )

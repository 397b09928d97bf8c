"""The level ``manifests``: lists a table's files in fewer manifests.

How manifests are rewritten is in the room rewrite.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING

from lakehouse_assets.declare.options import Level, Maintenance
from lakehouse_assets.health.health import Check, Finding, Limit, size_text
from lakehouse_assets.maintenance.level import OPEN_COST, Action, Candidate, Gain, MaintenanceLevel, Means, Result

if TYPE_CHECKING:
    from lakehouse_assets.health.health import TableHealth

LIMIT = Limit(101, 1_000)
"""Manifests of the current snapshot: Iceberg merges from 100 on (commit.manifest.min-count-to-merge); planning a day
among 1,000 takes 10 s."""
ENTRIES = 1_000
"""How many files a manifest lists after it was rewritten."""
SURPLUS, LEAST_SURPLUS = 4, 2
"""Manifests are no finding up to so many times the number that is needed; where a person forces it, up to the second
number, below which the rewrite is not worth it to itself."""


class ManifestsLevel(MaintenanceLevel):
    """Rewrites many manifests into few."""

    name = Level.MANIFESTS.value
    order = 3

    def findings(self, health: TableHealth) -> Iterator[Finding]:
        """Yields the manifests, if there are too many."""
        severity = LIMIT.severity(health.manifests)
        if severity and health.manifests > SURPLUS * needed(health):
            yield Finding(Check.STORAGE, severity, self.name, _text(health))

    def measured(self, health: TableHealth) -> str:
        """Says how many there are, and from how many on there are too many."""
        return f"{health.manifests:,} of {max(int(LIMIT.warn), SURPLUS * needed(health) + 1):,}"

    def candidates(self, health: TableHealth, care: Maintenance, *, force: bool) -> Iterator[Candidate]:
        """Yields the rewrite of the table's manifests."""
        least, surplus = (2, LEAST_SURPLUS) if force else (LIMIT.warn, SURPLUS)
        if health.manifests >= least and health.manifests > surplus * needed(health):
            fewer = health.manifests - needed(health)
            gain = Gain(manifests=fewer, scan_work=fewer * OPEN_COST)
            yield Candidate(health.identifier, self, _text(health), gain, health.manifest_size, health.manifests)

    def carry_out(self, means: Means, action: Action) -> Result:
        """Rewrites the manifests, and proves that they list the same files."""
        from lakehouse_assets.rewrite.manifests import rewrite_manifests

        report = rewrite_manifests(means.catalog, action.table, means.token(action), means.properties)
        before, after = report.before, report.after
        sizes = " → ".join(f"{state.manifests:,} manifests of {size_text(state.size)}" for state in (before, after))
        dropped = (f"{report.dropped:,} manifests that writers changed meanwhile",) if report.dropped else ()
        nothing = report.snapshot_id is None
        return Result(
            Gain(manifests=before.manifests - after.manifests),
            size=report.replaced.size,
            summary="no manifest is worth rewriting any more" if nothing else sizes,
            proof=f"{report.entries:,} entries" if report.entries else "",
            dropped=dropped,
            in_vain=nothing and bool(dropped),
        )


def needed(health: TableHealth) -> int:
    """Counts the manifests that would do to list the table's files."""
    return max(1, ceil((health.total("files") + health.total("delete_files")) / ENTRIES))


def _text(health: TableHealth) -> str:
    files = health.total("files") + health.total("delete_files")
    return f"{health.manifests:,} manifests list {files:,} files; {needed(health):,} would do"

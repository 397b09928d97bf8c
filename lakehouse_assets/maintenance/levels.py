"""All levels of maintenance, and those that rewrite no data files."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from typing import TYPE_CHECKING

import dagster as dg

from lakehouse_assets.declare.options import Level, Maintenance
from lakehouse_assets.maintenance.health.findings import Check, Finding, Limit, Severity, size_text
from lakehouse_assets.maintenance.level import (
    MIB,
    OPEN_COST,
    Action,
    Candidate,
    Gain,
    MaintenanceContext,
    MaintenanceLevel,
    Result,
)
from lakehouse_assets.maintenance.rewrite_levels import DeletesLevel, FragmentsLevel, SortLevel, UndersizedLevel
from lakehouse_assets.run.jobs import shown_table
from lakehouse_assets.run.resource import Lakehouse

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

    from lakehouse_assets.commit.expire import Expiry, ExpiryPlan
    from lakehouse_assets.maintenance.collect.report import Report, Tally
    from lakehouse_assets.maintenance.collect.seen import Site
    from lakehouse_assets.maintenance.health.health import TableHealth

SNAPSHOTS = Limit(1_001, 10_000)
"""Each 1,000 slow a commit by 0.3 s (measured with PyIceberg). An expiry leaves at most 1,000
(ExpiryPolicy.maximum), unless more must stay: so the warning begins above."""
METADATA = Limit(8 * MIB, 80 * MIB)
"""Bytes of metadata.json, which each commit writes and each load reads. As many snapshots as SNAPSHOTS allows, at 1 KiB
each, take an eighth of the limit."""


def is_long(health: TableHealth) -> bool:
    """Whether the history is long enough for an expiry."""
    return health.snapshots >= SNAPSHOTS.warn or health.metadata_size >= METADATA.warn


class ExpireLevel(MaintenanceLevel):
    """Expires snapshots, first of all: a shorter history makes commits faster."""

    name = Level.EXPIRE.value
    order = 0

    def findings(self, health: TableHealth) -> Iterator[Finding]:
        """Yields the findings."""
        if severity := SNAPSHOTS.severity(health.snapshots):
            most = f"expected at most {SNAPSHOTS.warn - 1:,}: each makes every commit slower"
            yield Finding(Check.HISTORY, severity, self.name, f"there are {health.snapshots:,} snapshots, {most}")
        if severity := METADATA.severity(health.metadata_size):
            message = (
                f"metadata.json has {size_text(health.metadata_size)}: every commit writes it, every load reads it"
            )
            yield Finding(Check.STORAGE, severity, self.name, message)

    def measured(self, health: TableHealth) -> str:
        """Returns both numbers."""
        sizes = f"{size_text(health.metadata_size)} of {size_text(METADATA.warn)}"
        return f"{health.snapshots:,} of {SNAPSHOTS.warn:,} snapshots, metadata.json {sizes}"

    def candidates(self, health: TableHealth, care: Maintenance, *, force: bool) -> Iterator[Candidate]:
        """Yields an expiry if the history is long (or ``force``) and not all snapshots must stay."""
        # None: unknown. Then the expiry itself raises the reason.
        if health.expirable != 0 and (is_long(health) or (force and health.snapshots > 1)):
            reason = f"{health.snapshots:,} snapshots in a metadata.json of {size_text(health.metadata_size)}"
            gone = health.snapshots if health.expirable is None else health.expirable
            gain = Gain(snapshots=gone, scan_work=health.metadata_size * gone // max(1, health.snapshots))
            yield Candidate(health.identifier, self, reason, gain)

    def carry_out(self, means: MaintenanceContext, action: Action) -> Result:
        """Expires snapshots in one commit."""
        from lakehouse_assets.commit.expire import ExpiryPolicy, expire, plan_expiry

        plans: list[ExpiryPlan] = []

        def expiry(now: TableMetadata) -> Expiry:  # at each attempt, because runs may have pinned snapshots since
            kept = {one for of in means.extensions for one in of.kept_snapshots(means, action.table, now)}
            plans.append(plan_expiry(action.table, now, ExpiryPolicy(), int(time.time() * 1000), kept))
            return plans[-1].expiry

        expired = expire(means.catalog, action.table, expiry)
        before, after = len(expired.before.snapshots), len(expired.after.snapshots)
        sizes = " → ".join(size_text(len(one.model_dump_json())) for one in (expired.before, expired.after))
        # A snapshot may stay for several reasons: count it once.
        kept = Counter(reasons[0].value for reasons in plans[-1].kept.values())
        why = ", ".join(f"{count:,} {reason}" for reason, count in kept.items())
        return Result(
            Gain(snapshots=before - after),
            summary=f"{before:,} snapshots → {after:,} ({why}), metadata.json {sizes}",
            faults=expired.faults,
        )


LIMIT = Limit(101, 1_000)
"""Manifests of a table. Iceberg's writers merge from 100 (commit.manifest.min-count-to-merge). To plan a scan of one
day takes 10 s among 1,000."""
ENTRIES = 1_000
"""The entries by which needed() counts: a manifest with more is too large to be merged (commit/manifest_merge.py)."""
SURPLUS, LEAST_SURPLUS = 4, 2
"""A table with up to SURPLUS times the needed manifests is left alone. If a person forces the rewrite, LEAST_SURPLUS
counts: with fewer manifests, it would merge too little."""


class ManifestsLevel(MaintenanceLevel):
    """Rewrites many manifests into few."""

    name = Level.MANIFESTS.value
    order = 3

    def findings(self, health: TableHealth) -> Iterator[Finding]:
        """Yields the finding, if any."""
        severity = LIMIT.severity(health.manifests)
        if severity and health.manifests > SURPLUS * needed(health):
            yield Finding(Check.STORAGE, severity, self.name, _manifests_text(health))

    def measured(self, health: TableHealth) -> str:
        """Returns the number of manifests, and its limit."""
        # Both conditions of candidates() must hold, so the higher number counts.
        return f"{health.manifests:,} of {max(int(LIMIT.warn), SURPLUS * needed(health) + 1):,}"

    def candidates(self, health: TableHealth, care: Maintenance, *, force: bool) -> Iterator[Candidate]:
        """Yields the rewrite."""
        # A single manifest can't be merged, even by force.
        least, surplus = (2, LEAST_SURPLUS) if force else (LIMIT.warn, SURPLUS)
        if health.manifests >= least and health.manifests > surplus * needed(health):
            fewer = health.manifests - needed(health)
            gain = Gain(manifests=fewer, scan_work=fewer * OPEN_COST)
            yield Candidate(
                health.identifier, self, _manifests_text(health), gain, health.manifest_size, health.manifests
            )

    def carry_out(self, means: MaintenanceContext, action: Action) -> Result:
        """Rewrites manifests; proves that they list the same files."""
        from lakehouse_assets.maintenance.rewrite.manifests import rewrite_manifests

        report = rewrite_manifests(means.catalog, action.table, means.token(action), means.properties)
        before, after = report.before, report.after
        sizes = " → ".join(f"{state.manifests:,} manifests of {size_text(state.size)}" for state in (before, after))
        dropped = (f"{report.dropped:,} manifests were changed by writers meanwhile",) if report.dropped else ()
        nothing = report.snapshot_id is None
        return Result(
            Gain(manifests=before.manifests - after.manifests),
            size=report.replaced.size,
            summary="no manifest is worth rewriting any more" if nothing else sizes,
            proof=f"{report.entries:,} entries" if report.entries else "",
            dropped=dropped,
            nothing_landed=nothing and bool(dropped),
        )


def needed(health: TableHealth) -> int:
    """Returns how many manifests suffice."""
    return max(1, ceil((health.total("files") + health.total("delete_files")) / ENTRIES))


def _manifests_text(health: TableHealth) -> str:
    files = health.total("files") + health.total("delete_files")
    return f"{health.manifests:,} manifests list {files:,} files; {needed(health):,} would do"


UNNEEDED = Limit(0.2, 0.8)
"""The share of unneeded bytes. Beyond the warning, a person must allow the move."""
NAMED = 5
"""The most files that a result names as refused by the storage."""
FOUND = ("table", "verdict", "why", "files", "size")
DUE = ("table", "location", "size", "why")


class CollectLevel(MaintenanceLevel):
    """Collects unneeded files; requested weekly, as it lists all of a table's storage."""

    name = Level.COLLECT.value
    order = 4
    by_itself = False
    commits = False

    def findings(self, health: TableHealth) -> Iterator[Finding]:
        """Yields what the collector last found. A problem keeps it from working, so it is an error."""
        found = health.collected
        if found is None:
            return
        for problem in found.problems:
            yield Finding(Check.STORAGE, Severity.ERROR, None, problem)
        share = found.size / max(1, found.size + health.total("size"))
        if severity := UNNEEDED.severity(share):
            message = (
                f"{found.files:,} unneeded files with {size_text(found.size)}, {share:.0%} of the size of all its files"
            )
            yield Finding(Check.STORAGE, severity, self.name, message)

    def candidates(self, health: TableHealth, care: Maintenance, *, force: bool) -> Iterator[Candidate]:
        """Yields one look, as only the storage shows whether there is work."""
        yield Candidate(health.identifier, self, "its storage is searched for unneeded files")

    def carry_out(self, means: MaintenanceContext, action: Action) -> Result:
        """Moves files to the trash and empties it. A problem needs a person, so it is a fault."""
        return _collected(means, action, dry_run=False)

    def look(self, means: MaintenanceContext, action: Action) -> Result:
        """Looks through the storage."""
        return _collected(means, action, dry_run=True)


def _collected(means: MaintenanceContext, action: Action, *, dry_run: bool) -> Result:
    from lakehouse_assets.maintenance.collect.collect import collect

    report = collect(means.site, action.table, means.run.text, dry_run=dry_run, allow_large=means.allow_large)
    means.reports.append(report)
    return Result(
        summary="; ".join(_summary(report)),
        dropped=tuple(f"{kept.place.location}: {kept.reason}" for kept in report.refused[:NAMED]),
        faults=tuple(report.problems),
    )


def site_of(lakehouse: Lakehouse, instance: dg.DagsterInstance) -> Site:
    """Returns what the collector works with: catalog, storage and Dagster's runs."""
    from lakehouse_assets.maintenance.collect.needed import chains
    from lakehouse_assets.maintenance.collect.seen import Site

    settings = lakehouse.settings
    return Site(
        lakehouse.catalog(), settings.staging, lambda tokens: chains(instance, tokens), settings.exclusive_prefix
    )


def collection_tables(reports: Sequence[Report]) -> dict[str, dg.TableMetadataValue]:
    """Returns collector passes as tables for the UI.

    ``collection``: all verdicts. ``due``: the first files to go, if none went.
    """
    found = [(report.identifier, *row) for report in reports for row in _rows(report)]
    due = [
        (report.identifier, location, size_text(size), why)
        for report in reports
        if report.dry_run or report.is_large
        for location, size, why in report.examples
    ]
    tables = {"collection": shown_table(FOUND, found)} if reports else {}
    return tables | ({"due": shown_table(DUE, due)} if due else {})


def _summary(report: Report) -> Iterable[str]:
    found = report.unreachable
    if report.judged_ms is None:
        yield f"{_files(report.listed)} checked, none judged"
        return
    unneeded = f"{_files(found)} unneeded, {_files(report.due)} of them for long enough"
    yield f"{_files(report.listed)} checked, {unneeded}"
    if not report.dry_run:
        yield f"{_files(report.trashed)} moved to the trash, {_files(report.purged)} deleted from it"
    if report.refused:
        yield f"{len(report.refused):,} files could not be moved"


def _rows(report: Report) -> Iterable[tuple[str, ...]]:
    for verdict, tallies in (("needed or held", report.kept), ("not needed", report.unneeded)):
        for why, tally in tallies.items():
            yield _row(verdict, str(why), tally)
    would = "would go to the trash with allow_large" if report.is_large else "would go to the trash"
    done, tally = (would, report.due) if report.dry_run else ("went to the trash", report.trashed)
    yield _row(done, "not needed for longer than the grace", tally)
    if report.purged.files:
        yield _row("deleted", "past its time in the trash", report.purged)


def _row(verdict: str, why: str, tally: Tally) -> tuple[str, ...]:
    return verdict, why, f"{tally.files:,}", size_text(tally.size)


def _files(tally: Tally) -> str:
    return f"{tally.files:,} file{'' if tally.files == 1 else 's'} ({size_text(tally.size)})"


LEVELS = (
    DeletesLevel(),
    UndersizedLevel(),
    FragmentsLevel(),
    SortLevel(),
    ManifestsLevel(),
    ExpireLevel(),
    CollectLevel(),
)
"""A partition for which several ask is rewritten for the first of these."""

"""The level ``collect``: has the collector look through a table's storage, and says what it found and did.

What nobody needs, and how it goes and comes back, is collect/'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import dagster as dg

from lakehouse_assets.declare.options import Level, Maintenance
from lakehouse_assets.health.health import Check, Finding, Limit, Severity, size_text
from lakehouse_assets.maintenance.level import Action, Candidate, MaintenanceLevel, Means, Result
from lakehouse_assets.run.jobs import shown_table
from lakehouse_assets.run.resource import Lakehouse

if TYPE_CHECKING:
    from lakehouse_assets.collect.pass_report import Report, Tally
    from lakehouse_assets.collect.site import Site
    from lakehouse_assets.health.health import TableHealth

UNNEEDED = Limit(0.2, 0.8)
"""The bytes that nobody needs, as a share of these and the data files'. The warning begins at the share that the
collector does not move without being told to."""
NAMED = 5
"""The most files that could not go and are named, each with the reason."""
FOUND = ("table", "verdict", "why", "files", "size")
DUE = ("table", "location", "size", "why")


class CollectLevel(MaintenanceLevel):
    """Collects files that nobody needs; a schedule asks for it weekly, as it lists all of a table's storage."""

    name = Level.COLLECT.value
    order = 4
    by_itself = False
    commits = False

    def findings(self, health: TableHealth) -> Iterator[Finding]:
        """Yields what the collector's last look says. Its problems keep it from working, so each is an error."""
        found = health.collected
        if found is None:
            return
        for problem in found.problems:
            yield Finding(Check.STORAGE, Severity.ERROR, None, problem)
        share = found.size / max(1, found.size + health.total("size"))
        if severity := UNNEEDED.severity(share):
            message = (
                f"{found.files:,} files with {size_text(found.size)} that nobody needs, {share:.0%} of all its files"
            )
            yield Finding(Check.STORAGE, severity, self.name, message)

    def candidates(self, health: TableHealth, care: Maintenance, *, force: bool) -> Iterator[Candidate]:
        """Yields one look through the table's storage."""
        yield Candidate(health.identifier, self, "its storage is looked through for files that nobody needs")

    def carry_out(self, means: Means, action: Action) -> Result:
        """Collects. A problem keeps files from going and needs a person, so it is a fault."""
        return _collected(means, action, dry_run=False)

    def look(self, means: Means, action: Action) -> Result:
        """Looks through the storage, as only that shows which files nobody needs."""
        return _collected(means, action, dry_run=True)


def _collected(means: Means, action: Action, *, dry_run: bool) -> Result:
    from lakehouse_assets.collect.collect import collect

    report = collect(means.site, action.table, means.run.text, dry_run=dry_run, allow_large=means.allow_large)
    means.reports.append(report)
    return Result(
        summary="; ".join(_summary(report)),
        dropped=tuple(f"{kept.place.location}: {kept.reason}" for kept in report.refused[:NAMED]),
        faults=tuple(report.problems),
    )


def site_of(lakehouse: Lakehouse, instance: dg.DagsterInstance) -> Site:
    """Returns the site that the collector works with, from the lakehouse's settings and Dagster's runs."""
    from lakehouse_assets.collect.leases import chains
    from lakehouse_assets.collect.site import Site

    settings = lakehouse.settings
    return Site(lakehouse.catalog(), settings.staging, lambda tokens: chains(instance, tokens), settings.unshared)


def collection_tables(reports: Sequence[Report]) -> dict[str, dg.TableMetadataValue]:
    """Returns the tables that the UI shows of collector passes.

    ``collection``: what was found in the storage of tables, and why it stays or goes.
    ``due``: the first files that would go, where nothing went.
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
        yield f"{_text(report.listed)} looked at, none judged"
        return
    yield f"{_text(report.listed)} looked at, {_text(found)} that nobody needs, {_text(report.due)} of them long enough"
    if not report.dry_run:
        yield f"{_text(report.trashed)} put into the trash, {_text(report.purged)} deleted after their time there"
    if report.refused:
        yield f"{len(report.refused):,} files could not go"


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


def _text(tally: Tally) -> str:
    return f"{tally.files:,} file{'' if tally.files == 1 else 's'} ({size_text(tally.size)})"

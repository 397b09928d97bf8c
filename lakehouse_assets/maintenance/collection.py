"""The level ``collect``: has the collector look through a table's storage, and says what it found and did.

What nobody needs, and how it goes and comes back, is collect/'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import dagster as dg

from lakehouse_assets.collect.collect import collect
from lakehouse_assets.collect.leases import chains
from lakehouse_assets.collect.pass_report import CollectRule, Report, Tally
from lakehouse_assets.collect.site import Site
from lakehouse_assets.health.text import size_text
from lakehouse_assets.maintenance.memory import Ending
from lakehouse_assets.maintenance.result import Result
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.run.shown_table import shown_table

NAMED = 5
"""The most files that could not go and are named, each with the reason."""
FOUND = ("table", "verdict", "why", "files", "size")
DUE = ("table", "location", "size", "why")


def site_of(lakehouse: Lakehouse, instance: dg.DagsterInstance) -> Site:
    """Returns the site that the collector works with, from the lakehouse's settings and Dagster's runs."""
    settings = lakehouse.settings
    return Site(lakehouse.catalog(), settings.staging, lambda tokens: chains(instance, tokens), settings.unshared)


def look_through(site: Site, identifier: str, run_id: str, *, allow_large: bool, dry_run: bool) -> Report:
    """Looks through a table's storage. run_id: for the ledger. Raises as collect() does."""
    return collect(site, identifier, run_id, dry_run=dry_run, allow_large=allow_large)


def collected(report: Report) -> Result:
    """Returns a pass of the collector as the result of an action.

    A problem keeps files from going and needs a person, so it counts as a failure.
    """
    return Result(
        Ending.FAILED if report.problems else Ending.DONE,
        summary="; ".join(_summary(report)),
        dropped=tuple(f"{kept.place.location}: {kept.reason}" for kept in report.refused[:NAMED]),
        faults=tuple(problem.message for problem in report.problems),
    )


def collection_tables(reports: Sequence[Report]) -> dict[str, dg.TableMetadataValue]:
    """Returns the tables that the UI shows of collector passes.

    ``collection``: what was found in the storage of tables, and why it stays or goes.
    ``due``: the first files that would go, where nothing went.
    """
    found = [(report.identifier, *row) for report in reports for row in _rows(report)]
    due = [
        (report.identifier, file.location, size_text(file.size), file.why)
        for report in reports
        if report.dry_run or _is_large(report)
        for file in report.examples
    ]
    tables = {"collection": shown_table(FOUND, found)} if reports else {}
    return tables | ({"due": shown_table(DUE, due)} if due else {})


def _is_large(report: Report) -> bool:
    return any(problem.rule is CollectRule.SHARE for problem in report.problems)


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
    would = "would go to the trash with allow_large" if _is_large(report) else "would go to the trash"
    done, tally = (would, report.due) if report.dry_run else ("went to the trash", report.trashed)
    yield _row(done, "not needed for longer than the grace", tally)
    if report.purged.files:
        yield _row("deleted", "past its time in the trash", report.purged)


def _row(verdict: str, why: str, tally: Tally) -> tuple[str, ...]:
    return verdict, why, f"{tally.files:,}", size_text(tally.size)


def _text(tally: Tally) -> str:
    return f"{tally.files:,} file{'' if tally.files == 1 else 's'} ({size_text(tally.size)})"

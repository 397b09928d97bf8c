"""The job ``lakehouse_restore``: brings files back that the collector has put into the trash.

How a storage gives a file back is collect/'s.
"""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.this_run import process_tag
from lakehouse_assets.errors import LakehouseError, UnknownStorage
from lakehouse_assets.health.text import size_text
from lakehouse_assets.maintenance.pool import POOL
from lakehouse_assets.run.in_flight import RESTORE
from lakehouse_assets.run.launchpad import own_fields
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.run.shown_table import shown_table
from resources.catalog import with_retries

if TYPE_CHECKING:
    from lakehouse_assets.collect.restore import RestoreReport, TrashSelection
    from lakehouse_assets.collect.trash import Trash

NAMED = 5
"""The most files that could not come back and are named, each with the reason."""
SHOWN = 1000
"""The most files that a dry run names."""
COLUMNS = ("file", "size", "why it went", "run")
"""The columns of the table that a dry run shows."""


class RestoreConfig(dg.Config):
    """Says what to bring back: all that the trash has of a table, or what the other fields name.

    Shows in the launchpad.
    """

    # It has a default, as the launchpad fills in only fields that have one. The job refuses it.
    table: str = Field("", description="Required: the identifier of the table, such as nyc.flights.")
    run: str = Field("", description="Only what this run put into the trash: its whole id; none: of all runs.")
    paths: list[str] = Field(
        [], description="Only these files, or what was in these folders: absolute paths or s3:// URLs; none: all."
    )
    dry_run: bool = Field(True, description="true: only show what the trash has of it. false: bring it back.")


def restore_job(tables: Sequence[Table]) -> dg.JobDefinition:
    """Returns the job over these tables.

    It is in the pool of maintenance, as a collection at the same time would wait for it.
    """
    known = [table.identifier for table in tables]

    @dg.op(name="restore", pool=POOL, out=dg.Out(dg.Nothing))
    def restore(context: dg.OpExecutionContext, config: RestoreConfig, lakehouse: dg.ResourceParam[Lakehouse]) -> None:
        from lakehouse_assets.collect.restore import total  # what definitions need not load

        context.instance.add_run_tags(context.run_id, process_tag())  # its slot is freed if this process dies
        if config.table not in known:
            what = f"unknown table {config.table}" if config.table else "no table was named"
            raise dg.Failure(f"{what}; declared are {', '.join(known)}", allow_retries=False)
        try:
            trashes, selection = _trashes(context, config, lakehouse), _selection(config)
            if config.dry_run:
                context.add_output_metadata(_held(trashes, selection))
                return
            report = total([trash.restore(selection) for trash in trashes])
        except (LakehouseError, OSError) as error:  # OSError: disks, networks, catalogs
            raise dg.Failure(str(error)) from error
        _show(context, config.table, report, f"{lakehouse.settings.staging}/collect")

    @dg.job(
        name=RESTORE,
        description="Brings back files that the collector has put into the trash.",
        config=own_fields("restore", RestoreConfig),
    )
    def job() -> None:
        restore()

    return job


def _selection(config: RestoreConfig) -> "TrashSelection":
    from lakehouse_assets.collect.restore import TrashSelection
    from lakehouse_assets.storage.place import place_of

    try:
        paths = frozenset(map(place_of, config.paths))
    except UnknownStorage as error:
        text = f"paths has one that is neither an absolute path nor an s3:// URL: {', '.join(config.paths)}"
        raise dg.Failure(text, allow_retries=False) from error
    return TrashSelection(config.run or None, paths)


def _trashes(context: dg.OpExecutionContext, config: RestoreConfig, lakehouse: Lakehouse) -> Sequence["Trash"]:
    from pyiceberg.exceptions import NoSuchTableError

    from lakehouse_assets.maintenance.collection import site_of

    site = site_of(lakehouse, context.instance)
    try:
        table = with_retries(lambda: site.catalog.load_table(config.table))
    except NoSuchTableError:  # dropped; the ledgers know what it had
        table = None
    return site.trashes(config.table, table)


def _held(trashes: Sequence["Trash"], selection: "TrashSelection") -> dict[str, Any]:
    """Returns what a dry run shows of the files that the trash has; it names the first SHOWN."""
    found = [
        (recorded.batch.run, recorded.batch.entries[n])
        for trash in trashes
        for recorded in trash.ledger.read()
        for n in recorded.held()
        if n not in (recorded.kept or ()) and selection.has(recorded.batch, recorded.batch.entries[n])
    ]
    rows = [(entry.location, size_text(entry.size), entry.why, run) for run, entry in found[:SHOWN]]
    size = sum(entry.size for _, entry in found)
    return {"dry_run": True, "in_trash": len(found), "bytes": size, "trash": shown_table(COLUMNS, rows)}


def _show(context: dg.OpExecutionContext, table: str, report: "RestoreReport", ledgers: str) -> None:
    """Shows what came back. Raises dg.Failure if anything that was asked for could not, or if nothing was found.

    ledgers: where they lie.
    """
    text = f"{report.restored:,} files ({size_text(report.size)}) are back, {report.there:,} were there already"
    context.log.info(f"{table}: {text}")
    shown = {"restored": report.restored, "bytes": report.size, "there_already": report.there, "lost": len(report.lost)}
    if report.lost:
        lost = "; ".join(f"{kept.place.location}: {kept.reason}" for kept in report.lost[:NAMED])
        raise dg.Failure(f"{table}: {text}, {len(report.lost):,} could not come back: {lost}", shown)
    if not report.restored and not report.there:
        raise dg.Failure(
            f"{table}: the trash has nothing of what was asked for: it is back, past its time, or never was there. All "
            f"that went is written below {ledgers}, in a folder for each table's UUID; a run is named by its whole id",
            allow_retries=False,
        )
    context.add_output_metadata(shown)

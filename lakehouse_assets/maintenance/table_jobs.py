"""Jobs that a person starts for one table.

``lakehouse_restore`` brings files back from the trash. ``lakehouse_drop_missing`` drops files from the metadata that
were deleted from storage. ``lakehouse_take_over`` records that this catalog has a table that another had.
"""

# No `from __future__ import annotations`: Dagster needs annotations as objects, not as strings.

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from lakehouse_assets.commit.owner import TAKE_OVER, OwnerMark, mark_location, read_mark
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import with_retries
from lakehouse_assets.errors import LakehouseError, UnknownStorage
from lakehouse_assets.maintenance.health.findings import size_text
from lakehouse_assets.maintenance.job import POOL
from lakehouse_assets.run.in_flight import DROP_MISSING, RESTORE
from lakehouse_assets.run.jobs import NO_TAGS, job_of, shown_table
from lakehouse_assets.run.resource import Lakehouse

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestEntry

    from lakehouse_assets.maintenance.collect.trash import RestoreReport, Trash, TrashSelection

NAMED = 5
"""The most files named that could not come back."""
SHOWN = 1000
"""The most files that a dry run names."""
COLUMNS = ("file", "size", "why it went", "run")
MISSING = ("file", "content", "partition", "rows", "written by", "in the trash")


class RestoreConfig(dg.Config):
    """What to restore. Shows in the launchpad."""

    # It has a default because the launchpad fills in only fields with one. The job refuses the default.
    table: str = Field("", description="Required: the identifier of the table, such as nyc.flights.")
    run: str = Field("", description="Only what this run moved to the trash: its whole id; if empty, of all runs.")
    paths: list[str] = Field(
        [], description="Only these files, or what was in these folders: absolute paths or s3:// URLs; if empty, all."
    )
    dry_run: bool = Field(
        True, description="true: only show which of these files the trash has. false: bring them back."
    )


class DropMissingConfig(dg.Config):
    """The table whose missing files to drop. Shows in the launchpad."""

    # It has a default because the launchpad fills in only fields with one. The job refuses the default.
    table: str = Field("", description="Required: the identifier of the table, such as nyc.flights.")
    dry_run: bool = Field(
        True,
        description="true: only show which live files are not in storage. false: drop them from the table's metadata. "
        "Their rows are given up.",
    )


class TakeOverConfig(dg.Config):
    """The table to take over. Shows in the launchpad."""

    # It has a default because the launchpad fills in only fields with one. The job refuses the default.
    table: str = Field(
        "",
        description="Required: its identifier, such as nyc.flights. No other catalog may have the table any more: "
        "versions that this catalog lacks are given up, and their files eventually go to the trash.",
    )


def restore_job(tables: Sequence[Table], tags: Mapping[str, str] = NO_TAGS) -> dg.JobDefinition:
    """Returns the job, in maintenance's pool so that no collection runs meanwhile."""
    known = [table.identifier for table in tables]

    @dg.op(name="restore", pool=POOL, out=dg.Out(dg.Nothing))
    def restore(context: dg.OpExecutionContext, config: RestoreConfig, lakehouse: dg.ResourceParam[Lakehouse]) -> None:
        with _work_on(context, config.table, known):
            context.add_output_metadata(_restore(context, config, lakehouse))

    about = "Brings back files that the collector moved to the trash."
    return job_of(restore, RestoreConfig, RESTORE, about, tags)


def drop_missing_job(tables: Sequence[Table], tags: Mapping[str, str] = NO_TAGS) -> dg.JobDefinition:
    """Returns the job, in maintenance's pool so that no file is brought back meanwhile."""
    known = [table.identifier for table in tables]

    @dg.op(name="drop_missing", pool=POOL, out=dg.Out(dg.Nothing))
    def drop_missing(
        context: dg.OpExecutionContext, config: DropMissingConfig, lakehouse: dg.ResourceParam[Lakehouse]
    ) -> None:
        with _work_on(context, config.table, known):
            context.add_output_metadata(_drop_missing(context, config, lakehouse))

    about = "Drops files that were deleted from storage from a table's metadata, so that it can be read again."
    return job_of(drop_missing, DropMissingConfig, DROP_MISSING, about, tags)


def take_over_job(tables: Sequence[Table], tags: Mapping[str, str] = NO_TAGS) -> dg.JobDefinition:
    """Returns the job, in maintenance's pool so that no collection runs meanwhile."""
    known = [table.identifier for table in tables]

    @dg.op(name="take_over", pool=POOL, out=dg.Out(dg.Nothing))
    def take_over(
        context: dg.OpExecutionContext, config: TakeOverConfig, lakehouse: dg.ResourceParam[Lakehouse]
    ) -> None:
        with _work_on(context, config.table, known):
            context.add_output_metadata(_take_over(context.instance, config.table, lakehouse))

    about = "Records that a table belongs to this catalog and to no other."
    return job_of(take_over, TakeOverConfig, TAKE_OVER, about, tags)


@contextmanager
def _work_on(context: dg.OpExecutionContext, table: str, known: Collection[str]) -> Iterator[None]:
    """Refuses an undeclared table; raises dg.Failure for errors that a person can act on."""
    if table not in known:
        what = f"unknown table {table}" if table else "no table was named"
        raise dg.Failure(f"{what}; the declared tables are {', '.join(known)}", allow_retries=False)
    try:
        yield
    except (LakehouseError, OSError) as error:  # OSError: disks, networks, catalogs
        raise dg.Failure(str(error)) from error


def _restore(context: dg.OpExecutionContext, config: RestoreConfig, lakehouse: Lakehouse) -> dict[str, Any]:
    trashes, selection = _trashes(context, config, lakehouse), _selection(config)
    if config.dry_run:
        return _held(trashes, selection)
    reports = [trash.restore(selection) for trash in trashes]
    return _shown(context, config.table, reports, f"{lakehouse.settings.staging}/collect")


def _selection(config: RestoreConfig) -> "TrashSelection":
    from lakehouse_assets.maintenance.collect.trash import TrashSelection
    from lakehouse_assets.storage.place import place_of

    try:
        paths = frozenset(map(place_of, config.paths))
    except UnknownStorage as error:
        text = f"paths has entries that are neither absolute paths nor s3:// URLs: {', '.join(config.paths)}"
        raise dg.Failure(text, allow_retries=False) from error
    return TrashSelection(config.run or None, paths)


def _trashes(context: dg.OpExecutionContext, config: RestoreConfig, lakehouse: Lakehouse) -> Sequence["Trash"]:
    from pyiceberg.exceptions import NoSuchTableError

    from lakehouse_assets.maintenance.levels import site_of

    site = site_of(lakehouse, context.instance)
    try:
        table = with_retries(lambda: site.catalog.load_table(config.table))
    except NoSuchTableError:  # dropped; the ledgers know what it had
        table = None
    return site.trashes(config.table, table)


def _held(trashes: Sequence["Trash"], selection: "TrashSelection") -> dict[str, Any]:
    found = [
        (recorded.batch.run, recorded.batch.entries[n])
        for trash in trashes
        for recorded in trash.ledger.read()
        for n in recorded.taken()
        if selection.has(recorded.batch, recorded.batch.entries[n])
    ]
    rows = [(entry.location, size_text(entry.size), entry.why, run) for run, entry in found[:SHOWN]]
    size = sum(entry.size for _, entry in found)
    return {"dry_run": True, "in_trash": len(found), "bytes": size, "trash": shown_table(COLUMNS, rows)}


def _shown(
    context: dg.OpExecutionContext, table: str, reports: Sequence["RestoreReport"], ledgers: str
) -> dict[str, Any]:
    """Returns the metadata. ledgers: the folder of all ledgers.

    Raises dg.Failure if a requested file could not come back, or nothing was found.
    """
    restored, size, there = (sum(getattr(report, name) for report in reports) for name in ("restored", "size", "there"))
    lost = [kept for report in reports for kept in report.lost]
    text = f"{restored:,} files ({size_text(size)}) were brought back, {there:,} were already there"
    context.log.info(f"{table}: {text}")
    shown = {"restored": restored, "bytes": size, "there_already": there, "lost": len(lost)}
    if lost:
        named = "; ".join(f"{kept.place.location}: {kept.reason}" for kept in lost[:NAMED])
        raise dg.Failure(f"{table}: {text}, {len(lost):,} could not come back: {named}", shown)
    if not restored and not there:
        raise dg.Failure(
            f"{table}: the trash has none of the requested files: they are back, were deleted for good, or never were "
            f"in it. All removed files are recorded below {ledgers}, in a folder for each table's UUID; name a run by "
            "its whole id",
            allow_retries=False,
        )
    return shown


def _drop_missing(context: dg.OpExecutionContext, config: DropMissingConfig, lakehouse: Lakehouse) -> dict[str, Any]:
    # Definitions need not load these.
    from lakehouse_assets.commit.commit_part import SummaryEntries
    from lakehouse_assets.commit.landing import NothingLeft
    from lakehouse_assets.commit.positions import PositionUpdate
    from lakehouse_assets.commit.publish import publish
    from lakehouse_assets.commit.tokens import RUN_ID, RunToken
    from lakehouse_assets.maintenance.collect.missing import (
        DropMissing,
        in_trash,
        is_data,
        named,
        partition_name,
        run_of,
    )
    from lakehouse_assets.maintenance.collect.seen import load
    from lakehouse_assets.maintenance.levels import site_of

    site = site_of(lakehouse, context.instance)
    table = with_retries(lambda: load(site, config.table))
    change = DropMissing.look(table)
    held = in_trash(site.trashes(config.table, table), [entry.data_file.file_path for entry in change.missing])
    name_of = partition_name(table.metadata)

    def ui_metadata(entries: Sequence["ManifestEntry"]) -> dict[str, Any]:
        rows = [
            (
                entry.data_file.file_path,
                "rows" if is_data(entry) else "deletes",
                name_of(entry),
                f"{entry.data_file.record_count:,}",
                run_of(table.metadata, entry),
                "yes" if entry.data_file.file_path in held else "no",
            )
            for entry in entries[:SHOWN]
        ]
        lost = sum(entry.data_file.record_count for entry in entries if is_data(entry))
        return {"dry_run": config.dry_run, "missing": len(entries), "rows": lost, "files": shown_table(MISSING, rows)}

    if config.dry_run or not change.missing:
        return ui_metadata(change.missing)
    if held:
        raise dg.Failure(
            f"table {config.table}: the trash has {len(held):,} of its {len(change.missing):,} missing files, such as "
            f"{min(held)}. Nothing was dropped: bring them back by the job {RESTORE} first",
            ui_metadata(change.missing),
            allow_retries=False,
        )
    run = context.instance.get_run_record_by_id(context.run.run_id)
    assert run, "Dagster's storage has the run that it executes"
    token = RunToken(f"{context.run.run_id}.drop-missing", run.create_timestamp)
    # PositionUpdate copies the positions up to which inputs were read, so that the snapshot that had them may expire.
    parts = [SummaryEntries({RUN_ID: context.run.run_id}), PositionUpdate()]
    try:
        published = publish(site.catalog, config.table, change, token, parts)
    except NothingLeft:  # they are back
        return ui_metadata([])
    context.log.warning(
        f"table {config.table}: {len(change.dropped):,} missing files were dropped from its metadata, in snapshot "
        f"{published.snapshot_id}: {named(table, change.dropped)}. The table no longer has their rows, but Dagster "
        "still shows these partitions as materialized: materialize them again if their rows can be computed after all"
    )
    return {**ui_metadata(change.dropped), "snapshot_id": str(published.snapshot_id)}


def _take_over(instance: dg.DagsterInstance, identifier: str, lakehouse: Lakehouse) -> dict[str, Any]:
    # Definitions need not load these.
    from lakehouse_assets.maintenance.collect.report import refusals
    from lakehouse_assets.maintenance.collect.seen import load
    from lakehouse_assets.maintenance.levels import site_of
    from lakehouse_assets.storage.place import place_of

    site = site_of(lakehouse, instance)
    table = with_retries(lambda: load(site, identifier))
    # With the time: the collector no longer takes older versions in the table's folder for another catalog's.
    now = OwnerMark.of(table, site.now_ms())
    with refusals(f"table {identifier}", "be read", place_of(mark_location(table.location()))):
        before = read_mark(table)
    site.write_mark(identifier, now, table)
    return {"catalog": now.catalog, "catalog_before": before.catalog if before else "not noted"}

"""Deletes rows from sources in PostgreSQL once the lake has them and no reader needs them."""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

import time
from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg
from pydantic import Field
from pyiceberg.catalog import Catalog

from lakehouse_assets.commit.positions import settled
from lakehouse_assets.declare.row_source import Offsets
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import find_table, with_retries
from lakehouse_assets.errors import LakehouseError, SourceLost
from lakehouse_assets.extensions.sources.hook import mover_of
from lakehouse_assets.extensions.sources.postgres import PostgresTable
from lakehouse_assets.run.jobs import chosen_tables, job_of, shown_table
from lakehouse_assets.run.resource import Lakehouse

PURGE = "lakehouse_purge"


@dataclass(frozen=True)
class Purgeable:
    """Rows of a source that may be deleted."""

    source: PostgresTable
    upto: int
    """Exclusive, by ``pos``."""


def purgeable(catalog: Catalog, table: Table, now: float) -> Purgeable | None:
    """Returns the rows that main has had for the source's grace, if any. now: epoch seconds.

    Asks the catalog, as a reported commit may have been rolled back. Raises SourceLost, SourceUnreachable and the
    catalog's errors.
    """
    source = table.source
    if not isinstance(source, PostgresTable):
        return None
    if (cold := with_retries(lambda: find_table(catalog, table.identifier))) is None:
        return None
    text = settled(cold.metadata, source.name, round((now - source.grace.total_seconds()) * 1000))
    position = Offsets.parse(text) if text else None
    state = source.state(position)
    # no move is as old as the grace, the source is another one now, or it was purged so far already
    if position is None or position.identity != state.identity or position.by_partition <= state.first:
        return None
    source.refuse_faults(state)
    names = [column.name for column in table.schema.columns]
    others = state.of_another(source.name, mover_of(table, cold.metadata))
    # may_lack: only columns that the table does not declare matter, as a purge deletes their values
    if problem := others or source.column_problem(names, may_lack=True):
        raise SourceLost(problem)
    return Purgeable(source, position.by_partition[0])


class PurgeConfig(dg.Config):
    """The tables to purge. The field shows in the launchpad."""

    tables: list[str] = Field(
        [], description="Identifiers such as nyc.flight_state; if empty, all tables with a source in PostgreSQL."
    )


def purge_job(tables: Sequence[Table]) -> dg.JobDefinition:
    """Returns the job."""

    @dg.op(name="purge", out=dg.Out(dg.Nothing))
    def purge(context: dg.OpExecutionContext, config: PurgeConfig, lakehouse: dg.ResourceParam[Lakehouse]) -> None:
        rows, failures = [], []
        try:
            chosen = chosen_tables(config.tables, tables)
        except LakehouseError as error:
            raise dg.Failure(str(error)) from error
        for table in chosen:
            try:
                if (found := purgeable(lakehouse.catalog(), table, time.time())) is not None:
                    deleted = found.source.purge(found.upto)
                    context.log.info(f"{found.source.name}: {deleted} rows below {found.upto} deleted")
                    rows.append((found.source.name, str(found.upto), str(deleted)))
            except (LakehouseError, OSError) as error:  # OSError: networks, catalogs; purge the others
                failures.append(f"{table.identifier}: {error}")
        context.add_output_metadata({"purged": shown_table(("source", "up to", "rows"), rows)})
        if failures:
            raise dg.Failure("; ".join(failures))

    about = "Deletes rows from sources in PostgreSQL that the lake has had for at least their grace period."
    return job_of(purge, PurgeConfig, PURGE, about)

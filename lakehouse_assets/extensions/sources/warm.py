"""Puts rows of a table back into its source in PostgreSQL, to be changed row by row.

There they shadow the table's rows until the next move; no reader waits or sees a gap.
"""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

from collections.abc import Sequence

import dagster as dg
from pydantic import Field
from pyiceberg.catalog import Catalog
from pyparsing import ParseException

from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import find_table, with_retries
from lakehouse_assets.errors import LakehouseError, SourceLost
from lakehouse_assets.extensions.sources.hot_and_cold import moved_to
from lakehouse_assets.extensions.sources.postgres import PostgresTable
from lakehouse_assets.run.jobs import job_of
from lakehouse_assets.run.resource import Lakehouse

WARM = "lakehouse_warm"
FORM = (
    "It takes the form of PyIceberg's filters, such as a = 1 and b = 'x', without functions; a timestamptz is compared "
    "with '2026-01-31T00:00:00+01:00', a timestamp with '2026-01-31T00:00:00', a date with '2026-01-31'"
)
TRIES = 5
"""The most reads of the table: a purge during one makes it useless."""


def warm(catalog: Catalog, table: Table, where: str) -> int:
    """Puts matching rows back into the table's source, and returns their number.

    Skips rows of which the source has a newer version. where: as in PyIceberg's scans. Raises SourceLost,
    SourceUnreachable and the catalog's errors.
    """
    source = table.source
    assert isinstance(source, PostgresTable)
    for _ in range(TRIES):
        if (cold := with_retries(lambda: find_table(catalog, table.identifier))) is None:
            raise SourceLost(f"table {table.identifier} does not exist yet: no run has moved rows")
        if (position := moved_to(table, cold)) is None:
            raise SourceLost(f"table {table.identifier}: no run has moved rows of {source.name}")
        state = source.state(position)
        if position.identity != state.identity:
            raise SourceLost(f"table {table.identifier}: {state.problem(source.name, position)}")
        names = [column.name for column in table.schema.columns if column.name in cold.schema().column_names]
        rows = cold.scan(row_filter=where, selected_fields=tuple(names)).to_arrow()
        put = source.put_back(rows, table.write_mode.match_on, position.by_partition[0])
        # None: the source was purged since the table was read.
        if put is not None:
            return put
    raise SourceLost(f"{source.name} was purged during each of {TRIES} reads of {table.identifier}: try again")


class WarmConfig(dg.Config):
    """The rows to put back. The fields show in the launchpad."""

    table: str = Field(description="An identifier such as nyc.flight_state.")
    where: str = Field(description="A condition over its columns, such as flight_date = '2013-01-01'.")


def warm_job(tables: Sequence[Table]) -> dg.JobDefinition:
    """Returns the job."""
    known = {table.identifier: table for table in tables}

    @dg.op(name="warm", out=dg.Out(dg.Nothing))
    def warm_rows(context: dg.OpExecutionContext, config: WarmConfig, lakehouse: dg.ResourceParam[Lakehouse]) -> None:
        if config.table not in known:
            raise dg.Failure(f"{config.table} has no source in PostgreSQL; the tables with one are {', '.join(known)}")
        try:
            rows = warm(lakehouse.catalog(), known[config.table], config.where)
        except (LakehouseError, OSError) as error:  # OSError: networks, catalogs
            raise dg.Failure(str(error)) from error
        except ParseException as error:
            text = f"the condition {config.where!r} can't be read, starting at {config.where[error.loc :]!r}"
            raise dg.Failure(f"{text}: {FORM}") from error
        except ValueError as error:
            raise dg.Failure(f"the condition {config.where!r} can't be used: {error}. {FORM}") from error
        context.log.info(f"{config.table}: {rows} rows were put back into its source")
        context.add_output_metadata({"rows": rows})

    return job_of(
        warm_rows, WarmConfig, WARM, "Puts rows of a table back into its source, so that they can be changed there."
    )

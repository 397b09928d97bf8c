"""Steps in SQL files plug into the check of a code location's tables."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import dagster as dg

from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import find_table
from lakehouse_assets.inputs.column_trace import LINEAGE
from lakehouse_assets.run.extension import Extension, RunHook, Shown
from lakehouse_assets.wire.code import SQL_FILE

if TYPE_CHECKING:
    from lakehouse_assets.commit.staged import StagedChunk
    from lakehouse_assets.extensions.sql.sql_step import SqlStep
    from lakehouse_assets.run.run import Run

logger = logging.getLogger(__name__)


class ColumnLineage(RunHook):
    """Shows from which columns of the inputs each column was computed."""

    name = "column_lineage"

    def __init__(self, step: SqlStep) -> None:
        self._query = step.query

    def shown(self, run: Run, forks: Sequence[StagedChunk]) -> Shown:
        """Returns Dagster's lineage; the inputs have the columns that they have now."""
        from lakehouse_assets.extensions.sql.lineage import column_lineage
        from lakehouse_assets.extensions.sql.tables import tables_read

        catalog = run.lakehouse.catalog()
        inputs = {name: find_table(catalog, name) for name in {read.identifier for read in tables_read(self._query)}}
        columns = {name: [field.name for field in table.schema().fields] for name, table in inputs.items() if table}
        own = {column.name.casefold(): column.name for column in run.table.columns}
        deps = {
            own[name.casefold()]: [dg.TableColumnDep(dg.AssetKey(table.split(".")), column) for table, column in found]
            for name, found in column_lineage(self._query, columns).items()
            if found is not None and name.casefold() in own
        }
        return Shown({LINEAGE: dg.TableColumnLineage(deps)})


class Sql(Extension):
    """Tables whose step is a SQL file."""

    def hooks(self, run: Run) -> Iterator[RunHook]:
        """Yields the lineage of a query's columns."""
        if SQL_FILE.fullmatch(run.table.step):
            from lakehouse_assets.extensions.sql.sql_step import SqlStep

            yield ColumnLineage(SqlStep(run.table.step))

    def problems(self, tables: Sequence[Table]) -> Iterator[str]:
        """Yields what is wrong with the tables' queries; logs what is probably not meant."""
        with_query = [table for table in tables if SQL_FILE.fullmatch(table.step)]
        if not with_query:
            return
        from lakehouse_assets.extensions.sql.check import Check
        from lakehouse_assets.extensions.sql.sql_step import SqlStep

        known = {table.identifier: table for table in tables}
        for table in with_query:
            step = SqlStep(table.step)
            check = Check(table, step.file, step.query, known)
            yield from (f"table {table.identifier!r}: {problem}" for problem in check.problems())
            for remark in check.remarks():
                logger.warning("table %r: %s", table.identifier, remark)

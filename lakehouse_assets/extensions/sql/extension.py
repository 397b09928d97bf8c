"""Steps in SQL files plug into the check of a code location's tables."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from lakehouse_assets.declare.table import Table
from lakehouse_assets.run.extension import Extension
from lakehouse_assets.wire.code import step_of

logger = logging.getLogger(__name__)


class Sql(Extension):
    """Tables whose step is a SQL file."""

    def problems(self, tables: Sequence[Table]) -> Iterator[str]:
        """Yields what is wrong with the tables' queries; logs what is probably not meant."""
        if not any(table.step.endswith(".sql") for table in tables):
            return
        from lakehouse_assets.extensions.sql.check import Check
        from lakehouse_assets.extensions.sql.sql_step import SqlStep

        known = {table.identifier: table for table in tables}
        for table in tables:
            step = step_of(table.step)
            if isinstance(step, SqlStep):
                check = Check(table, step.file, step.query, known)
                yield from (f"table {table.identifier!r}: {problem}" for problem in check.problems())
                for remark in check.remarks():
                    logger.warning("table %r: %s", table.identifier, remark)

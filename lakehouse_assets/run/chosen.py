"""Looks up the tables that a job's config names. What the job does with them is its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import dagster as dg

from lakehouse_assets.declare.table import Table


def chosen_tables(identifiers: Collection[str], tables: Sequence[Table]) -> list[Table]:
    """Returns the tables with these identifiers; all where none is named. Raises Failure for an undeclared one."""
    known = {table.identifier: table for table in tables}
    if unknown := sorted(set(identifiers) - known.keys()):
        text = f"unknown tables: {', '.join(unknown)}; declared are {', '.join(known)}"
        raise dg.Failure(text, allow_retries=False)
    return [table for name, table in known.items() if name in identifiers or not identifiers]

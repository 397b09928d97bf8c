"""From which columns of its inputs a query computes each column of its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lakehouse_assets.environment.catalog_in_spark import LAKE
from lakehouse_assets.extensions.sql.query import DIALECT, Query
from lakehouse_assets.extensions.sql.tables import changes_of, sqlglot_schema, tables_read
from lakehouse_assets.step.window import CHANGE_TYPE

if TYPE_CHECKING:
    from sqlglot.lineage import Node

Origin = tuple[str, str]
"""A table's identifier and a column."""


def column_lineage(query: Query, columns: Mapping[str, Sequence[str]]) -> dict[str, list[Origin] | None]:
    """Returns the origins of each column of a query's result, sorted; None if they can't be known.

    Columns of conditions and joins are no origins: they decide which rows there are, not their values. columns: those
    of the tables that are known, by identifier; an unknown one makes ``*`` and columns without a table unknown.
    """
    from sqlglot import exp
    from sqlglot.errors import SqlglotError
    from sqlglot.lineage import lineage

    read = {one.identifier for one in tables_read(query)} & columns.keys()
    schema = sqlglot_schema({identifier: (*columns[identifier], CHANGE_TYPE) for identifier in read})
    tree = query.tree.copy()
    for node in [*changes_of(tree)]:
        table = exp.to_table(node.this.expressions[0].name, dialect=DIALECT)
        table.set("alias", node.args.get("alias"))
        node.replace(table)
    try:
        nodes = lineage(None, tree, schema, dialect=DIALECT)
    except SqlglotError:
        return {}
    return {name: _origins(node) for name, node in nodes.items()}


def _origins(column: Node) -> list[Origin] | None:
    from sqlglot import exp

    found = set()
    for leaf in column.walk():
        if isinstance(leaf.expression, exp.Placeholder):  # stands for a column whose table is not known
            return None
        if leaf.downstream or not isinstance(leaf.expression, exp.Table):
            continue
        catalog, *table = (part.name for part in leaf.expression.parts)
        name = leaf.name.rpartition(".")[2].strip('`"')
        if catalog != LAKE or name == "*":
            return None
        if name != CHANGE_TYPE:
            found.add((".".join(table), name))
    return sorted(found)

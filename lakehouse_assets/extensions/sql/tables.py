"""The tables of the lake that a query reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakehouse_assets.environment.catalog_in_spark import LAKE
from lakehouse_assets.extensions.sql.query import CHANGES, Query
from lakehouse_assets.wire.work import table_and_ref

if TYPE_CHECKING:
    from sqlglot.expressions import Expr

FORMATS = ("avro", "binaryFile", "csv", "json", "orc", "parquet", "text")
"""Sources in Spark's ``SELECT … FROM parquet.`s3://…```."""
METADATA_TABLES = {
    *("all_data_files", "all_delete_files", "all_entries", "all_files", "all_manifests", "data_files", "delete_files"),
    *("entries", "files", "history", "manifests", "metadata_log_entries", "partitions", "position_deletes", "refs"),
    "snapshots",
}
"""Iceberg's own tables of a table: https://iceberg.apache.org/docs/latest/spark-queries/#inspecting-tables."""


@dataclass(frozen=True)
class TableRead:
    """A table of the lake in a query."""

    name: str
    """Without the catalog, as in Table.reads: ``nyc.flights``, perhaps with a tag or branch."""
    identifier: str
    """``nyc.flights``."""
    node: Any
    """sqlglot's, also of changes()."""
    offset: int | None
    """Where its name begins."""
    of_changes: bool = False
    """Whether changes() reads it."""
    of_metadata: bool = False
    """Whether it is one of METADATA_TABLES, with columns of its own."""

    @property
    def end(self) -> int:
        """The offset behind its name."""
        ends: list[int] = [part.meta["end"] for part in self.node.parts]
        return max(ends) + 1


def tables_read(query: Query, *, lake_by_default: bool = False) -> list[TableRead]:
    """Returns the tables of the lake that a query reads, each time, in the order of the text.

    lake_by_default: whether ``nyc.flights`` is a table of the lake, too.
    """
    found = [_read_by_changes(node) for node in changes_of(query.tree)]
    for node, parts in named_tables(query):
        if lake_by_default and parts[0] != LAKE and len(parts) > 1 and parts[0] not in FORMATS:
            parts = [LAKE, *parts]
        if parts[0] == LAKE and len(parts) > 2:
            found.append(_table_read(node, parts))
    return sorted(found, key=lambda read: read.offset or 0)


def _table_read(node: Expr, parts: list[str]) -> TableRead:
    of_metadata = len(parts) > 3 and parts[-1].lower() in METADATA_TABLES
    name = ".".join(parts[1:-1] if of_metadata else parts[1:])
    return TableRead(name, table_and_ref(name)[0], node, offset_of(node), of_metadata=of_metadata)


def _read_by_changes(node: Expr) -> TableRead:
    name = node.this.expressions[0].name.removeprefix(f"{LAKE}.")
    return TableRead(name, table_and_ref(name)[0], node, node.this.meta.get("start"), of_changes=True)


def changes_of(tree: Expr) -> Iterator[Expr]:
    """Yields the tables that are calls of changes()."""
    from sqlglot import exp

    for node in tree.find_all(exp.Table):
        call = node.this
        if isinstance(call, exp.Anonymous) and call.name.lower() == CHANGES and len(call.expressions) == 1:
            yield node


def named_tables(query: Query) -> Iterator[tuple[Expr, list[str]]]:
    """Yields the tables that are no common table expressions, and their names' parts."""
    from sqlglot import exp

    seen = set()
    for scope in query.scopes:
        for source in scope.sources.values():
            if (
                isinstance(source, exp.Table)
                and isinstance(source.this, exp.Identifier | exp.Dot)
                and id(source) not in seen
            ):
                seen.add(id(source))
                yield source, [part.name for part in source.parts]


def offset_of(node: Expr) -> int | None:
    """Returns where a node's first name begins."""
    from sqlglot import exp

    starts = [one.meta["start"] for one in node.find_all(exp.Identifier) if "start" in one.meta]
    return min(starts, default=None)


def sqlglot_schema(columns: Mapping[str, Iterable[str]]) -> dict[str, object]:
    """Returns tables of the lake, with the columns that they have by identifier, as sqlglot's optimizer takes them."""
    schema: dict[str, dict[str, dict[str, str]]] = {}
    for identifier, names in columns.items():
        namespace, _, table = identifier.rpartition(".")
        schema.setdefault(namespace, {})[table] = dict.fromkeys(names, "unknown")
    return {LAKE: schema} if schema else {}

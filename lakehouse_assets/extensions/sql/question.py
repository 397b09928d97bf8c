"""What a person asks the lake in SQL, and the answer, as files in a folder that a worker reads and writes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from lakehouse_assets.environment.catalog import find_table, with_retries
from lakehouse_assets.environment.catalog_in_spark import LAKE
from lakehouse_assets.errors import LakehouseError
from lakehouse_assets.extensions.sql.query import QueryError, parse, place_in
from lakehouse_assets.extensions.sql.tables import TableRead, tables_read
from lakehouse_assets.time_text import shown_time
from lakehouse_assets.wire.work import MAIN, Durable, table_and_ref

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

FOLDER = "SQL_QUESTION"
"""The variable that names the folder to the worker."""


@dataclass(frozen=True)
class Question(Durable):
    """A query on the lake."""

    FILE: ClassVar[str] = "question.json"

    text: str
    """One SELECT."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """Its tables: identifier → metadata file."""
    limit: int = 0
    """The most rows of the answer; one more tells that there are more."""
    output: str | None = None
    """The file for all rows, instead of the answer's."""


@dataclass(frozen=True)
class Answer(Durable):
    """The end of a query."""

    FILE: ClassVar[str] = "answer.json"
    ROWS: ClassVar[str] = "rows.arrow"

    failure: str | None = None
    """Why there are no rows."""


def asked(
    text: str, catalog: Catalog, snapshots: Mapping[str, int] | None = None, at: datetime | None = None
) -> Question:
    """Returns the question that a text asks the catalog.

    snapshots: the tables of a release, by identifier. at: a time at which the tables are read. Raises LakehouseError
    for what is not one query, for unknown tables, and for tables without a snapshot then.
    """
    try:
        query = parse(text)
        reads = tables_read(query, lake_by_default=True)
        starts = [one.start for one in query.parameters] + [one.start for one in query.changes]
        if starts:
            raise QueryError("only the query of a step has parameters and changes()", min(starts))
    except QueryError as error:
        place = place_in(text, error.offset)
        raise LakehouseError(f"{place and f'{place}: '}{error.problem}") from None
    tables = {name: _found(catalog, name) for name in dict.fromkeys(read.identifier for read in reads)}
    body = query.body
    for read in reversed(reads):
        if (version := _version(read, tables[read.identifier], snapshots, at)) is not None:
            body = f"{body[: read.end]} VERSION AS OF {version}{body[read.end :]}"
    return Question(body, {name: table.metadata_location for name, table in tables.items()})


def _found(catalog: Catalog, identifier: str) -> Table:
    found = with_retries(lambda: find_table(catalog, identifier))
    if found is not None:
        return found
    namespace = identifier.rpartition(".")[0]
    known = [".".join(name) for name in catalog.list_tables(namespace)] if catalog.namespace_exists(namespace) else []
    near = difflib.get_close_matches(identifier, known) or known
    hint = f"; {namespace} has {', '.join(near)}" if near else f"; there is no table in {namespace}"
    raise LakehouseError(f"there is no table {LAKE}.{identifier}{hint}")


def _version(read: TableRead, table: Table, snapshots: Mapping[str, int] | None, at: datetime | None) -> int | None:
    """Returns the snapshot to read; None for what the query itself says."""
    if table_and_ref(read.name)[1] != MAIN or read.node.args.get("version"):
        return None
    if snapshots is not None:
        if read.identifier not in snapshots:
            raise LakehouseError(f"{read.identifier} is not in the release, which has {', '.join(sorted(snapshots))}")
        return snapshots[read.identifier]
    if at is None:
        return None
    found = table.snapshot_as_of_timestamp(int(at.timestamp() * 1000))
    if found is None:
        raise LakehouseError(f"{read.identifier} has no snapshot of {shown_time(at)}: it is younger, or it expired")
    return found.snapshot_id

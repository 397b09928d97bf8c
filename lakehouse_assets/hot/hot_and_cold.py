"""Reads a table and the part of its source that is not moved yet as one: no row twice, none missing.

The order of the steps is what makes it right (docs/why.md). How rows are moved is run/'s.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from lakehouse_assets.commit.positions import read_on
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake, with_retries
from lakehouse_assets.environment.catalog_translation import LAKE
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.errors import DeclarationError, SourceLost, SourceUnreachable, TooMuchHot
from lakehouse_assets.protocol.read_on import ReadOn
from lakehouse_assets.sources.offsets import Offsets
from lakehouse_assets.sources.postgres import DELETED
from lakehouse_assets.sources.row_source import RowSource
from lakehouse_assets.step.move import MOVE

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    from duckdb import DuckDBPyConnection
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table as IcebergTable
    from pyspark.sql import DataFrame, SparkSession  # noqa: TID251  types only

MOST_HOT = 1_000_000
"""How many rows of a source a reader takes by default."""
TRIES, LONGEST_WAIT_SECONDS = 10, 2.0
"""How often a read is begun again where a source does not answer or was purged meanwhile, and the longest wait."""


@dataclass(frozen=True)
class HotAndCold:
    """A table as it is with what its source holds beside it, read once: whatever is written later is not in it."""

    declared: Table
    cold: IcebergTable | None = field(repr=False)
    """The table as it was loaded; None where it does not exist yet."""
    snapshot_id: int | None
    """The snapshot that is read of it; None where it has none."""
    position: Offsets | None
    """How far the source was moved into this snapshot; None where it was not."""
    hot: pa.Table = field(repr=False)
    """The source's rows from there on, with the table's columns; deleted ones are left out."""
    shadowed: pa.Table | None = field(repr=False)
    """The keys, deleted ones too, whose rows in the table are older than hot's; None where rows are only added."""
    columns: Sequence[str]
    where: str

    def polars(self) -> pl.LazyFrame:
        """Returns all rows as a lazy frame of Polars, whose filters and projections reach the table's files."""
        import polars as pl

        hot = pl.DataFrame(self.hot).lazy()
        both = hot
        if self.cold is not None and self.snapshot_id is not None:
            cold = pl.scan_iceberg(self.cold, snapshot_id=self.snapshot_id)
            cold = cold.select(
                pl.col(name) if kind == found else pl.col(name).cast(kind) if found else pl.lit(None, kind).alias(name)
                for name, kind, found in _types(hot.collect_schema(), cold.collect_schema())
            )
            if self.shadowed is not None:
                cold = cold.join(pl.DataFrame(self.shadowed).lazy(), on=self.shadowed.column_names, how="anti")
            both = pl.concat([cold, hot])
        if self.where:
            both = both.filter(pl.sql_expr(self.where))
        return both.select(self.columns)

    def duckdb(self, connection: DuckDBPyConnection, name: str) -> None:
        """Registers all rows under a name: those of the table are read now, with this read's columns and condition."""
        connection.register(name, self.polars().collect().to_arrow())

    def spark(self, session: SparkSession, name: str) -> DataFrame:
        """Returns all rows as a frame of Spark, and makes it a temporary view of that name.

        session: one that has the same catalog, under the name ``lake``.
        """
        from pyspark.sql import functions as F  # noqa: TID251  the reader has brought a session
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: TID251

        hot = session.createDataFrame(self.hot, from_arrow_schema(self.hot.schema))
        both = hot
        if self.cold is not None and self.snapshot_id is not None:
            reader = session.read.option("versionAsOf", self.snapshot_id)
            cold = reader.table(f"{LAKE}.{self.declared.identifier}")
            has = set(cold.columns)
            cold = cold.select(
                *(
                    (F.col(one.name) if one.name in has else F.lit(None)).cast(one.dataType).alias(one.name)
                    for one in hot.schema
                )
            )
            if self.shadowed is not None:
                keys = session.createDataFrame(self.shadowed, from_arrow_schema(self.shadowed.schema))
                cold = cold.join(F.broadcast(keys), on=self.shadowed.column_names, how="left_anti").select(hot.columns)
            both = cold.unionByName(hot)
        both = (both.where(self.where) if self.where else both).select(*self.columns)
        both.createOrReplaceTempView(name)
        return both


def hot_and_cold(
    table: Table,
    *,
    columns: Sequence[str] = (),
    where: str = "",
    limit_hot: int = MOST_HOT,
    catalog: Catalog | None = None,
) -> HotAndCold:
    """Reads a table together with what its source holds that is not moved yet.

    table: as it is declared, with a source, and without a step of its own. columns: those to return; none for all.
    where: a condition in SQL. limit_hot: the most rows that are taken of the source. catalog: where the table is; None
    for the lake of this environment.

    Raises SourceLost where the source lacks rows that are not moved, SourceUnreachable, TooMuchHot, CatalogUnavailable,
    and DeclarationError for a table that can't be read so.

    Example:
        >>> from lakehouse_assets import Table, column, hot_and_cold
        >>> hot_and_cold(Table("shop.orders", [column("id", "int")], step="shop.steps:orders"))
        Traceback (most recent call last):
        lakehouse_assets.errors.DeclarationError: table shop.orders has no source: hot_and_cold() reads tables that do
    """
    source = _source(table)
    names = [column.name for column in table.schema.columns]
    if unknown := sorted({*columns} - {*names}):
        raise DeclarationError(
            f"table {table.identifier} has no column {', '.join(unknown)}; it has {', '.join(names)}"
        )
    opened = catalog or with_retries(lambda: load_lake(read_settings()))
    for tried in range(TRIES):
        cold = with_retries(lambda: _load(opened, table.identifier))
        try:
            position = _position(table, cold)
            rows = _hot(table, source, position, limit_hot)
        except (SourceLost, SourceUnreachable) as error:
            # What was purged meanwhile is in a later snapshot: with the same one, it is lost.
            is_lost = isinstance(error, SourceLost) and _snapshot(
                with_retries(lambda: _load(opened, table.identifier))
            ) == _snapshot(cold)
            if is_lost or tried + 1 == TRIES:
                raise
            time.sleep(min(LONGEST_WAIT_SECONDS, 0.05 * 2**tried))
            continue
        hot, shadowed = _of_reader(rows, table)
        return HotAndCold(table, cold, _snapshot(cold), position, hot, shadowed, tuple(columns) or names, where)
    raise AssertionError("the last try returns or raises")


def _source(table: Table) -> RowSource:
    if table.source is None:
        raise DeclarationError(f"table {table.identifier} has no source: hot_and_cold() reads tables that do")
    if table.step != MOVE:
        raise DeclarationError(
            f"table {table.identifier} has the step {table.step}, which may change its source's rows: hot_and_cold() "
            "reads tables without a step of their own"
        )
    return table.source


def _load(catalog: Catalog, identifier: str) -> IcebergTable | None:
    try:
        return catalog.load_table(identifier)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def _snapshot(cold: IcebergTable | None) -> int | None:
    return cold.metadata.current_snapshot_id if cold is not None else None


def _position(table: Table, cold: IcebergTable | None) -> Offsets | None:
    """Returns how far the source was moved into the loaded snapshot. Raises SourceLost where that can't be known."""
    assert table.source is not None
    known = read_on(cold.metadata) if cold is not None else ReadOn()
    if why := known.unknown.get(table.source.name):
        raise SourceLost(
            f"table {table.identifier}: how far {table.source.name} was moved can't be known: {why}. Read the table "
            "without its source, or roll it to a snapshot that says"
        )
    return known.offsets(table.source.name)


def _hot(table: Table, source: RowSource, position: Offsets | None, limit: int) -> pa.Table:
    """Returns what the source holds from the position on, and proves that none of it was missing."""
    import pyarrow as pa

    state = source.state()
    if problem := state.problem(source.name, position):
        raise SourceLost(_advised(table, problem))
    begin = state.begin(position)
    schema, batches, rows = hot_schema(table), list[Any](), 0
    for split in source.visible(state, begin):
        for batch in source.read(split, schema, limit - rows + 1):
            batches.append(batch)
            rows += batch.num_rows
            if rows > limit:
                raise TooMuchHot(
                    f"{source.name} holds more than {limit:,} rows that are not moved into {table.identifier}: "
                    f"materialize {table.key.to_user_string()}, or raise limit_hot"
                )
    try:
        source.prove(begin)  # after the rows were read: else what was purged in between is missed
    except SourceLost as error:
        raise SourceLost(_advised(table, str(error))) from error
    return pa.Table.from_batches(batches, schema)


def hot_schema(table: Table) -> pa.Schema:
    """Returns the columns of a table's source as Arrow has them, all of which may be null."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    plain = schema_to_pyarrow(table.schema, include_field_ids=False)
    more = [pa.field(DELETED, pa.bool_())] if table.write_mode.match_on else []
    return pa.schema([*(pa.field(one.name, one.type) for one in plain), *more])


def _advised(table: Table, problem: str) -> str:
    return (
        f"table {table.identifier} can't be read as one with its source: {problem}. Read the table alone, and see what "
        f"its next run says of the source"
    )


def _of_reader(rows: pa.Table, table: Table) -> tuple[pa.Table, pa.Table | None]:
    """Returns the rows that a reader gets, and the keys that they shadow in the table."""
    import pyarrow.compute as pc

    if not (keys := table.write_mode.match_on):
        return rows, None
    return rows.filter(pc.invert(rows[DELETED])).drop_columns([DELETED]), rows.select([*keys])


def _types(wanted: Any, found: Any) -> list[tuple[str, Any, Any]]:
    return [(name, kind, found.get(name)) for name, kind in wanted.items()]

"""Reads a table and its source as one; the order of the steps makes it correct (docs/why.md).

*Cold* rows are the table's; *hot* ones are the source's after the position that the table's snapshot records.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakehouse_assets.commit.positions import positions_of
from lakehouse_assets.declare.row_source import DELETED, Offsets, RowSource, Split
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import find_table, load_lake, with_retries
from lakehouse_assets.environment.catalog_in_spark import LAKE
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.errors import DeclarationError, SourceLost, SourceUnreachable, TooMuchHot
from lakehouse_assets.extensions.sources.source_range import offsets
from lakehouse_assets.step.window import MOVE
from lakehouse_assets.wire.work import ReadOn

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    from duckdb import DuckDBPyConnection
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table as IcebergTable
    from pyspark.sql import DataFrame, SparkSession  # noqa: TID251  types only


@dataclass(frozen=True)
class HotRows:
    """Rows of a source from a position on, by the split that they were read with.

    Examples:
        >>> HotRows("Zk3X", {Split(0, 0, 5): None, Split(0, 5, 9): None}).splits_of(Split(0, 3, 12))
        [Split(partition=0, begin=3, end=5), Split(partition=0, begin=5, end=9), Split(partition=0, begin=9, end=12)]
    """

    identity: str = ""
    """The source's, as in Offsets."""
    by_split: Mapping[Split, pa.Table] = field(default_factory=dict)

    def kept(self, identity: str) -> HotRows:
        """Returns the rows in splits with an end, as these can't change; no rows if the source has another identity."""
        if identity != self.identity:
            return HotRows()
        return HotRows(identity, {split: rows for split, rows in self.by_split.items() if split.end is not None})

    def splits_of(self, split: Split) -> list[Split]:
        """Cuts a split at the ends of those already read, so that those inside it need not be read again."""
        if split.end is None:
            return [split]
        divided, begin = list[Split](), split.begin
        for known in sorted(self.by_split, key=lambda one: one.begin):
            if known.partition == split.partition and known.end is not None and begin < known.end <= split.end:
                divided.append(Split(split.partition, begin, known.end))
                begin = known.end
        return [*divided, *([Split(split.partition, begin, split.end)] if begin < split.end else [])]

    def to_arrow(self, schema: pa.Schema) -> pa.Table:
        """Returns all rows as one table with this schema; missing columns are null."""
        import pyarrow as pa

        return pa.concat_tables([schema.empty_table(), *self.by_split.values()], promote_options="default")


def moved_to(table: Table, cold: IcebergTable | None) -> Offsets | None:
    """Returns how far the source was moved into the table; None if nothing was. Raises SourceLost if unknown."""
    assert table.source is not None
    known = positions_of(cold.metadata) if cold is not None else ReadOn()
    if why := known.unknown.get(table.source.name):
        raise SourceLost(_advised(table, f"it is unknown how far {table.source.name} was moved: {why}"))
    return offsets(known, table.source.name)


def read_hot(table: Table, cold: IcebergTable | None, position: Offsets | None, limit: int, before: HotRows) -> HotRows:
    """Returns the rows of a table's source from a position on, and proves that none is missing.

    Leaves out a declared column that neither the table nor the source has. If only the table has it, raises SourceLost:
    the source's nulls would hide its values. before: the rows of an earlier read, to be used again. Raises SourceLost,
    SourceUnreachable, TooMuchHot and BadValue.
    """
    source = table.source
    assert source is not None
    state = source.state(position)
    if problem := state.problem(source.name, position):
        raise SourceLost(_advised(table, problem))
    begin = state.begin(position)
    known = before.kept(state.identity)
    lacking = source.lacking([column.name for column in table.schema.columns])
    if gone := sorted({*lacking} & {*cold.schema().column_names}) if cold is not None else []:
        raise SourceLost(_advised(table, f"{source.name} has no column {', '.join(gone)}, which the table has"))
    schema, rows = hot_schema(table), 0
    for name in lacking:
        schema = schema.remove(schema.get_field_index(name))
    found: dict[Split, pa.Table] = {}
    for split in (part for whole in source.visible(state, begin) for part in known.splits_of(whole)):
        if split in known.by_split:
            found[split] = known.by_split[split]
        else:
            # One more than the limit allows, to find out that there are more.
            found[split] = _read(source, split, schema, limit - rows + 1)
        rows += found[split].num_rows
        if rows > limit:
            raise TooMuchHot(
                f"{source.name} has more than {limit:,} rows that have not been moved into {table.identifier}: "
                f"materialize {table.key.to_user_string()}, or raise limit_hot"
            )
    try:
        # Not before the rows are read: a purge in between would go unnoticed.
        source.prove(begin)
    except SourceLost as error:
        raise SourceLost(_advised(table, str(error))) from error
    return HotRows(state.identity, found)


def hot_schema(table: Table) -> pa.Schema:
    """Returns the source's columns as nullable Arrow fields of PySpark's types, as workers do."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    assert table.source is not None
    plain = schema_to_pyarrow(table.schema, include_field_ids=False)
    more = [pa.field(DELETED, pa.bool_())] if table.source.marks_deleted else []
    return pa.schema([*(pa.field(one.name, _small(one.type)) for one in plain), *more])


def _small(kind: pa.DataType) -> pa.DataType:
    """Returns a type without the 64-bit offsets of PyIceberg's types: Arrow (26) reads no large lists from JSON."""
    import pyarrow as pa

    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _small(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_small(kind.key_type), _small(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _small(one.type)) for one in kind])
    return kind


def _read(source: RowSource, split: Split, schema: pa.Schema, limit: int) -> pa.Table:
    """Returns a split's rows; stops after the batch that reaches ``limit``."""
    import pyarrow as pa

    batches: list[pa.RecordBatch] = []
    rows = 0
    for batch in source.read(split, schema, limit):
        batches.append(batch)
        rows += batch.num_rows
        if rows >= limit:
            break
    return pa.Table.from_batches(batches, schema)


def _advised(table: Table, problem: str) -> str:
    return (
        f"table {table.identifier} can't be read together with its source: {problem}. Read only the table, and check "
        "what its next run reports about the source"
    )


MOST_HOT = 1_000_000
"""The default of ``limit_hot``."""
TRIES, LONGEST_WAIT_SECONDS = 10, 2.0
"""Reads of a source that is silent or purged meanwhile, and the longest wait between them."""
UNREACHABLE_SECONDS = 30.0
"""How long a source that can't be reached is tried again."""


@dataclass(frozen=True)
class HotAndCold:
    """A table and its source's unmoved rows, read once: later writes are not in it."""

    declared: Table
    cold: IcebergTable | None = field(repr=False)
    snapshot_id: int | None
    """The table's snapshot; None if it has none yet."""
    position: Offsets | None
    """The source's position in that snapshot; None if no run has moved rows."""
    hot: pa.Table = field(repr=False)
    """The source's undeleted rows after ``position``, with the table's columns."""
    shadowed: pa.Table | None = field(repr=False)
    """Keys whose rows in the table are outdated, as the source updated or deleted them; None if rows are only added."""
    columns: Sequence[str]
    where: str
    limit_hot: int
    """As for hot_and_cold(), like ``columns`` and ``where``."""
    catalog: Catalog = field(repr=False)
    rows: HotRows = field(repr=False)
    """For again(), which reads only what is new."""

    def again(self) -> HotAndCold:
        """Reads the current state; of a topic, only new records. Raises as hot_and_cold()."""
        return _read_as_one(self.declared, self.columns, self.where, self.limit_hot, self.catalog, self.rows)

    def polars(self) -> pl.LazyFrame:
        """Returns a lazy frame, whose filters and projections reach the table's files.

        Raises DeclarationError for a condition that Polars can't use.
        """
        import polars as pl

        hot = pl.DataFrame(self.hot).lazy()
        both = hot
        if self.cold is not None and self.snapshot_id is not None:
            cold = pl.scan_iceberg(self.cold, snapshot_id=self.snapshot_id)
            # A column of another type is cast; one that the table does not have yet is null.
            cold = cold.select(
                pl.col(name) if kind == found else pl.col(name).cast(kind) if found else pl.lit(None, kind).alias(name)
                for name, kind, found in _types(hot.collect_schema(), cold.collect_schema())
            )
            if self.shadowed is not None:
                cold = cold.join(pl.DataFrame(self.shadowed).lazy(), on=self.shadowed.column_names, how="anti")
            both = pl.concat([cold, hot])
        if self.where:
            try:
                condition = pl.sql_expr(self.where)
                # On no rows, so that a condition that can't be used fails here.
                both.collect_schema().to_frame().filter(condition)
            except pl.exceptions.PolarsError as error:
                raise self._unusable(str(error).strip().partition("\n")[0]) from error
            both = both.filter(condition)
        return both.select(self.columns)

    def _unusable(self, problem: str) -> DeclarationError:
        return DeclarationError(
            f"table {self.declared.identifier} can't be read with the condition {self.where}: {problem}. Compare a "
            "timestamptz with TIMESTAMPTZ '2026-01-31 00:00:00+01:00', a timestamp with TIMESTAMP '2026-01-31 "
            "00:00:00', and a date with DATE '2026-01-31'; compute times that depend on the current time in Python"
        )

    def duckdb(self, connection: DuckDBPyConnection, name: str) -> None:
        """Registers all rows, with this read's columns and condition. Reads the table's files now, into memory."""
        connection.register(name, self.polars().collect().to_arrow())

    def spark(self, session: SparkSession, name: str) -> DataFrame:
        """Returns all rows, also as a temporary view. session: with the same ``lake``."""
        from pyspark.sql import functions as F  # noqa: TID251  the reader has brought a session
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: TID251

        # prefer_timestamp_ntz: a time without a zone must not get the session's.
        hot = session.createDataFrame(self.hot, from_arrow_schema(self.hot.schema, prefer_timestamp_ntz=True))
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
                schema = from_arrow_schema(self.shadowed.schema, prefer_timestamp_ntz=True)
                keys = session.createDataFrame(self.shadowed, schema)
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
    """Reads a table together with the rows of its source that are not moved yet.

    table: as declared, with a source and without its own step. columns: those to return; none for all. where: a
    condition in SQL, as Polars reads it, or Spark for ``spark()``. limit_hot: the most rows to take from the source.
    catalog: where the table is; None for the lake of this environment.

    Raises SourceLost if the source lacks rows that are not moved, SourceUnreachable, TooMuchHot, CatalogUnavailable,
    and DeclarationError for a table that can't be read this way.

    Examples:
        >>> from lakehouse_assets import Table, column, hot_and_cold
        >>> hot_and_cold(Table("shop.orders", [column("id", "int")], step="shop.steps:orders"))
        Traceback (most recent call last):
        lakehouse_assets.errors.DeclarationError: table shop.orders has no source, which hot_and_cold() needs
    """
    _check(table)
    names = [column.name for column in table.schema.columns]
    if unknown := sorted({*columns} - {*names}):
        raise DeclarationError(
            f"table {table.identifier} has no column {', '.join(unknown)}; it has {', '.join(names)}"
        )
    opened = catalog or with_retries(lambda: load_lake(read_settings()))
    return _read_as_one(table, tuple(columns) or names, where, limit_hot, opened, HotRows())


def _read_as_one(
    table: Table, columns: Sequence[str], where: str, limit_hot: int, catalog: Catalog, before: HotRows
) -> HotAndCold:
    """Reads the table first, then its source. If the source lacks rows after the table's snapshot, begins again.

    before: as for read_hot().
    """
    assert table.source is not None
    given_up_at = time.monotonic() + UNREACHABLE_SECONDS
    for tried in range(TRIES):
        cold = with_retries(lambda: find_table(catalog, table.identifier))
        try:
            position = moved_to(table, cold)
            rows = read_hot(table, cold, position, limit_hot, before)
        except (SourceLost, SourceUnreachable) as error:
            # Rows that were purged meanwhile are in a later snapshot. If there is none, they are lost.
            is_lost = isinstance(error, SourceLost) and _snapshot(
                with_retries(lambda: find_table(catalog, table.identifier))
            ) == _snapshot(cold)
            is_away = isinstance(error, SourceUnreachable) and time.monotonic() > given_up_at
            if is_lost or is_away or tried + 1 == TRIES:
                raise
            time.sleep(min(LONGEST_WAIT_SECONDS, 0.05 * 2**tried))
            continue
        hot, shadowed = _of_reader(rows.to_arrow(hot_schema(table)), table)
        snapshot_id = _snapshot(cold)
        return HotAndCold(table, cold, snapshot_id, position, hot, shadowed, columns, where, limit_hot, catalog, rows)
    raise AssertionError("the last try returns or raises")


def _check(table: Table) -> None:
    if table.source is None:
        raise DeclarationError(f"table {table.identifier} has no source, which hot_and_cold() needs")
    if table.step != MOVE:
        raise DeclarationError(
            f"table {table.identifier} has the step {table.step}, which may change its source's rows: hot_and_cold() "
            "reads only tables without a step"
        )


def _snapshot(cold: IcebergTable | None) -> int | None:
    return cold.metadata.current_snapshot_id if cold is not None else None


def _of_reader(rows: pa.Table, table: Table) -> tuple[pa.Table, pa.Table | None]:
    """Returns HotAndCold.hot and .shadowed."""
    import pyarrow.compute as pc

    if not (keys := table.write_mode.match_on):
        return rows, None
    return rows.filter(pc.invert(pc.fill_null(rows[DELETED], False))).drop_columns([DELETED]), rows.select([*keys])


def _types(wanted: Any, found: Any) -> list[tuple[str, Any, Any]]:
    """Returns the name, the wanted type and the found type of each wanted column; None for a type that is missing."""
    return [(name, kind, found.get(name)) for name, kind in wanted.items()]

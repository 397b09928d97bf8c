"""The changes of a merge: one for each key, the latest, and which values of the table's columns they can meet.
Nothing is read of the table or written to it here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row, Window, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lakehouse_assets.protocol.merging import Bound, MergeWork
from lakehouse_assets.worker import row_checks
from lakehouse_assets.worker.private_fork import literal

BOUNDED = (StringType, IntegerType, LongType, DateType, DecimalType, BooleanType, TimestampType)
"""Types whose values have one spelling in Spark and in Iceberg."""
LISTED = 200
"""Up to so many values are named one by one: as many as Iceberg compares with a file's bounds (its metrics evaluator's
IN_PREDICATE_LIMIT)."""
SHOWN = 5
DELETES, RETURNED, OTHER = "#deletes", "#returned", "#other"
"""Columns beside the table's, with names that no table has: whether a change deletes; how many rows of its key the step
returned; whether it differs from the first change of its key, which is never asked of rows that are only inserted."""


class ChangesError(RuntimeError):
    """The changes do not say what should become of each key."""


def extra_columns(work: MergeWork, found: Iterable[str]) -> set[str]:
    """Those of the columns that the merge itself reads, by their names in its options."""
    return {name for name in found if re.search(rf"\b{re.escape(name)}\b", f"{work.delete_when} {work.order_by}", re.I)}


def keys_as_stored(rows: DataFrame, target: StructType, keys: Sequence[str], table: str) -> DataFrame:
    """The rows with their keys of the table's types: so they are compared with the table's. All else stays as the step
    returned it, as order_by and delete_when read it. target: of the columns that rows have.

    Raises ChangesError for a key of a type that takes several values for one.
    """
    for key in keys:
        given, stored = rows.schema[key].dataType, target[key].dataType
        if not _keeps_apart(given, stored):
            raise ChangesError(
                f"table {table}: the key {key} is of type {given.simpleString()} in the step's rows and "
                f"{stored.simpleString()} in the table, which may take different values for one: cast it in the step"
            )
    return as_stored(rows, StructType([target[key] for key in keys]))


def as_stored(changes: DataFrame, target: StructType) -> DataFrame:
    """The changes as the table will have them, in its types and with the parts of nested columns in its order: what is
    checked and compared is what would be stored. Columns beside the table's stay.

    Raises what Spark raises for values that can't be converted
    (https://spark.apache.org/docs/latest/sql-ref-ansi-compliance.html#store-assignment).
    """
    wanted = StructType()
    for field in changes.schema:
        stored = target[field.name].dataType if field.name in target.names else field.dataType
        wanted.add(field.name, _fitted(field.dataType, stored))
    alike = all(_nullable(field.dataType) == wanted[field.name].dataType for field in changes.schema)
    return changes if alike else changes.to(wanted)


def _keeps_apart(given: DataType, stored: DataType) -> bool:
    """Whether values that differ are stored as values that differ, or fail."""
    whole = (ByteType, ShortType, IntegerType, LongType)
    match given, stored:
        case DecimalType(), DecimalType():
            return stored.scale >= given.scale
        case DecimalType(), _ if isinstance(stored, whole):
            return given.scale == 0
        case _, DecimalType() if isinstance(given, whole):
            return True
        case (FloatType(), DoubleType()) | (NullType(), _):
            return True
    return given == stored or (isinstance(given, whole) and isinstance(stored, whole))


def _fitted(given: DataType, stored: DataType) -> DataType:
    """The stored type, but for a column with other parts than the table's: DataFrame.to() would leave parts out."""
    match given, stored:
        case StructType(), StructType():
            if sorted(given.names) != sorted(stored.names):
                return _nullable(given)
            return StructType([StructField(p.name, _fitted(given[p.name].dataType, p.dataType)) for p in stored])
        case ArrayType(), ArrayType():
            return ArrayType(_fitted(given.elementType, stored.elementType))
        case MapType(), MapType():
            return MapType(_fitted(given.keyType, stored.keyType), _fitted(given.valueType, stored.valueType))
    return _nullable(stored)


def _nullable(of: DataType) -> DataType:
    """The type with parts that may all be null: DataFrame.to() refuses a struct that may be null with a part that may
    not. What the table's own parts may be, the MERGE looks at."""
    match of:
        case StructType():
            return StructType([StructField(part.name, _nullable(part.dataType)) for part in of])
        case ArrayType():
            return ArrayType(_nullable(of.elementType))
        case MapType():
            return MapType(_nullable(of.keyType), _nullable(of.valueType))
    return of


def latest(rows: DataFrame, work: MergeWork) -> DataFrame:
    """One row for each key where the rows agree: of several the latest, and of rows that are the same one. With
    DELETES, RETURNED and OTHER. Of those that delete only the keys have values: no others need fit the table.

    The rows are moved and sorted once, by key: comparing each with the first of its key takes less than grouping all by
    all columns.
    """
    order = _column(work.order_by).desc_nulls_last() if work.order_by else F.lit(0)
    newest = Window.partitionBy(*map(_column, work.keys)).orderBy(order)
    of_key = newest.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    numbered = rows.withColumns(
        {
            "#rank": F.rank().over(newest),
            "#number": F.row_number().over(newest),
            OTHER: F.lit(False) if work.only_inserts else ~_same_as_first(rows, newest),
            # Counted here, so that the step's rows need not be kept to be counted once more.
            RETURNED: F.count("*").over(of_key),
        }
    )
    first = numbered.where(f"`#number` = 1 OR `#rank` = 1 AND `{OTHER}`").drop("#rank", "#number")
    if not work.delete_when:
        return first.withColumn(DELETES, F.lit(False))
    told = f"delete_when ({work.delete_when})"
    changes = first.withColumn(
        DELETES, row_checks.condition(first, told, lambda: row_checks.sql(work.delete_when), otherwise=False)
    )
    kept = {*work.keys, DELETES, RETURNED, OTHER}
    columns = ((name, _column(name)) for name in changes.columns)
    return changes.select(*(c if name in kept else F.when(~_column(DELETES), c).alias(name) for name, c in columns))


def _same_as_first(rows: DataFrame, newest: WindowSpec) -> Column:
    """Whether a row is the same as the first of its key. Rows with maps can't be compared, and count as different."""
    if has_map(rows.schema):
        return F.row_number().over(newest) == 1
    row = F.struct(*map(_column, rows.columns))
    return row.eqNullSafe(F.first(row).over(newest))


@dataclass(frozen=True)
class Facts:
    """What is counted of the changes. rows: how many. returned: rows of the step, right where each key has one change.
    without_key: those with a null in the key. others: those that are not the same as the first of their key. deletes:
    those that delete. row: the aggregates of each bounded column."""

    rows: int
    returned: int
    without_key: int
    others: int
    deletes: int
    row: Row

    @classmethod
    def of(cls, changes: DataFrame, keys: Sequence[str]) -> Facts:
        """changes: as latest() gives."""
        bounded = bounded_types(changes.schema, keys)
        row = changes.agg(
            F.count("*").alias("rows"),
            F.coalesce(F.sum(_column(RETURNED)), F.lit(0)).alias("returned"),
            F.count_if(F.expr(" OR ".join(f"`{name}` IS NULL" for name in keys))).alias("without_key"),
            F.count_if(_column(OTHER)).alias("others"),
            F.count_if(_column(DELETES)).alias("deletes"),
            *(agg for n, (name, of) in enumerate(bounded.items()) for agg in _aggregates(n, name, of)),
        ).first()
        assert row is not None
        return cls(row.rows, row.returned, row.without_key, row.others, row.deletes, row)


def refuse_unclear(changes: DataFrame, facts: Facts, work: MergeWork, table: str) -> None:
    """Raise ChangesError for a key that is null, or that several of the changes have."""
    if facts.without_key:
        null = " OR ".join(f"`{name}` IS NULL" for name in work.keys)
        found = changes.where(null).select(*work.keys).limit(SHOWN).collect()
        raise ChangesError(
            f"table {table}: {facts.without_key} changes have no key, such as {_shown(found)}; expected values in "
            f"{', '.join(work.keys)}. Filter or mend these rows in the step"
        )
    if facts.others:
        several = changes.groupBy(*work.keys).agg(F.count("*").alias("#rows")).where("`#rows` > 1").drop("#rows")
        found = several.limit(SHOWN).collect()
        late = f"that are equally late by {work.order_by}"
        why = late if work.order_by else "and no order_by that says which is later"
        raise ChangesError(
            f"table {table}: some keys have several changes {why}, such as {_shown(found)}. Return one row for each "
            "key, or declare Merge(order_by=…) by a column that tells them apart"
        )


def bounds(changes: DataFrame, facts: Facts, columns: Sequence[str]) -> tuple[Bound, ...]:
    """The values of these columns. Left out are columns whose values Spark and Iceberg may spell differently."""
    bounded = bounded_types(changes.schema, columns)
    # The numbers are estimates.
    few = {n: name for n, name in enumerate(bounded) if facts.row[f"about{n}"] <= 2 * LISTED}
    sets = [F.collect_set(_spelled(_column(name), bounded[name])).alias(f"set{n}") for n, name in few.items()]
    listed = changes.agg(*sets).first() if sets else None
    found = []
    for n, name in enumerate(bounded):
        values = listed[f"set{n}"] if listed and n in few else ()
        if 0 < len(values) <= LISTED:
            found.append(Bound(name, tuple(sorted(values))))
        else:
            found.append(Bound(name, (), facts.row[f"low{n}"], facts.row[f"high{n}"]))
    return tuple(found)


def bounded_types(changes: StructType, columns: Sequence[str]) -> dict[str, DataType]:
    """By their names, the types of those of the columns whose values Spark and Iceberg spell in one way."""
    types = {name: changes[name].dataType for name in columns}
    return {name: of for name, of in types.items() if isinstance(of, BOUNDED)}


def condition(bounds: Iterable[Bound], schema: StructType, alias: str) -> str:
    """The bounds as SQL over the table's columns, as literals: Iceberg reads them where files are planned."""
    parts = []
    for bound in bounds:
        name, of = f"{alias}.`{bound.column}`", schema[bound.column].dataType
        if bound.values:
            parts.append(f"{name} IN ({', '.join(_literal(value, of) for value in bound.values)})")
        else:
            parts.append(f"{name} BETWEEN {_literal(bound.low, of)} AND {_literal(bound.high, of)}")
    return " AND ".join(parts) or "true"


def _aggregates(n: int, name: str, of: DataType) -> tuple[Column, ...]:
    column = _column(name)
    low, high = (_spelled(end(column), of) for end in (F.min, F.max))
    return low.alias(f"low{n}"), high.alias(f"high{n}"), F.approx_count_distinct(column).alias(f"about{n}")


def _spelled(column: Column, of: DataType) -> Column:
    return (F.unix_micros(column) if isinstance(of, TimestampType) else column).cast("string")


def _literal(text: str, of: DataType) -> str:
    match of:
        case StringType():
            return literal(text)
        case DateType():
            return f"DATE'{text}'"
        case TimestampType():
            return f"timestamp_micros({text})"
        case LongType():
            return f"{text}L"
        case DecimalType():
            return f"{text}BD"
    return text


def has_map(of: DataType) -> bool:
    """Whether rows can't be compared, because a map is among their values."""
    match of:
        case MapType():
            return True
        case StructType():
            return any(has_map(field.dataType) for field in of.fields)
        case ArrayType():
            return has_map(of.elementType)
    return False


def _column(name: str) -> Column:
    return F.col(f"`{name}`")


def _shown(rows: Iterable[object]) -> str:
    return "; ".join(", ".join(f"{k}={v}" for k, v in row.asDict().items()) for row in rows)  # type: ignore[attr-defined]

"""Prepares the changes of a merge: the latest of each key, and bounds on the rows that they can match.

The *changes* are the step's rows. A *bound* is a range or a list of one key's values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Row, Window
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

from lakehouse_assets.wire.work import Bound, MergeWork
from lakehouse_assets.worker import row_checks
from lakehouse_assets.worker.session import literal

BOUNDED = (StringType, IntegerType, LongType, DateType, DecimalType, BooleanType, TimestampType)
"""The types that get bounds: Spark and Iceberg write their values as the same text."""
LISTED = 200
"""The most values that a condition lists. With more (its IN_PREDICATE_LIMIT), Iceberg's metrics evaluator skips no
file."""
# The most examples in a message.
SHOWN = 5
DELETES, RETURNED, OTHER = "#deletes", "#returned", "#other"
"""Extra columns: whether a change deletes; how many rows the step returned for the change's key; whether the change
differs from the first one of its key (false if rows are only inserted)."""


class ChangesError(RuntimeError):
    """The changes leave open what becomes of a key, or of a part of a column."""


def extra_columns(work: MergeWork, found: Iterable[str]) -> set[str]:
    """Returns the columns that delete_when or order_by names; the table may lack them."""
    # Not \b: before a name such as @at there is no word boundary.
    text = f"{work.delete_when} {work.order_by}"
    return {name for name in found if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE)}


def keys_as_stored(rows: DataFrame, target: StructType, keys: Sequence[str], table: str) -> DataFrame:
    """Casts keys to the table's types, in which they are compared.

    Other columns stay as the step returned them, for order_by and delete_when. Raises ChangesError for a key if this
    cast may make different values equal.
    """
    for key in keys:
        given, stored = rows.schema[key].dataType, target[key].dataType
        if not _keeps_apart(given, stored):
            raise ChangesError(
                f"table {table}: the key {key} is of type {given.simpleString()} in the step's rows and "
                f"{stored.simpleString()} in the table, where different values may become the same: cast it in the step"
            )
    return as_stored(rows, StructType([target[key] for key in keys]))


def as_stored(changes: DataFrame, target: StructType) -> DataFrame:
    """Returns the changes as the table would store them, so that what is compared is what is stored.

    Columns that the table lacks stay. Raises what Spark raises for values that can't be converted
    (https://spark.apache.org/docs/latest/sql-ref-ansi-compliance.html#store-assignment).
    """
    wanted = StructType()
    for field in changes.schema:
        stored = target[field.name].dataType if field.name in target.names else field.dataType
        wanted.add(field.name, _fitted(field.dataType, stored))
    alike = all(_nullable(field.dataType) == wanted[field.name].dataType for field in changes.schema)
    return changes if alike else changes.to(wanted)


def refuse_other_parts(changes: DataFrame, target: StructType, table: str) -> None:
    """Raises ChangesError if a column's nested parts are not the table's."""
    for field in target:
        given, stored = changes.schema[field.name].dataType, field.dataType
        if _nullable(given) != _nullable(stored):
            raise ChangesError(
                f"table {table}: the column {field.name} is {given.simpleString()} in the step's rows, expected "
                f"{stored.simpleString()}, with the same parts in any order. Return these parts, or declare others"
            )


def _keeps_apart(given: DataType, stored: DataType) -> bool:
    """Whether different values stay different when stored, or can't be stored, which raises an error."""
    whole = (ByteType, ShortType, IntegerType, LongType)
    match given, stored:
        case DecimalType(), DecimalType():
            return stored.scale >= given.scale
        case DecimalType(), _ if isinstance(stored, whole):
            return given.scale == 0
        case _, DecimalType() if isinstance(given, whole):
            return True
        case (FloatType(), DoubleType()) | (NullType(), _) | (StringType(), StringType()):
            return True
    return given == stored or (isinstance(given, whole) and isinstance(stored, whole))


def _fitted(given: DataType, stored: DataType) -> DataType:
    """Returns the stored type, or the given one if its parts differ: DataFrame.to() would silently drop parts."""
    match given, stored:
        case StructType(), StructType():
            parts = {part.name.lower(): part.dataType for part in given}  # names in Spark ignore case
            if len(parts) < len(given) or {*parts} != {name.lower() for name in stored.names}:
                return _nullable(given)
            return StructType([StructField(p.name, _fitted(parts[p.name.lower()], p.dataType)) for p in stored])
        case ArrayType(), ArrayType():
            return ArrayType(_fitted(given.elementType, stored.elementType))
        case MapType(), MapType():
            return MapType(_fitted(given.keyType, stored.keyType), _fitted(given.valueType, stored.valueType))
    return _nullable(stored)


def _nullable(of: DataType) -> DataType:
    """Returns the type with all parts nullable: DataFrame.to() refuses a nullable struct with a part that is not."""
    match of:
        case StructType():
            return StructType([StructField(part.name, _nullable(part.dataType)) for part in of])
        case ArrayType():
            return ArrayType(_nullable(of.elementType))
        case MapType():
            return MapType(_nullable(of.keyType), _nullable(of.valueType))
    return of


def latest(rows: DataFrame, work: MergeWork) -> DataFrame:
    """Returns the latest row of each key, with the columns DELETES, RETURNED and OTHER.

    If equally late rows of a key differ, it returns one as the first, and all that differ from it, marked by OTHER:
    refuse_unclear() refuses these. Rows that delete keep only their keys: their other values need not fit the table.
    """
    # A constant makes all rows of a key equally late.
    order = _column(work.order_by).desc_nulls_last() if work.order_by else F.lit(0)
    newest = Window.partitionBy(*map(_column, work.keys)).orderBy(order)
    of_key = newest.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    # Nulls are all equal, so nothing differs from the first row: an insert may take any of them.
    row = F.lit(None) if work.only_inserts else F.expr(comparable_row(rows.schema))
    numbered = rows.withColumns(
        {
            "#rank": F.rank().over(newest),
            "#number": F.row_number().over(newest),
            "#first": F.first(row).over(newest),
            # Counted here: otherwise the step's rows would have to be kept for a second count.
            RETURNED: F.count("*").over(of_key),
        }
    ).withColumn(OTHER, ~row.eqNullSafe(_column("#first")))
    # The first row of each key, and those that are as late (rank 1) and differ from it.
    first = numbered.where(f"`#number` = 1 OR `#rank` = 1 AND `{OTHER}`").drop("#rank", "#number", "#first")
    if not work.delete_when:
        return first.withColumn(DELETES, F.lit(False))
    told = f"delete_when ({work.delete_when})"
    changes = first.withColumn(
        DELETES, row_checks.condition(first, told, lambda: row_checks.sql(work.delete_when), otherwise=False)
    )
    kept = {*work.keys, DELETES, RETURNED, OTHER}
    columns = ((name, _column(name)) for name in changes.columns)
    return changes.select(*(c if name in kept else F.when(~_column(DELETES), c).alias(name) for name, c in columns))


def comparable_row(schema: StructType, of: str = "") -> str:
    """Returns SQL for a row, to compare by `<=>`: rows are equal if stored alike, or different only in zeros' signs.

    of: the table's alias with a dot.
    """
    return f"struct({', '.join(_comparable(f'{of}`{field.name}`', field.dataType) for field in schema)})"


def _comparable(value: str, of: DataType, depth: int = 0) -> str:
    """Returns SQL for a value that Spark compares exactly: maps as sorted entries, strings without collations.

    depth: how deep the value lies in arrays and maps.
    """
    # The variable of the lambda expression; an inner one must not hide it.
    part = f"part{depth}"
    match of:
        case StringType() if of != StringType():  # it has a collation
            return f"CAST({value} AS STRING)"
        case StructType() if not _is_comparable(of):
            parts = (_comparable(f"{value}.`{field.name}`", field.dataType, depth) for field in of)
            # A struct of a null's parts would not be null.
            return f"if({value} IS NULL, NULL, struct({', '.join(parts)}))"
        case ArrayType() if not _is_comparable(of):
            return f"transform({value}, {part} -> {_comparable(part, of.elementType, depth + 1)})"
        case MapType():
            key, item = (
                _comparable(f"{part}.key", of.keyType, depth + 1),
                _comparable(f"{part}.value", of.valueType, depth + 1),
            )
            return f"sort_array(transform(map_entries({value}), {part} -> struct({key}, {item})))"
    return value


def _is_comparable(of: DataType) -> bool:
    match of:
        case StructType():
            return all(_is_comparable(field.dataType) for field in of)
        case ArrayType():
            return _is_comparable(of.elementType)
        case StringType():
            return of == StringType()
    return not isinstance(of, MapType)


def facts_of(changes: DataFrame, keys: Sequence[str]) -> Row:
    """Returns counts of the changes from latest(), and aggregates of the bounded keys, numbered in order of ``keys``.

    ``returned``: the step's rows, right only if each key has one change. ``malformed``: keys with text that is not
    UTF-8. ``low0``, ``high0``, ``about0``: the first bounded key's least value, greatest value and estimated count.
    """
    bounded = bounded_types(changes.schema, keys)
    facts = changes.agg(
        F.count("*").alias("rows"),
        F.coalesce(F.sum(_column(RETURNED)), F.lit(0)).alias("returned"),
        F.count_if(F.expr(" OR ".join(f"`{name}` IS NULL" for name in keys))).alias("without_key"),
        F.count_if(reduce(or_, (_is_malformed(name, changes.schema) for name in keys))).alias("malformed"),
        F.count_if(_column(OTHER)).alias("others"),
        F.count_if(_column(DELETES)).alias("deletes"),
        *(agg for n, (name, of) in enumerate(bounded.items()) for agg in _aggregates(n, name, of)),
    ).first()
    assert facts is not None
    return facts


def refuse_unclear(changes: DataFrame, facts: Row, work: MergeWork, table: str) -> None:
    """Raises ChangesError if a key is null, holds text that is not UTF-8, or has several latest changes that differ."""
    if facts.without_key:
        null = " OR ".join(f"`{name}` IS NULL" for name in work.keys)
        found = changes.where(null).select(*work.keys).limit(SHOWN).collect()
        raise ChangesError(
            f"table {table}: {facts.without_key} changes have no key, such as {_shown(found)}; expected values in "
            f"{', '.join(work.keys)}. Filter or fix these rows in the step"
        )
    if facts.malformed:
        wrong = {name: _is_malformed(name, changes.schema) for name in work.keys}
        shown = (
            F.when(wrong[name], F.format_string("X'%s'", F.hex(_column(name)))).otherwise(_column(name)).alias(name)
            for name in work.keys
        )
        found = changes.where(reduce(or_, wrong.values())).select(*shown).limit(SHOWN).collect()
        raise ChangesError(
            f"table {table}: {facts.malformed} changes have a key that is not UTF-8, such as {_shown(found)}; Iceberg "
            "would not find their rows again. Decode these values in the step from their encoding "
            "(pyspark.sql.functions.decode), or leave them out"
        )
    if facts.others:
        several = changes.groupBy(*work.keys).agg(F.count("*").alias("#rows")).where("`#rows` > 1").drop("#rows")
        found = several.limit(SHOWN).collect()
        late = f"with the same {work.order_by}"
        why = late if work.order_by else "and no order_by to say which is the latest"
        raise ChangesError(
            f"table {table}: some keys have several changes {why}, such as {_shown(found)}. Return one row for each "
            "key, or declare Merge(order_by=…) with a column that orders them"
        )


def _is_malformed(name: str, schema: StructType) -> Column:
    """Returns a condition for text that is not UTF-8: the JVM and Iceberg change such text when they encode it."""
    if not isinstance(schema[name].dataType, StringType):
        return F.lit(False)
    return F.encode(_column(name), "UTF-8") != _column(name).cast("binary")


def bounds(changes: DataFrame, facts: Row, columns: Sequence[str]) -> tuple[Bound, ...]:
    """Returns the bounds of the columns whose type is in BOUNDED. columns: the ``keys`` that facts_of() got."""
    bounded = bounded_types(changes.schema, columns)
    # The counts are estimates, so the values of columns with up to twice LISTED are collected and counted exactly.
    few = {n: name for n, name in enumerate(bounded) if facts[f"about{n}"] <= 2 * LISTED}
    sets = [F.collect_set(_spelled(_column(name), bounded[name])).alias(f"set{n}") for n, name in few.items()]
    listed = changes.agg(*sets).first() if sets else None
    found = []
    for n, name in enumerate(bounded):
        values = listed[f"set{n}"] if listed and n in few else ()
        # No values: they were not listed.
        if 0 < len(values) <= LISTED:
            found.append(Bound(name, tuple(sorted(values))))
        else:
            found.append(Bound(name, (), facts[f"low{n}"], facts[f"high{n}"]))
    return tuple(found)


def bounded_types(changes: StructType, columns: Sequence[str]) -> dict[str, DataType]:
    """Returns name → type of the columns whose type is in BOUNDED."""
    types = {name: changes[name].dataType for name in columns}
    return {name: of for name, of in types.items() if isinstance(of, BOUNDED)}


def condition(bounds: Iterable[Bound], schema: StructType, alias: str) -> str:
    """Returns the bounds as SQL with literals, by which Iceberg selects files; ``true`` if there are none."""
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
    """Returns the values as the text of a Bound: times are microseconds since 1970."""
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


def _column(name: str) -> Column:
    return F.col(f"`{name}`")


def _shown(rows: Iterable[object]) -> str:
    return "; ".join(", ".join(f"{k}={v}" for k, v in row.asDict().items()) for row in rows)  # type: ignore[attr-defined]

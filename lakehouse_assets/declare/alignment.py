"""Aligns Dagster partition keys with Iceberg partitions, and finds the region that keys own.

Each dimension of the Dagster partitions covers one partition field, so that a run replaces whole files, never single
rows. A *region* is the part of a table that keys own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from decimal import Context, Decimal
from functools import cached_property
from textwrap import shorten
from typing import Any

import dagster as dg
from pyiceberg.expressions.literals import literal
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TimeTransform,
    Transform,
)
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from lakehouse_assets.declare import region
from lakehouse_assets.declare.columns import spec_text
from lakehouse_assets.declare.region import Ranges, Region, Times, Values
from lakehouse_assets.errors import DeclarationError, UnknownPartitions
from lakehouse_assets.keys_text import keys_text

COARSE_TO_FINE = ("year", "month", "day", "hour", "identity")
INTEGER = re.compile(r"-?[0-9]+")
"""Unlike int(), without a plus sign, blanks, underscores or the digits of other scripts."""
TIME_TYPES = (DateType, TimestampType, TimestamptzType)
KEY_TYPES = (StringType, IntegerType, LongType, BooleanType, DateType, DecimalType)
EMPTY_KEY = (
    "the empty key '' can't be a partition: Dagster runs it as if no partition was chosen, and always shows it as "
    "missing; use another name"
)


@dataclass(frozen=True)
class TimeDimension:
    """Dagster time windows over one time-like partition field."""

    name: str
    partitions: dg.TimeWindowPartitionsDefinition
    column: str
    type: IcebergType
    position: int
    """Of the partition field in the declared spec."""
    transform: Transform[Any, Any]

    @cached_property
    def form(self) -> str:
        """A regular expression of the dimension's keys."""
        # Made from the first key: numbers keep their length, names of months or zones need not.
        key = self.partitions.start.strftime(self.partitions.fmt)
        return re.sub("[a-zA-Z]+", "[a-zA-Z]+", re.sub("[0-9]", "[0-9]", re.escape(key)))

    def windows(self, keys: Collection[str]) -> dict[str, tuple[datetime, datetime]]:
        """Returns [start, end) by key, in ascending order. Raises ValueError for keys that the definition lacks."""
        try:
            found = region.windows(self.partitions, keys)
        # ValueError: Dagster's, if its format names a zone that the keys lack. OverflowError: the calendar's.
        except (ValueError, OverflowError) as error:
            raise ValueError(
                f"no such partition among {quoted(keys)}: a key is a time of the form {self.partitions.fmt}, and its "
                "window ends before the year 10000"
            ) from error
        _refuse_unknown(keys, found, str(self.partitions).rstrip("."))
        return found

    def axis(self, keys: Collection[str]) -> Times:
        """Returns the keys' axis of a Region. Raises as windows()."""
        spans = {
            key: (region.bound(start, self.type), region.bound(end, self.type))
            for key, (start, end) in self.windows(keys).items()
        }
        return Times(self.column, self.type, self.position, self.transform, spans)


@dataclass(frozen=True)
class ValueDimension:
    """Static or dynamic keys over one identity field."""

    name: str
    known: frozenset[str] | None
    """The keys of a static dimension; None for a dynamic one."""
    column: str
    type: IcebergType
    position: int
    """Of the partition field in the declared spec."""

    @cached_property
    def form(self) -> str:
        """A regular expression of the dimension's keys; a key comes before its own prefixes."""
        return "[^/]+" if self.known is None else "|".join(map(re.escape, sorted(self.known, reverse=True)))

    def axis(self, keys: Collection[str]) -> Values:
        """Returns the keys' axis of a Region.

        Raises ValueError for keys that are undeclared, of another type, or equal in value, as ``1`` and ``01``.
        """
        if self.known is not None and not self.known.issuperset(keys):
            _refuse_unknown(keys, self.known, quoted(sorted(self.known)))
        by_value: dict[Any, str] = {}
        for key in keys:
            other = by_value.setdefault(_parse_value(key, self.type), key)
            if other != key:
                raise ValueError(f"the keys {other!r} and {key!r} have the same {self.type} value")
        return Values(self.column, self.type, self.position, by_value)


Dimension = TimeDimension | ValueDimension


def dimensions_of(
    schema: Schema, spec: PartitionSpec, partitions: dg.PartitionsDefinition | None
) -> tuple[Dimension, ...]:
    """Returns one dimension for each Dagster dimension, in the order of a multi-partition key.

    Raises ValueError if a dimension has no partition field to itself, or its keys aren't whole Iceberg partitions.
    """
    if partitions is None:
        return ()
    named: Mapping[str | None, dg.PartitionsDefinition] = {None: partitions}
    if isinstance(partitions, dg.MultiPartitionsDefinition):
        named = {dimension.name: dimension.partitions_def for dimension in partitions.partitions_defs}
    if sum(isinstance(of, dg.TimeWindowPartitionsDefinition) for of in named.values()) > 1:
        raise ValueError("a table can have only one dimension of time windows; make the other one static")
    found: dict[str | None, Dimension] = {}
    # Time windows last: they take the only time column that is left, even if another dimension is over dates.
    for name, of in sorted(named.items(), key=lambda item: isinstance(item[1], dg.TimeWindowPartitionsDefinition)):
        if isinstance(of, dg.TimeWindowPartitionsDefinition):
            found[name] = _time_dimension(name, schema, spec, of, {other.column for other in found.values()})
        else:
            found[name] = _value_dimension(name, schema, spec, of)
    return tuple(found[name] for name in named)


def input_dimensions(partitions: dg.PartitionsDefinition | None) -> tuple[Dimension, ...]:
    """Returns the dimensions of partitions that only select a step's input, in the order of dimensions_of().

    Each dimension gets a made-up column, as the table may lack one. Raises as dimensions_of().
    """
    named: Mapping[str, dg.PartitionsDefinition | None] = {"partition": partitions}
    if isinstance(partitions, dg.MultiPartitionsDefinition):
        named = {dimension.name: dimension.partitions_def for dimension in partitions.partitions_defs}
    columns = [
        NestedField(n, name, TimestamptzType() if isinstance(of, dg.TimeWindowPartitionsDefinition) else StringType())
        for n, (name, of) in enumerate(named.items(), start=1)
    ]
    fields = [PartitionField(c.field_id, 1000 + c.field_id, IdentityTransform(), c.name) for c in columns]
    return dimensions_of(Schema(*columns), PartitionSpec(*fields), partitions)


def _parse_value(key: str, type: IcebergType) -> Any:
    """Returns a key's value as partition tuples hold it (dates as days since 1970). Raises ValueError."""
    with suppress(ValueError, ArithmeticError):
        match type:
            case StringType() | BooleanType() | DateType():
                return literal(key).to(type).value
            case IntegerType() | LongType() if INTEGER.fullmatch(key) and type.min <= int(key) <= type.max:
                return int(key)
            case DecimalType():
                value = Decimal(key)
                # quantize() rounds a key with more digits, which is then another value.
                exact = value.quantize(Decimal(1).scaleb(-type.scale), context=Context(prec=type.precision))
                if value == exact:
                    return exact
    raise ValueError(f"the key {key!r} is not of the type {type}")


def quoted(keys: Collection[str]) -> str:
    """Quotes keys, so that blanks and empty keys are visible."""
    return keys_text([repr(key) for key in keys], listed=5)


def _refuse_unknown(keys: Collection[str], known: Collection[str], kind: str) -> None:
    if unknown := [key for key in keys if key not in known]:
        raise ValueError(f"no such partition: {quoted(unknown)}; its partitions are {kind}")


def _value_dimension(
    name: str | None, schema: Schema, spec: PartitionSpec, partitions: dg.PartitionsDefinition
) -> ValueDimension:
    if not isinstance(partitions, (dg.StaticPartitionsDefinition, dg.DynamicPartitionsDefinition)):
        raise ValueError(f"{type(partitions).__name__} is not supported: use time windows, static, dynamic or multi")
    identity = {
        schema.find_field(field.source_id).name: position
        for position, field in enumerate(spec.fields)
        if isinstance(field.transform, IdentityTransform)
    }
    # Without a name, each plain column is a candidate; the name of a dimension chooses its column.
    candidates = [column for column in identity if name in (None, column)]
    if len(candidates) != 1:
        wanted = "static and dynamic keys need" if name is None else f"the dimension {name!r} needs"
        which = "exactly one plain column" if name is None else f"the plain column {name!r}"
        raise ValueError(f"{wanted} {which} among them, found {', '.join(identity) or 'none'}")
    column = candidates[0]
    column_type = schema.find_type(column)
    if not isinstance(column_type, KEY_TYPES):
        raise ValueError(f"{column} is a {column_type}, and a value of this type can be written as more than one key")
    static = isinstance(partitions, dg.StaticPartitionsDefinition)
    known = frozenset(partitions.get_partition_keys()) if static else None
    if known and "" in known and name is None:
        raise ValueError(EMPTY_KEY)
    dimension = ValueDimension(name or column, known, column, column_type, identity[column])
    dimension.axis(sorted(known or ()))  # raises for keys that are not values of the column
    return dimension


def _time_dimension(
    name: str | None,
    schema: Schema,
    spec: PartitionSpec,
    partitions: dg.TimeWindowPartitionsDefinition,
    taken: Collection[str],
) -> TimeDimension:
    """taken: the columns of the other dimensions."""
    fields: dict[str, list[tuple[int, Transform[Any, Any]]]] = defaultdict(list)
    for position, field in enumerate(spec.fields):
        column = schema.find_field(field.source_id).name
        timelike = isinstance(field.transform, (TimeTransform, IdentityTransform))
        if column not in taken and timelike and isinstance(schema.find_type(column), TIME_TYPES):
            fields[column].append((position, field.transform))
    # A dimension named like a column means this column; any other name needs just one to choose from.
    if name not in fields and len(fields) != 1:
        raise ValueError(
            "time windows need exactly one column with year(), month(), day(), hour() or a plain date or timestamp "
            f"among them, found {', '.join(fields) or 'none'}"
        )
    column = name if name in fields else next(iter(fields))
    # Of several terms on a column, the finest decides: whole days are also within one month and one year.
    position, transform = max(fields[column], key=lambda field: COARSE_TO_FINE.index(str(field[1])))
    column_type = schema.find_type(column)
    if reason := region.misaligned(partitions, transform, column_type):
        raise ValueError(f"{reason}. {_fitting(partitions, column, column_type)}")
    return TimeDimension(name or column, partitions, column, column_type, position, transform)


def _fitting(partitions: dg.TimeWindowPartitionsDefinition, column: str, type: IcebergType) -> str:
    # The coarsest first: it makes the fewest Iceberg partitions.
    transforms: tuple[TimeTransform[Any], ...] = (MonthTransform(), DayTransform(), HourTransform())
    possible = (t for t in transforms if t.can_transform(type) and not region.misaligned(partitions, t, type))
    return next((f"{transform}({column}) would fit" for transform in possible), "No transform of it fits")


@dataclass(frozen=True)
class Alignment:
    """How a table's partitions correspond: each Dagster partition is a whole number of Iceberg partitions."""

    identifier: str
    parts: tuple[Dimension, ...]
    """In the order of a multi-partition key."""
    of_table: bool = True
    """Whether the partitions own rows of the table, rather than only select its step's input."""

    @classmethod
    def of(
        cls, identifier: str, schema: Schema, spec: PartitionSpec, partitions: dg.PartitionsDefinition | None
    ) -> Alignment:
        """Aligns a table whose Dagster partitions own its rows.

        Raises DeclarationError if replacing a Dagster partition would need row-level rewrites, or if its partition
        field is ambiguous.
        """
        try:
            return cls(identifier, dimensions_of(schema, spec, partitions))
        except ValueError as error:
            definition = f"{type(partitions).__name__}: {shorten(str(partitions).rstrip('.'), 120)}"
            raise DeclarationError(
                f"table {identifier!r}: its Dagster partitions ({definition}) don't line up with its Iceberg "
                f"partitions ({spec_text(spec, schema)}): {error}"
            ) from error

    @classmethod
    def of_input(cls, identifier: str, partitions: dg.PartitionsDefinition | None) -> Alignment:
        """Aligns a table whose partitions only select its step's input. Raises DeclarationError if unsupported."""
        try:
            return cls(identifier, input_dimensions(partitions), of_table=False)
        except ValueError as error:
            raise DeclarationError(f"table {identifier!r}: its Dagster partitions can't be used: {error}") from error

    def region(self, keys: Sequence[str]) -> Region:
        """Returns the part of the table that these keys own: the whole table if the keys only select input.

        Raises UnknownPartitions for keys that the table lacks, and for no keys if it has partitions.
        """
        rows = self._split(keys)
        everything = Region((), (), {(): Ranges((region.EVERYTHING,))})
        if not self.parts:
            return everything
        columns = zip(*rows, strict=True)
        with self._naming_the_table():
            axes = tuple(part.axis(dict.fromkeys(column)) for part, column in zip(self.parts, columns, strict=True))
        return Region(tuple(dict.fromkeys(keys)), axes, _cells(axes, rows)) if self.of_table else everything

    def dimensions(self, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Returns the distinct keys of each dimension, in order, by the dimension's name.

        Empty for time windows alone, which window() describes. A single static or dynamic dimension has its column's
        name.
        """
        rows = self._split(keys)
        if len(self.parts) == 1 and isinstance(self.parts[0], TimeDimension):
            return {}
        return {part.name: tuple(dict.fromkeys(row[at] for row in rows)) for at, part in enumerate(self.parts)}

    def window(self, keys: Sequence[str]) -> tuple[datetime, datetime] | None:
        """Returns [start, end) from the first window to the last; None without a time dimension."""
        rows = self._split(keys)
        for at, part in enumerate(self.parts):
            if isinstance(part, TimeDimension):
                with self._naming_the_table():
                    bounds = list(part.windows({row[at] for row in rows}).values())
                return bounds[0][0], bounds[-1][1]
        return None

    def _split(self, keys: Sequence[str]) -> list[tuple[str, ...]]:
        """Splits keys by dimension. Raises UnknownPartitions for keys of another form, and as region()."""
        if not self.parts and keys:
            raise UnknownPartitions(
                f"table {self.identifier!r} has no Dagster partitions, but {quoted(keys)} was requested"
            )
        if self.parts and not keys:
            raise UnknownPartitions(
                f"table {self.identifier!r} is partitioned, but no partition was requested (Dagster drops an empty key)"
            )
        if "" in keys:
            raise UnknownPartitions(f"table {self.identifier!r}: {EMPTY_KEY}")
        # A single dimension's key may contain a bar; Dagster forbids it with several dimensions.
        rows = [tuple(key.split("|")) if len(self.parts) > 1 else (key,) for key in keys]
        if wrong := [key for key, row in zip(keys, rows, strict=True) if len(row) != len(self.parts)]:
            form = "|".join(part.name for part in self.parts)
            raise UnknownPartitions(
                f"table {self.identifier!r} has keys of the form {form}, but {quoted(wrong)} was requested"
            )
        return rows

    @contextmanager
    def _naming_the_table(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise UnknownPartitions(f"table {self.identifier!r}: {error}") from error


def _cells(axes: Sequence[Times | Values], rows: Sequence[tuple[str, ...]]) -> dict[tuple[Any, ...], Ranges]:
    """Returns Region.cells. rows: keys, split by axis."""
    # For each axis: key → its span or value.
    owned = [a.spans if isinstance(a, Times) else {key: value for value, key in a.keys.items()} for a in axes]
    time = next((at for at, axis in enumerate(axes) if isinstance(axis, Times)), None)
    spans: dict[tuple[Any, ...], list[region.Span]] = defaultdict(list)
    for row in rows:
        cell: list[Any] = [of_key[key] for of_key, key in zip(owned, row, strict=True)]
        # pop() takes the span out, so that the values of the other axes are left.
        span = region.EVERYTHING if time is None else cell.pop(time)
        spans[tuple(cell)].append(span)
    return {cell: Ranges.of(of_cell) for cell, of_cell in spans.items()}

"""Dagster partition keys ↔ Iceberg partitions: what lines up with what, and the region that some keys own.
Pure: no catalog, no run. Regions themselves are in region.py, time windows in a column's clock in windows.py."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from textwrap import shorten
from typing import Any

import dagster as dg
from pyiceberg.partitioning import PartitionSpec
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
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyiceberg.utils.datetime import date_to_days

from lakehouse_assets.declare import windows
from lakehouse_assets.declare.region import Ranges, Region, Relation, Times, Values
from lakehouse_assets.declare.terms import spec_text
from lakehouse_assets.errors import DeclarationError, UnknownPartitions
from lakehouse_assets.keys_text import keys_text

__all__ = ["Alignment", "Region", "Relation"]

FINER = ("year", "month", "day", "hour", "identity")
INTEGER = re.compile(r"-?[0-9]+")
CLOCKS = (DateType, TimestampType, TimestamptzType)
KEYED = (StringType, IntegerType, LongType, BooleanType, DateType, DecimalType)


@dataclass(frozen=True)
class TimeDimension:
    """Dagster time windows over one time-like partition field. position: of the field in the spec."""

    name: str
    partitions: dg.TimeWindowPartitionsDefinition
    column: str
    type: IcebergType
    position: int
    transform: Transform

    def windows(self, keys: Collection[str]) -> dict[str, tuple[datetime, datetime]]:
        """[start, end) by key, ascending. Raises ValueError naming the keys that are none of this definition's."""
        found = windows.windows(self.partitions, keys)
        _refuse_unknown(keys, found, str(self.partitions).rstrip("."))
        return found

    def axis(self, keys: Collection[str]) -> Times:
        spans = {
            key: (windows.bound(start, self.type), windows.bound(end, self.type))
            for key, (start, end) in self.windows(keys).items()
        }
        return Times(self.column, self.type, self.position, self.transform, spans)


@dataclass(frozen=True)
class ValueDimension:
    """Static or dynamic keys over one identity field. known: the keys declared; None for dynamic ones."""

    name: str
    known: frozenset[str] | None
    column: str
    type: IcebergType
    position: int

    def axis(self, keys: Collection[str]) -> Values:
        """Raises ValueError for keys that were not declared, are not of the column's type, or share a value."""
        if self.known is not None and not self.known.issuperset(keys):
            _refuse_unknown(keys, self.known, _quoted(sorted(self.known)))
        by_value: dict[Any, str] = {}
        for key in keys:
            other = by_value.setdefault(parse_value(key, self.type), key)
            if other != key:
                raise ValueError(f"the keys {other!r} and {key!r} are one and the same {self.type}")
        return Values(self.column, self.type, self.position, by_value)


@dataclass(frozen=True)
class Alignment:
    """How a table's partitions correspond: each Dagster partition is a whole number of Iceberg partitions.

    parts: one for each Dagster dimension, in the order of a multi-partition key; none without Dagster partitions.
    """

    identifier: str
    parts: tuple[TimeDimension | ValueDimension, ...]

    @classmethod
    def of(
        cls, identifier: str, schema: Schema, spec: PartitionSpec, partitions: dg.PartitionsDefinition | None
    ) -> Alignment:
        """Raises DeclarationError, naming the table and both sides, where replacing a Dagster partition would need
        row-level rewrites, and where it can't be told which partition field a dimension means."""
        try:
            return cls(identifier, _dimensions(schema, spec, partitions))
        except ValueError as error:
            theirs = f"{type(partitions).__name__}: {shorten(str(partitions).rstrip('.'), 120)}"
            raise DeclarationError(
                f"table {identifier!r}: its Dagster partitions ({theirs}) do not line up with its Iceberg partitions "
                f"({spec_text(spec, schema)}): {error}"
            ) from error

    def region(self, keys: Sequence[str]) -> Region:
        """The part of the table these keys own; no keys means the whole of a table without partitions.

        Raises UnknownPartitions, naming the table, for no keys where there are partitions and for keys it lacks.
        """
        rows = self._split(keys)
        if not self.parts:
            return Region((), (), {(): Ranges((windows.EVERYTHING,))})
        columns = zip(*rows, strict=True)
        axes = tuple(self._read(part.axis, column) for part, column in zip(self.parts, columns, strict=True))
        owned = [a.spans if isinstance(a, Times) else {key: value for value, key in a.keys.items()} for a in axes]
        cells: dict[tuple[Any, ...], list[windows.Span]] = defaultdict(list)
        for row in rows:
            cell, span = [], windows.EVERYTHING
            for axis, of_key, key in zip(axes, owned, row, strict=True):
                if isinstance(axis, Times):
                    span = of_key[key]
                else:
                    cell.append(of_key[key])
            cells[tuple(cell)].append(span)
        return Region(tuple(dict.fromkeys(keys)), axes, {cell: Ranges.of(spans) for cell, spans in cells.items()})

    def dimensions(self, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The distinct keys of each dimension, in order, by its name; a lone static or dynamic one has its column's.

        Empty without partitions, and for time windows alone, which start and end tell in full.
        """
        rows = self._split(keys)
        if len(self.parts) == 1 and isinstance(self.parts[0], TimeDimension):
            return {}
        return {part.name: tuple(dict.fromkeys(row[at] for row in rows)) for at, part in enumerate(self.parts)}

    def window(self, keys: Sequence[str]) -> tuple[datetime, datetime] | None:
        """[start, end) from the earliest window to the latest, in the definition's zone; None without time."""
        rows = self._split(keys)
        for at, part in enumerate(self.parts):
            if isinstance(part, TimeDimension):
                bounds = list(self._read(part.windows, [row[at] for row in rows]).values())
                return bounds[0][0], bounds[-1][1]
        return None

    def _split(self, keys: Sequence[str]) -> list[tuple[str, ...]]:
        """Each key's parts, one a dimension."""
        if not self.parts and keys:
            raise UnknownPartitions(f"table {self.identifier!r} has no Dagster partitions, asked for {_quoted(keys)}")
        if self.parts and not keys:
            raise UnknownPartitions(
                f"table {self.identifier!r} is partitioned and no partition was asked for (an empty key is none)"
            )
        if "" in keys:
            raise UnknownPartitions(
                f"table {self.identifier!r}: the empty key '' can't be a partition: Dagster runs it as if none was "
                "chosen, and shows it as missing for ever; delete it and use another name"
            )
        # A lone dimension's key may hold a bar, which Dagster forbids in several.
        rows = [tuple(key.split("|")) if len(self.parts) > 1 else (key,) for key in keys]
        if wrong := [key for key, row in zip(keys, rows, strict=True) if len(row) != len(self.parts)]:
            form = "|".join(part.name for part in self.parts)
            raise UnknownPartitions(
                f"table {self.identifier!r} has keys of the form {form}, asked for {_quoted(wrong)}"
            )
        return rows

    def _read(self, read: Any, keys: Sequence[str]) -> Any:
        try:
            return read(tuple(dict.fromkeys(keys)))
        except ValueError as error:
            raise UnknownPartitions(f"table {self.identifier!r}: {error}") from error


def parse_value(key: str, type: IcebergType) -> Any:
    """A static or dynamic key as a value of an identity column, the way partition tuples hold it (dates as days).

    Raises ValueError where the key does not spell a value of that type.
    """
    try:
        match type:
            case StringType():
                return key
            case IntegerType() | LongType() if INTEGER.fullmatch(key) and type.min <= int(key) <= type.max:
                return int(key)
            case BooleanType() if key.lower() in ("true", "false"):
                return key.lower() == "true"
            case DateType():
                return date_to_days(date.fromisoformat(key))
            case DecimalType() if (value := Decimal(key)) == (exact := round(value, type.scale)):
                return exact
    except (ValueError, ArithmeticError):
        pass  # refused below like every other key that does not fit
    raise ValueError(f"the key {key!r} is no {type}")


def _quoted(keys: Collection[str]) -> str:
    return keys_text([repr(key) for key in keys], listed=5)


def _refuse_unknown(keys: Collection[str], known: Collection[str], kind: str) -> None:
    if unknown := [key for key in keys if key not in known]:
        raise ValueError(f"no such partition: {_quoted(unknown)}; its partitions are {kind}")


def _dimensions(
    schema: Schema, spec: PartitionSpec, partitions: dg.PartitionsDefinition | None
) -> tuple[TimeDimension | ValueDimension, ...]:
    if partitions is None:
        return ()
    named: dict[str | None, dg.PartitionsDefinition] = {None: partitions}
    if isinstance(partitions, dg.MultiPartitionsDefinition):
        named = {dimension.name: dimension.partitions_def for dimension in partitions.partitions_defs}
    timed = [name for name, definition in named.items() if isinstance(definition, dg.TimeWindowPartitionsDefinition)]
    if len(timed) > 1:
        raise ValueError("two dimensions of time windows are more than one table can follow; make one of them static")
    values = {name: _value_dimension(name, schema, spec, named[name]) for name in named if name not in timed}
    taken = {dimension.column for dimension in values.values()}
    times = {name: _time_dimension(name, schema, spec, named[name], taken) for name in timed}
    return tuple((values | times)[name] for name in named)


def _value_dimension(
    name: str | None, schema: Schema, spec: PartitionSpec, partitions: dg.PartitionsDefinition
) -> ValueDimension:
    if not isinstance(partitions, (dg.StaticPartitionsDefinition, dg.DynamicPartitionsDefinition)):
        raise ValueError(f"{type(partitions).__name__} is none of: time windows, static, dynamic, multi")
    identity = {
        schema.find_column_name(field.source_id): position
        for position, field in enumerate(spec.fields)
        if isinstance(field.transform, IdentityTransform)
    }
    candidates = [column for column in identity if name in (None, column)]
    if len(candidates) != 1:
        wanted = "static and dynamic keys need" if name is None else f"the dimension {name!r} needs"
        which = "exactly one plain column" if name is None else f"the plain column {name!r}"
        raise ValueError(f"{wanted} {which} among them, there are {', '.join(identity) or 'none'}")
    column = candidates[0]
    column_type = schema.find_type(column)
    if not isinstance(column_type, KEYED):
        raise ValueError(f"{column} is a {column_type}, whose values have no one spelling as keys")
    static = isinstance(partitions, dg.StaticPartitionsDefinition)
    known = frozenset(partitions.get_partition_keys()) if static else None
    if known and "" in known and name is None:
        raise ValueError("the empty key '' can't be a partition: Dagster runs it as if none was chosen")
    dimension = ValueDimension(name or column, known, column, column_type, identity[column])
    dimension.axis(sorted(known or ()))  # refuses keys that spell no value of the column
    return dimension


def _time_dimension(
    name: str | None,
    schema: Schema,
    spec: PartitionSpec,
    partitions: dg.TimeWindowPartitionsDefinition,
    taken: Collection[str],
) -> TimeDimension:
    columns: dict[str, list[tuple[int, Transform]]] = defaultdict(list)
    for position, field in enumerate(spec.fields):
        column = schema.find_column_name(field.source_id)
        if column not in taken and isinstance(schema.find_type(column), CLOCKS) and _is_time(field.transform):
            columns[column].append((position, field.transform))
    if name not in columns and len(columns) != 1:
        raise ValueError(
            "time windows need exactly one column with year(), month(), day(), hour() or a plain date or timestamp "
            f"among them, there are {', '.join(columns) or 'none'}"
        )
    column = name if name in columns else next(iter(columns))
    # The finest of several terms of one column decides: the others follow from it.
    position, transform = max(columns[column], key=lambda field: FINER.index(str(field[1])))
    column_type = schema.find_type(column)
    if reason := windows.misaligned(partitions, transform, column_type):
        fitting = [
            f"{finer}({column})"
            for finer in (MonthTransform(), DayTransform(), HourTransform())
            if finer.can_transform(column_type) and not windows.misaligned(partitions, finer, column_type)
        ]
        raise ValueError(f"{reason}. {f'{fitting[0]} would fit' if fitting else 'No transform of it fits'}")
    return TimeDimension(name or column, partitions, column, column_type, position, transform)


def _is_time(transform: Transform) -> bool:
    return isinstance(transform, (TimeTransform, IdentityTransform))

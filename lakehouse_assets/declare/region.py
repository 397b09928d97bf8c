"""Regions (the part of a table that partition keys own), and time windows.

A region has an *axis* for each Dagster dimension. A *cell* is a combination of values on all axes but time.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import cached_property, lru_cache, reduce
from itertools import pairwise, product
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, In, LessThan, Or, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    IdentityTransform,
    TimeTransform,
    Transform,
    TruncateTransform,
    UnknownTransform,
    VoidTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, IcebergType, IntegerType, LongType, TimestamptzType
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros

from lakehouse_assets.keys_text import parts_of
from lakehouse_assets.wire.work import truncates_in_order

Span = tuple[float, float]
"""[low, high) in a column's unit: days (date) or microseconds (timestamp) since 1970."""

EVERYTHING: Span = (-math.inf, math.inf)
DAY_MICROS = 86_400_000_000
TICKS = 400
"""How many ticks stand for a cron schedule: more than a year of daily ones."""
ZONES_UNTIL = datetime(2038, 1, 1, tzinfo=UTC)
"""Later offsets are not looked at: the time zone database then has rules, by which two offsets alternate."""


def windows(
    partitions: dg.TimeWindowPartitionsDefinition, keys: Collection[str]
) -> dict[str, tuple[datetime, datetime]]:
    """Returns the keys' windows, in the definition's zone, ascending; leaves out keys that the definition lacks.

    Includes future windows: Dagster decides whether they may run yet. Raises ValueError for a key that is not in the
    definition's format.
    """
    wanted = frozenset(keys)
    end = partitions.end.timestamp() if partitions.end else math.inf
    return {
        label: (window.start, window.end)
        for window in partitions.time_windows_for_partition_keys(wanted, validate=False)
        if (label := _label(partitions, window)) in wanted
        and window.start.timestamp() >= partitions.start.timestamp()
        and window.end.timestamp() <= end
    }


def _label(partitions: dg.TimeWindowPartitionsDefinition, window: dg.TimeWindow) -> str:
    if window.start.fold:  # the second of two equal wall-clock times: only Dagster knows whether their keys differ
        return partitions.get_partition_keys_in_time_window(window)[0]
    return window.start.strftime(partitions.fmt)


def bound(moment: datetime, type: IcebergType) -> int:
    """Converts an aware time to a column's unit and clock: UTC for timestamptz, else wall clock."""
    if isinstance(type, TimestamptzType):
        return datetime_to_micros(moment)
    local = _wall(moment)
    return date_to_days(local.date()) if isinstance(type, DateType) else datetime_to_micros(local)


def _wall(moment: datetime) -> datetime:
    """Returns the wall-clock time; if clocks jump ahead at that moment, the time before the jump.

    So windows stay adjacent, and a day whose midnight is skipped begins at 00:00.
    """
    instant = moment.astimezone(UTC)
    after = instant.astimezone(moment.tzinfo)
    before = (instant - timedelta(microseconds=1)).astimezone(moment.tzinfo)
    jump = (after.utcoffset() or timedelta()) - (before.utcoffset() or timedelta())
    return after.replace(tzinfo=None, fold=0) - max(jump, timedelta())


def span(transform: Transform[Any, Any], value: int, type: IcebergType) -> Span:
    """Returns the column's values that a time or identity transform maps to ``value``."""
    # In the column's unit. Months and years have no fixed width.
    day = 1 if isinstance(type, DateType) else DAY_MICROS
    if width := {"identity": 1, "hour": DAY_MICROS // 24, "day": day}.get(str(transform)):
        return value * width, (value + 1) * width
    months = {"month": 1, "year": 12}[str(transform)]
    return _first_day(value * months) * day, _first_day((value + 1) * months) * day


def _first_day(months: int) -> float:
    """Returns the first day of a month, both counted from January 1970; infinite outside Python's calendar."""
    years, month = divmod(months, 12)
    if not date.min.year <= 1970 + years <= date.max.year:
        return math.copysign(math.inf, years)
    return date_to_days(date(1970 + years, month + 1, 1))


def misaligned(
    partitions: dg.TimeWindowPartitionsDefinition, transform: Transform[Any, Any], type: IcebergType
) -> str | None:
    """Returns why a window can start or end inside an Iceberg partition, or None if none ever does.

    Each wall-clock tick must be the first moment of an Iceberg partition in the column's clock, at each offset of the
    zone since the definition's start.
    """
    utc = isinstance(type, TimestamptzType)
    offsets = {offset for _, offset in _offsets(partitions)} if utc else {timedelta()}
    for tick in _ticks(partitions.cron_schedule):
        for offset in offsets:
            if not _is_first(tick - offset, transform, type):
                at = (
                    "a Dagster partition can start inside an Iceberg partition: "
                    f"at {tick:%H:%M} on day {tick.day} of a month, {partitions.timezone}"
                )
                return f"{at}, which is {tick - offset:%H:%M} on day {(tick - offset).day}, UTC" if utc else at
    return None if utc else _repeated(partitions)


def _is_first(at: datetime, transform: Transform[Any, Any], type: IcebergType) -> bool:
    """Whether a time, on the column's clock, is the first of an Iceberg partition."""
    value, apply = datetime_to_micros(at), transform.transform(type)
    if isinstance(type, DateType):
        value, within = divmod(value, DAY_MICROS)
        if within:  # a date can't begin within a day
            return False
    return apply(value) != apply(value - 1)


def _repeated(partitions: dg.TimeWindowPartitionsDefinition) -> str | None:
    """Returns why two windows have the same wall-clock time (when clocks go back), or None."""
    if len({tick.time() for tick in _ticks(partitions.cron_schedule)}) == 1:  # at most one window a day
        return None
    for (before, earlier), (after, later) in pairwise(_offsets(partitions)):
        if later < earlier:
            # The week in which clocks went back.
            around = dg.TimeWindow(before.astimezone(ZoneInfo(partitions.timezone)), after)
            keys = partitions.get_partition_keys_in_time_window(around)
            starts = {key: _wall(start) for key, (start, _) in windows(partitions, keys).items()}
            for (key, start), (next_key, next_start) in pairwise(starts.items()):
                if next_start <= start:
                    return f"{key} and {next_key} are the same wall-clock time, {start.isoformat(' ', 'minutes')}"
    return None


@lru_cache(maxsize=256)
def _ticks(cron_schedule: str) -> tuple[datetime, ...]:
    """Returns the first ticks from 2000 on, as wall-clock times."""
    clock = dg.TimeWindowPartitionsDefinition(
        cron_schedule=cron_schedule, start=datetime(2000, 1, 1), fmt="%Y-%m-%dT%H:%M"
    )
    return tuple(map(datetime.fromisoformat, clock.get_partition_keys_between_indexes(0, TICKS)))


def _offsets(partitions: dg.TimeWindowPartitionsDefinition) -> tuple[tuple[datetime, timedelta], ...]:
    return _zone_offsets(partitions.timezone, partitions.start.astimezone(UTC), partitions.end or ZONES_UNTIL)


@lru_cache(maxsize=256)
def _zone_offsets(timezone: str, start: datetime, end: datetime) -> tuple[tuple[datetime, timedelta], ...]:
    """Returns the offset week by week: each offset lasts longer, so each change lies between two neighbours."""
    zone = ZoneInfo(timezone)
    weeks = max(1, -(-(end - start) // timedelta(weeks=1)))
    moments = (start + timedelta(weeks=week) for week in range(weeks + 1))
    return tuple((moment, moment.astimezone(zone).utcoffset() or timedelta()) for moment in moments)


class Relation(StrEnum):
    """An Iceberg partition's place relative to a region."""

    INSIDE = "inside"
    OUTSIDE = "outside"
    OVERLAPS = "overlaps"


@dataclass(frozen=True)
class Ranges:
    """Disjoint spans in ascending order, with gaps between them."""

    spans: tuple[Span, ...]

    @classmethod
    def of(cls, spans: Iterable[Span]) -> Ranges:
        """Sorts the spans, and joins those that overlap or touch."""
        merged: list[Span] = []
        for low, high in sorted(spans):
            if merged and low <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
            else:
                merged.append((low, high))
        return cls(tuple(merged))

    def relation(self, part: Span) -> Relation:
        """Returns whether a span is inside one of these, outside all, or neither."""
        low, high = part
        at = bisect_left(self.spans, (high,)) - 1  # the last span that starts before the part ends
        if at < 0 or self.spans[at][1] <= low:
            return Relation.OUTSIDE
        return Relation.INSIDE if self.spans[at][0] <= low and high <= self.spans[at][1] else Relation.OVERLAPS


@dataclass(frozen=True)
class Times:
    """A region's time axis."""

    column: str
    type: IcebergType
    position: int
    """Of the partition field in the declared spec."""
    transform: Transform[Any, Any]
    spans: Mapping[str, Span]
    """Key → its span, ascending."""

    @cached_property
    def _owners(self) -> tuple[list[Any], list[Any], list[str]]:
        """The partition field's first value and end value for each key, and the keys; ascending."""
        apply = self.transform.transform(self.type)
        starts, ends = ([apply(s[i]) for s in self.spans.values()] for i in (0, 1))
        return starts, ends, list(self.spans)

    def key_of(self, value: Any) -> str | None:
        """Returns the key that owns a value of the declared partition field, or None."""
        starts, ends, keys = self._owners
        at = -1 if value is None else bisect_right(starts, value) - 1
        return keys[at] if at >= 0 and value < ends[at] else None

    def possible(self, fields: Sequence[tuple[PartitionField, Any]]) -> Span | None:
        """Returns the column's possible values in a partition of any spec; None if all are null.

        fields: the spec's fields on this column, with the partition's values.
        """
        low, high = EVERYTHING
        for field, value in fields:
            if value is None:
                return None
            # Other transforms, such as bucket, say nothing about a range.
            if isinstance(field.transform, (TimeTransform, IdentityTransform)):
                start, end = span(field.transform, value, self.type)
                low, high = max(low, start), min(high, end)
        return low, high

    def predicate(self) -> BooleanExpression:
        """Selects the rows in the keys' spans."""
        column = Reference(self.column)
        bounds = [[literal(int(bound)) for bound in span] for span in Ranges.of(self.spans.values()).spans]
        parts = [
            And(GreaterThanOrEqual(term=column, value=low), LessThan(term=column, value=high)) for low, high in bounds
        ]
        return parts[0] if len(parts) == 1 else Or(*parts)


@dataclass(frozen=True)
class Values:
    """A region's axis of static or dynamic keys."""

    column: str
    type: IcebergType
    position: int
    """As in Times."""
    keys: Mapping[Any, str]
    """Value of the column → its key."""

    def key_of(self, value: Any) -> str | None:
        """As Times.key_of()."""
        return None if value is None else self.keys.get(value)

    def possible(self, fields: Sequence[tuple[PartitionField, Any]]) -> tuple[Set[Any], bool]:
        """Returns which of the keys' values a partition may hold, and whether all its rows have one value."""
        values: Set[Any] = self.keys.keys()
        for field, value in fields:
            found = self._images(field.transform).get(value, frozenset())
            # An overflowing value may be in any partition, except that of null.
            values = (found | self.overflowing(field.transform) if value is not None else found) & values
        return values, any(isinstance(field.transform, IdentityTransform) for field, _ in fields)

    def overflowing(self, transform: Transform[Any, Any]) -> frozenset[Any]:
        """Returns the keys' values that may be in any partition: Iceberg's truncate overflows, PyIceberg's does not."""
        if not isinstance(transform, TruncateTransform) or not isinstance(self.type, (IntegerType, LongType)):
            return frozenset()
        return frozenset(value for value in self.keys if not truncates_in_order(transform.width, value))

    def _images(self, transform: Transform[Any, Any]) -> Mapping[Any, frozenset[Any]]:
        """Returns partition value → the keys' values in it."""
        if str(transform) not in self._cache:
            apply, images = transform.transform(self.type), defaultdict(set)
            for value in self.keys:
                images[apply(value)].add(value)
            self._cache[str(transform)] = {image: frozenset(values) for image, values in images.items()}
        return self._cache[str(transform)]

    # A cached property, because a frozen dataclass takes no other attribute.
    @cached_property
    def _cache(self) -> dict[str, Mapping[Any, frozenset[Any]]]:
        return {}

    def predicate(self) -> BooleanExpression:
        """Selects the rows with the keys' values."""
        return In(term=Reference(self.column), values={literal(value) for value in self.keys})


@dataclass(frozen=True)
class Region:
    """The part of a table that partition keys own."""

    keys: tuple[str, ...]
    axes: tuple[Times | Values, ...]
    """In the order of a multi-partition key."""
    cells: Mapping[tuple[Any, ...], Ranges]
    """The time axis's spans for each combination of the other axes' values that keys have."""

    @cached_property
    def _owned(self) -> frozenset[str]:
        """Its keys; of a table without partitions, WHOLE (keys_text.py)."""
        return frozenset(parts_of(self.keys))

    @cached_property
    def _hull(self) -> Ranges:
        """The spans of all cells together."""
        return Ranges.of(span for ranges in set(self.cells.values()) for span in ranges.spans)

    @cached_property
    def values(self) -> tuple[Values, ...]:
        """The axes other than time."""
        return tuple(axis for axis in self.axes if isinstance(axis, Values))

    def key_of(self, partition: Record) -> str | None:
        """Returns the key that owns a partition of the declared spec: WHOLE without axes, None outside the region."""
        parts = [part for axis in self.axes if (part := axis.key_of(partition[axis.position])) is not None]
        key = "|".join(parts)
        return key if len(parts) == len(self.axes) and key in self._owned else None

    def relation(self, schema: Schema, spec: PartitionSpec, partition: Record) -> Relation:
        """Places a partition of any of the table's specs, current or old, relative to the region.

        schema: the table's; columns match by name, as its field ids may differ from the declaration's. A partition of
        nulls in one of the region's columns is outside; one whose spec doesn't constrain such a column overlaps.
        """
        # Files that are INSIDE are replaced: the region must own every row that such a partition can hold.
        window: Span | None = EVERYTHING
        choices: list[Set[Any]] = []
        is_one_cell = True
        for axis in self.axes:
            fields = _fields(axis.column, schema, spec, partition)
            if isinstance(axis, Times):
                window = axis.possible(fields)
            else:
                values, has_one_value = axis.possible(fields)
                choices.append(values)
                is_one_cell &= has_one_value
        if window is None or self._hull.relation(window) is Relation.OUTSIDE:
            return Relation.OUTSIDE
        is_any_cell = all(len(values) == len(axis.keys) for values, axis in zip(choices, self.values, strict=True))
        # A shortcut past the product of all values: as the hull meets the window, so does some cell. The partition may
        # also hold values that the region lacks, so it is not inside.
        if is_any_cell and not is_one_cell:
            return Relation.OVERLAPS
        found = (self.cells[cell].relation(window) for cell in product(*choices) if cell in self.cells)
        if is_one_cell:  # or none, if the region lacks a value
            return next(found, Relation.OUTSIDE)
        return Relation.OVERLAPS if any(r is not Relation.OUTSIDE for r in found) else Relation.OUTSIDE

    def predicate_on(self, schema: Schema, specs: Iterable[PartitionSpec]) -> BooleanExpression:
        """Returns predicate(), or all rows if partitions by one of the table's specs may have overflowed.

        PyIceberg would skip the manifests that list such partitions.
        """
        sources = {schema.find_field(axis.column).field_id: axis for axis in self.values}
        fields = [field for spec in specs for field in spec.fields if field.source_id in sources]
        overflows = any(sources[field.source_id].overflowing(field.transform) for field in fields)
        return AlwaysTrue() if overflows else self.predicate()

    def predicate(self) -> BooleanExpression:
        """Selects the region's rows, and those of other combinations of its keys' parts.

        That suffices to find the manifests; relation() then decides about each file.
        """
        everything: BooleanExpression = AlwaysTrue()
        return reduce(And, (axis.predicate() for axis in self.axes), everything)


def _fields(column: str, schema: Schema, spec: PartitionSpec, partition: Record) -> list[tuple[PartitionField, Any]]:
    """Returns the spec's fields on a column, with the partition's values; leaves out those that tell nothing."""
    source = schema.find_field(column).field_id
    return [
        (field, partition[at])
        for at, field in enumerate(spec.fields)
        if field.source_id == source and not isinstance(field.transform, (VoidTransform, UnknownTransform))
    ]

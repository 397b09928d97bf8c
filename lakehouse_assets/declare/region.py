"""A region: the part of an Iceberg table that some partition keys own, as partition tuples and as a row predicate.

How keys become spans and values is in alignment.py. No catalog, no files.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, reduce
from itertools import product
from typing import Any

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
from pyiceberg.types import IcebergType, IntegerType, LongType

from lakehouse_assets.declare.windows import EVERYTHING, Span, span
from lakehouse_assets.keys_text import parts_of
from lakehouse_assets.wire.work import truncates_in_order


class Relation(StrEnum):
    """The place of an Iceberg partition with regard to a region."""

    INSIDE = "inside"
    OUTSIDE = "outside"
    OVERLAPS = "overlaps"


@dataclass(frozen=True)
class Ranges:
    """Disjoint spans in ascending order, none touching the next."""

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
        """Says whether a span lies in one of these spans, outside all of them, or partly inside."""
        low, high = part
        at = bisect_left(self.spans, (high,)) - 1  # the last span that starts before the part ends
        if at < 0 or self.spans[at][1] <= low:
            return Relation.OUTSIDE
        return Relation.INSIDE if self.spans[at][0] <= low and high <= self.spans[at][1] else Relation.OVERLAPS


@dataclass(frozen=True)
class Times:
    """A region's time dimension."""

    column: str
    type: IcebergType
    position: int
    """The position of its partition field in the spec."""
    transform: Transform[Any, Any]
    spans: Mapping[str, Span]
    """The span of each key, ascending, in the column's unit."""

    @cached_property
    def _owners(self) -> tuple[list[Any], list[Any], list[str]]:
        apply = self.transform.transform(self.type)
        starts, ends = ([apply(s[i]) for s in self.spans.values()] for i in (0, 1))
        return starts, ends, list(self.spans)

    def key_of(self, value: Any) -> str | None:
        """Returns the key that owns a partition value; None if none does."""
        starts, ends, keys = self._owners
        at = -1 if value is None else bisect_right(starts, value) - 1
        return keys[at] if at >= 0 and value < ends[at] else None

    def possible(self, fields: Sequence[tuple[PartitionField, Any]]) -> Span | None:
        """Returns the column's values in a partition of any spec; None if all are null.

        fields: the spec's partition fields on this column, with the partition's values.
        """
        low, high = EVERYTHING
        for field, value in fields:
            if value is None:
                return None
            if isinstance(field.transform, (TimeTransform, IdentityTransform)):
                start, end = span(field.transform, value, self.type)
                low, high = max(low, start), min(high, end)
        return low, high

    def predicate(self) -> BooleanExpression:
        """Selects the rows whose time lies in a span of some key."""
        column = Reference(self.column)
        bounds = [[literal(int(bound)) for bound in span] for span in Ranges.of(self.spans.values()).spans]
        parts = [
            And(GreaterThanOrEqual(term=column, value=low), LessThan(term=column, value=high)) for low, high in bounds
        ]
        return parts[0] if len(parts) == 1 else Or(*parts)


@dataclass(frozen=True)
class Values:
    """A region's static or dynamic dimension."""

    column: str
    type: IcebergType
    position: int
    """The position of its identity field in the spec."""
    keys: Mapping[Any, str]
    """The keys by the column's values."""

    def key_of(self, value: Any) -> str | None:
        """Returns the key that owns a partition value; None if none does."""
        return None if value is None else self.keys.get(value)

    def possible(self, fields: Sequence[tuple[PartitionField, Any]]) -> tuple[Set[Any], bool]:
        """Returns the region's values that a partition of any spec may hold, and whether it can hold only these."""
        values: Set[Any] = self.keys.keys()
        for field, value in fields:
            found = self._images(field.transform).get(value, frozenset())
            values = (found | self.overflowing(field.transform) if value is not None else found) & values
        return values, any(isinstance(field.transform, IdentityTransform) for field, _ in fields)

    def overflowing(self, transform: Transform[Any, Any]) -> frozenset[Any]:
        """Finds the region's values that may be in any partition by the transform.

        Iceberg's truncate overflows there, PyIceberg's does not.
        """
        if not isinstance(transform, TruncateTransform) or not isinstance(self.type, (IntegerType, LongType)):
            return frozenset()
        return frozenset(value for value in self.keys if not truncates_in_order(transform.width, value))

    def _images(self, transform: Transform[Any, Any]) -> Mapping[Any, frozenset[Any]]:
        if str(transform) not in self._cache:
            apply, images = transform.transform(self.type), defaultdict(set)
            for value in self.keys:
                images[apply(value)].add(value)
            self._cache[str(transform)] = {image: frozenset(values) for image, values in images.items()}
        return self._cache[str(transform)]

    @cached_property
    def _cache(self) -> dict[str, Mapping[Any, frozenset[Any]]]:
        return {}

    def predicate(self) -> BooleanExpression:
        """Selects the rows that have the value of some key in the column."""
        return In(term=Reference(self.column), values={literal(value) for value in self.keys})


@dataclass(frozen=True)
class Region:
    """The part of a table that some partition keys own."""

    keys: tuple[str, ...]
    axes: tuple[Times | Values, ...]
    """One axis for each Dagster dimension, in the order of a multi-partition key."""
    cells: Mapping[tuple[Any, ...], Ranges]
    """The spans of the time axis, for each combination of the value axes' values."""

    @cached_property
    def _owned(self) -> frozenset[str]:
        return frozenset(parts_of(self.keys))

    @cached_property
    def _hull(self) -> Ranges:
        return Ranges.of(span for ranges in set(self.cells.values()) for span in ranges.spans)

    @cached_property
    def values(self) -> tuple[Values, ...]:
        """The axes that are not time."""
        return tuple(axis for axis in self.axes if isinstance(axis, Values))

    def key_of(self, partition: Record) -> str | None:
        """Returns the key that owns a partition tuple of the declared spec; WHOLE without partitions, None outside."""
        parts = [part for axis in self.axes if (part := axis.key_of(partition[axis.position])) is not None]
        key = "|".join(parts)
        return key if len(parts) == len(self.axes) and key in self._owned else None

    def relation(self, schema: Schema, spec: PartitionSpec, partition: Record) -> Relation:
        """Says where a partition of any spec of the table, current or old, lies.

        schema: the table's (columns are matched by name, field ids are the table's own). A partition of nulls in one of
        the region's columns is outside; one whose spec does not constrain such a column overlaps.
        """
        window: Span | None = EVERYTHING
        choices: list[Set[Any]] = []
        pinned = True
        for axis in self.axes:
            fields = _fields(axis.column, schema, spec, partition)
            if isinstance(axis, Times):
                window = axis.possible(fields)
            else:
                values, only_these = axis.possible(fields)
                choices.append(values)
                pinned &= only_these
        if window is None or self._hull.relation(window) is Relation.OUTSIDE:
            return Relation.OUTSIDE
        if not pinned and all(len(values) == len(axis.keys) for values, axis in zip(choices, self.values, strict=True)):
            return Relation.OVERLAPS  # every cell is possible, and at least one is in the window
        found = (self.cells[cell].relation(window) for cell in product(*choices) if cell in self.cells)
        if pinned:
            return next(found, Relation.OUTSIDE)
        return Relation.OVERLAPS if any(r is not Relation.OUTSIDE for r in found) else Relation.OUTSIDE

    def predicate_on(self, schema: Schema, specs: Iterable[PartitionSpec]) -> BooleanExpression:
        """Selects what predicate() does, or all rows where partitions by one of the specs may have overflowed.

        PyIceberg would pass over the manifests that list such partitions.

        schema, specs: the table's.
        """
        sources = {schema.find_field(axis.column).field_id: axis for axis in self.values}
        fields = [field for spec in specs for field in spec.fields if field.source_id in sources]
        overflows = any(sources[field.source_id].overflowing(field.transform) for field in fields)
        return AlwaysTrue() if overflows else self.predicate()

    def predicate(self) -> BooleanExpression:
        """Selects the rows of this region, and others of several dimensions that each have a part of some key.

        That is enough to tell which manifests may list the region's files; relation() tells which files these are.
        """
        everything: BooleanExpression = AlwaysTrue()
        return reduce(And, (axis.predicate() for axis in self.axes), everything)


def _fields(column: str, schema: Schema, spec: PartitionSpec, partition: Record) -> list[tuple[PartitionField, Any]]:
    source = schema.find_field(column).field_id
    return [
        (field, partition[at])
        for at, field in enumerate(spec.fields)
        if field.source_id == source and not isinstance(field.transform, (VoidTransform, UnknownTransform))
    ]

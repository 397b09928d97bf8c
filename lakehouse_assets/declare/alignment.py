"""Lines up Dagster partition keys with Iceberg partitions, or refuses them, and finds the region that some keys own.

No catalog, no run. A single dimension is in dimensions.py, regions are in region.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from textwrap import shorten
from typing import Any

import dagster as dg
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from lakehouse_assets.declare import windows
from lakehouse_assets.declare.dimensions import (
    EMPTY_KEY,
    Dimension,
    TimeDimension,
    dimensions_of,
    input_dimensions,
    quoted,
)
from lakehouse_assets.declare.region import Ranges, Region, Times, Values
from lakehouse_assets.declare.terms import spec_text
from lakehouse_assets.errors import DeclarationError, UnknownPartitions


@dataclass(frozen=True)
class Alignment:
    """The way a table's partitions correspond: each Dagster partition is a whole number of Iceberg partitions."""

    identifier: str
    parts: tuple[Dimension, ...]
    """One dimension for each Dagster dimension, in the order of a multi-partition key."""
    of_table: bool = True
    """Whether the Dagster partitions own rows of the table; False if they only select what its step reads."""

    @classmethod
    def of(
        cls, identifier: str, schema: Schema, spec: PartitionSpec, partitions: dg.PartitionsDefinition | None
    ) -> Alignment:
        """Aligns a table whose Dagster partitions own its rows.

        Raises DeclarationError where replacing a Dagster partition would need row-level rewrites, and where it is
        unclear which partition field a dimension means.
        """
        try:
            return cls(identifier, dimensions_of(schema, spec, partitions))
        except ValueError as error:
            definition = f"{type(partitions).__name__}: {shorten(str(partitions).rstrip('.'), 120)}"
            raise DeclarationError(
                f"table {identifier!r}: its Dagster partitions ({definition}) do not line up with its Iceberg "
                f"partitions ({spec_text(spec, schema)}): {error}"
            ) from error

    @classmethod
    def of_input(cls, identifier: str, partitions: dg.PartitionsDefinition | None) -> Alignment:
        """Aligns a table whose partitions say what a step reads, not where its rows are.

        Raises DeclarationError for partitions that are not supported.
        """
        try:
            return cls(identifier, input_dimensions(partitions), of_table=False)
        except ValueError as error:
            raise DeclarationError(f"table {identifier!r}: its Dagster partitions can't be used: {error}") from error

    def region(self, keys: Sequence[str]) -> Region:
        """Returns the part of the table that these keys own: all of a table whose partitions only select its input.

        Raises UnknownPartitions for keys that the table lacks, and for no keys if it has partitions.
        """
        rows = self._split(keys)
        everything = Region((), (), {(): Ranges((windows.EVERYTHING,))})
        if not self.parts:
            return everything
        columns = zip(*rows, strict=True)
        with self._naming_the_table():
            axes = tuple(part.axis(dict.fromkeys(column)) for part, column in zip(self.parts, columns, strict=True))
        return Region(tuple(dict.fromkeys(keys)), axes, _cells(axes, rows)) if self.of_table else everything

    def dimensions(self, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Returns the distinct keys of each dimension, in order, by the dimension's name.

        A single static or dynamic dimension is named as its column. Empty for time windows alone, where the window's
        start and end say everything.
        """
        rows = self._split(keys)
        if len(self.parts) == 1 and isinstance(self.parts[0], TimeDimension):
            return {}
        return {part.name: tuple(dict.fromkeys(row[at] for row in rows)) for at, part in enumerate(self.parts)}

    def window(self, keys: Sequence[str]) -> tuple[datetime, datetime] | None:
        """Returns [start, end) from the earliest window to the latest, in the definition's zone; None without time."""
        rows = self._split(keys)
        for at, part in enumerate(self.parts):
            if isinstance(part, TimeDimension):
                with self._naming_the_table():
                    bounds = list(part.windows({row[at] for row in rows}).values())
                return bounds[0][0], bounds[-1][1]
        return None

    def _split(self, keys: Sequence[str]) -> list[tuple[str, ...]]:
        """Splits each key into its parts, one for each dimension."""
        if not self.parts and keys:
            raise UnknownPartitions(f"table {self.identifier!r} has no Dagster partitions, asked for {quoted(keys)}")
        if self.parts and not keys:
            raise UnknownPartitions(
                f"table {self.identifier!r} is partitioned and no partition was asked for (Dagster drops an empty key)"
            )
        if "" in keys:
            raise UnknownPartitions(f"table {self.identifier!r}: {EMPTY_KEY}")
        # The key of a single dimension may contain a bar; Dagster forbids it in those of several.
        rows = [tuple(key.split("|")) if len(self.parts) > 1 else (key,) for key in keys]
        if wrong := [key for key, row in zip(keys, rows, strict=True) if len(row) != len(self.parts)]:
            form = "|".join(part.name for part in self.parts)
            raise UnknownPartitions(f"table {self.identifier!r} has keys of the form {form}, asked for {quoted(wrong)}")
        return rows

    @contextmanager
    def _naming_the_table(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise UnknownPartitions(f"table {self.identifier!r}: {error}") from error


def _cells(axes: Sequence[Times | Values], rows: Sequence[tuple[str, ...]]) -> dict[tuple[Any, ...], Ranges]:
    """Returns the Region.cells of these rows, each of which has one key for each axis."""
    owned = [a.spans if isinstance(a, Times) else {key: value for value, key in a.keys.items()} for a in axes]
    time = next((at for at, axis in enumerate(axes) if isinstance(axis, Times)), None)
    spans: dict[tuple[Any, ...], list[windows.Span]] = defaultdict(list)
    for row in rows:
        cell: list[Any] = [of_key[key] for of_key, key in zip(owned, row, strict=True)]
        span = windows.EVERYTHING if time is None else cell.pop(time)
        spans[tuple(cell)].append(span)
    return {cell: Ranges.of(of_cell) for cell, of_cell in spans.items()}

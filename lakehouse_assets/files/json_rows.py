"""Reads JSON files into typed rows: an object a line, or one array, each field by its type's grammar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyiceberg.types import IcebergType

from lakehouse_assets.files.cell_types import Spelling
from lakehouse_assets.files.delivered import MOST_SHOWN, DeliveredFile, NotUnpacked, WrongFile, check_encoding, unpacked
from lakehouse_assets.files.json_values import JsonColumns, json_arrow_type, objects_of
from lakehouse_assets.type_text import parse_type

# The most rows and characters of a batch: whichever is reached first.
BATCH, BATCH_SIZE = 10_000, 2**24


@dataclass(frozen=True)
class JsonReader:
    """Reads JSON files. Raises ValueError for a schema or options that can't work."""

    schema: Mapping[str, str]
    encoding: str
    spelling: Spelling
    rename: Mapping[str, str]
    """A field's name in files → its column."""
    ignore: Sequence[str]
    """Fields to leave out; those of a struct by their path."""

    def __post_init__(self) -> None:
        # A format may be that of a struct's member, such as place.since: only its column is checked.
        formats = {name.partition(".")[0] for name in self.spelling.formats}
        if unknown := {*self.rename.values(), *formats} - {*self.schema}:
            raise ValueError(f"rename and formats name {', '.join(sorted(unknown))}, which the schema lacks")
        check_encoding(self.encoding)
        # Raises ValueError for types that JSON can't have.
        _ = self.arrow

    @cached_property
    def arrow(self) -> pa.Schema:
        """The rows' schema."""
        return pa.schema([(name, json_arrow_type(type_)) for name, type_ in self._types.values()])

    @cached_property
    def _types(self) -> Mapping[str, tuple[str, IcebergType]]:
        """Field in files → its column and type."""
        before = {column: name for name, column in self.rename.items()}
        return {before.get(name, name): (name, parse_type(type_)) for name, type_ in self.schema.items()}

    @cached_property
    def _columns(self) -> JsonColumns:
        return JsonColumns(self.spelling, frozenset(self.ignore))

    def head_problem(self, file: DeliveredFile) -> str | None:
        """Returns what is wrong with a file's first object, or None. Only its fields are checked, not their values."""
        try:
            with unpacked(file.location) as content:
                first = next(objects_of(content, self.encoding), None)
        except NotUnpacked as error:
            return str(error)
        if first is None:
            return None if file.size else "is empty"
        if isinstance(first.found, str):
            return f"{first.found} (line {first.number})"
        unknown = first.found.keys() - {*self._types, *self.ignore}
        return f"has other fields (unknown: {', '.join(sorted(unknown))})" if unknown else None

    def rows(self, file: DeliveredFile) -> Iterator[pa.RecordBatch]:
        """Yields a file's rows, with nulls for wrong values.

        Raises WrongFile at the end for these values together, or as soon as MOST_SHOWN are found.
        """
        wrong: list[tuple[int, str]] = []
        try:
            with unpacked(file.location) as content:
                for lines, objects in self._batches(content, wrong):
                    yield self._typed(lines, objects, wrong)
                    if len(wrong) >= MOST_SHOWN:
                        break
        except NotUnpacked as error:
            raise WrongFile(f" {error}") from None
        if wrong:
            raise WrongFile(*(f", line {line}{told}" for line, told in sorted(wrong)[:MOST_SHOWN]))

    def _batches(self, content: Any, wrong: list[tuple[int, str]]) -> Iterator[tuple[list[int], list[dict[str, Any]]]]:
        """Yields batches of objects with their lines; adds lines that hold no object to ``wrong``."""
        lines: list[int] = []
        objects: list[dict[str, Any]] = []
        size = 0
        for line in objects_of(content, self.encoding):
            if isinstance(line.found, str):
                wrong.append((line.number, f": {line.found}"))
                if len(wrong) >= MOST_SHOWN:
                    break
                continue
            lines.append(line.number)
            objects.append(line.found)
            size += line.size
            if len(objects) >= BATCH or size >= BATCH_SIZE:
                yield lines, objects
                lines, objects, size = [], [], 0
        if objects:
            yield lines, objects

    def _typed(
        self, lines: Sequence[int], objects: Sequence[dict[str, Any]], wrong: list[tuple[int, str]]
    ) -> pa.RecordBatch:
        """Converts a batch; adds wrong values to ``wrong``. lines: the line of each object."""
        columns, found = self._columns.members(objects, self._types)
        # A place begins with a dot, which the message leaves out.
        wrong += [(lines[one.row], f", field {one.place[1:]}: {one.told}") for one in found]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)

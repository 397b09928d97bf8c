"""Reads CSV files into typed rows: by the header's names, each cell by its type's grammar."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse_assets.files.advice import advice
from lakehouse_assets.files.cell_types import Spelling, arrow_type, read_cells
from lakehouse_assets.files.csv_text import CsvForm, MalformedFile, as_text, batches_of, records_of
from lakehouse_assets.files.delivered import MOST_SHOWN, DeliveredFile, NotUnpacked, WrongFile, shortened, unpacked

# The most rows of a batch: Spark's default for exchange with Python (spark.sql.execution.arrow.maxRecordsPerBatch).
BATCH = 10_000


@dataclass(frozen=True)
class CsvReader:
    """Reads CSV files of one form. Raises ValueError for a schema or options that can't work."""

    schema: Mapping[str, str]
    form: CsvForm
    spelling: Spelling
    nulls: Sequence[str]
    """How missing values are written."""
    rename: Mapping[str, str]
    """A column's name in files → its own."""
    ignore: Sequence[str]
    trim: bool
    """Whether to remove blanks around cells and names."""

    def __post_init__(self) -> None:
        unknown = [*({*self.rename.values(), *self.spelling.formats} - {*self.schema})]
        if unknown:
            raise ValueError(f"rename and formats name {', '.join(unknown)}, which the schema lacks")
        if both := {*self.ignore} & {*self._in_file}:
            raise ValueError(f"ignore names {', '.join(sorted(both))}, which the schema has")
        for names in (self.ignore, [*self.rename.values()]):
            if len({*names}) < len(names):
                raise ValueError(f"ignore and rename name a column once, found {', '.join(names)}")
        if not self.form.header and (self.rename or self.ignore):
            raise ValueError("rename and ignore are for names in a header, and header=False says that there is none")
        # Raises ValueError for types that a cell can't have.
        _ = self.arrow

    @cached_property
    def arrow(self) -> pa.Schema:
        """The rows' schema."""
        return pa.schema([(name, arrow_type(type_)) for name, type_ in self.schema.items()])

    @cached_property
    def _in_file(self) -> list[str]:
        """The columns' names in files, in the schema's order."""
        before = {column: name for name, column in self.rename.items()}
        return [before.get(column, column) for column in self.schema]

    def head_problem(self, file: DeliveredFile) -> str | None:
        """Returns what is wrong with a file's header, or without one with its first row; None if nothing is."""
        try:
            names = self._first_row(file)
        except NotUnpacked as error:
            return str(error)
        except MalformedFile as error:
            return f"{error.problem} (line {error.line})" if error.line else error.problem
        if not names:
            return "is empty, without even a header" if self.form.header else "is empty"
        if not self.form.header:
            expected = len(self.schema)
            return None if len(names) == expected else f"has {len(names)} cells in its first row, expected {expected}"
        return self._header_problem(names)

    def _header_problem(self, names: Sequence[str]) -> str | None:
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            told = ", ".join(map(repr, repeated))
            return f"has the column {told} more than once; header=False with skip=1 reads its columns by their order"
        lacks = [name for name in (*self._in_file, *self.ignore) if name not in names]
        has = [name for name in names if name not in {*self._in_file, *self.ignore}]
        if not lacks and not has:
            return None
        missing, unknown = (", ".join(found) or "none" for found in (lacks, map(_named, has)))
        way = "; encoding='cp1252' reads names from Windows" if any("\ufffd" in name for name in names) else ""
        return f"has other columns (missing: {missing}; unknown: {unknown}; header: {','.join(names)}{way})"

    def rows(self, file: DeliveredFile) -> Iterator[pa.RecordBatch]:
        """Yields a file's rows, with nulls for wrong cells.

        Raises WrongFile at the end for these cells together, or as soon as MOST_SHOWN are found.
        """
        wrong: list[tuple[int, str, str]] = []
        try:
            with unpacked(file.location) as content:
                yield from self._batches(content, file, wrong)
        except NotUnpacked as error:
            raise WrongFile(f" {error}") from None
        except MalformedFile as error:
            raise WrongFile(*self._malformed(file, error)) from None
        if wrong:
            first = sorted(wrong)[:MOST_SHOWN]
            lines = self._lines_of(file, {row for row, _, _ in first})
            raise WrongFile(*(f", line {lines[row]}, column {name}: {told}" for row, name, told in first))

    # Reads the file again: PyArrow gives no lines.
    def _lines_of(self, file: DeliveredFile, rows: Container[int]) -> dict[int, int]:
        """Returns row → the line on which it begins. rows: numbers from 0, without the header."""
        with unpacked(file.location) as content:
            # A header gets the number -1, so that the first row is 0.
            first = -1 if self.form.header else 0
            numbered = enumerate(records_of(content, self.form), first)
            return {row: line for row, (_, line) in numbered if row in rows}

    def _batches(
        self, content: BinaryIO, file: DeliveredFile, wrong: list[tuple[int, str, str]]
    ) -> Iterator[pa.RecordBatch]:
        places, row = None, 0
        for read in batches_of(content, self.form, len(self.schema) + len(self.ignore), self.nulls):
            batch = read
            # The first batch begins with the header, if there is one. places: column's name in the file → its position.
            if places is None:
                places = {name: place for place, name in enumerate(self._names_in(read, file))}
                batch = read.slice(1 if self.form.header else 0)
            for start in range(0, batch.num_rows, BATCH):
                part = batch.slice(start, BATCH)
                yield self._typed(part, places, row, wrong)
                row += part.num_rows
                if len(wrong) >= MOST_SHOWN:
                    return

    def _names_in(self, batch: pa.RecordBatch, file: DeliveredFile) -> list[str]:
        """Returns the columns' names in the file. batch: the first one."""
        if not self.form.header:
            return [*self.schema]
        cells = [column[0].as_py() for column in batch.columns]
        if None in cells:  # Arrow has taken a name such as NA for a null: only our own reader has its text
            return self._first_row(file)
        return self._names([cell.decode(errors="replace") for cell in cells])

    def _first_row(self, file: DeliveredFile) -> list[str]:
        with unpacked(file.location) as content:
            cells, _ = next(records_of(content, self.form), (list[str](), 0))
        return self._names(cells)

    def _names(self, cells: Sequence[str]) -> list[str]:
        return [cell.strip(" \t") if self.trim else cell for cell in cells]

    def _typed(
        self, batch: pa.RecordBatch, places: Mapping[str, int], row: int, wrong: list[tuple[int, str, str]]
    ) -> pa.RecordBatch:
        """Converts a batch; adds wrong cells to ``wrong`` (row, column, message). row: the number of its first row."""
        columns = []
        for field, in_file in zip(self.arrow, self._in_file, strict=True):
            texts, not_utf8 = as_text(batch.column(places[in_file]))
            if self.trim:
                # The parser has looked for nulls before the blanks were removed.
                texts = pc.utf8_trim(texts, " \t")
                texts = pc.if_else(self._is_null(texts), None, texts)
            values, is_wrong = read_cells(texts, field.name, field.type, self.spelling)
            # A quoted null such as "NA" arrives as text. In a string column, it is that text; in any other, it is null.
            if pc.any(is_wrong).as_py():
                is_wrong = pc.and_not(is_wrong, self._is_null(texts))
            columns.append(values)
            wrong += [
                (row + n, field.name, "holds bytes that are not UTF-8; encoding='cp1252' takes those of Windows")
                for n in not_utf8
            ]
            for n in islice((pc.indices_nonzero(is_wrong)).to_pylist(), MOST_SHOWN):
                text, type_ = texts[n].as_py(), self.schema[field.name]
                told = advice(text, field.name, type_, self.spelling)
                wrong.append((row + n, field.name, f"{shortened(text)} is no {type_}{told}"))
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)

    def _is_null(self, texts: pa.StringArray) -> pa.BooleanArray:
        return pc.is_in(texts, pa.array(self.nulls, pa.string()))

    def _malformed(self, file: DeliveredFile, error: MalformedFile) -> Iterator[str]:
        """Yields what is wrong. PyArrow names no line for rows of another length, so these are looked for here."""
        if error.line is not None:
            yield f", line {error.line}: {error.problem}"
            return
        expected = len(self.schema) + len(self.ignore)
        with unpacked(file.location) as content:
            rows = ((cells, line) for cells, line in records_of(content, self.form) if len(cells) != expected)
            first = [*islice(rows, MOST_SHOWN)]
        for cells, line in first:
            text = shortened(self.form.delimiter.join(cells))
            yield f", line {line}: has {len(cells)} cells, expected {expected}: {text}"
        if not first:  # a row is too long for PyArrow
            yield f": {error.problem}"


def _named(name: str) -> str:
    return name or "one without a name"

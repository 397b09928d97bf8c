"""Reads Parquet files into typed rows: columns by their names, each value unchanged."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from pyiceberg.types import IcebergType

from lakehouse_assets.files.delivered import MOST_SHOWN, DeliveredFile, WrongFile, file_system
from lakehouse_assets.files.parquet_values import INT96, converted, parquet_arrow_type, told_type, type_problem
from lakehouse_assets.type_text import parse_type

# The most rows of a batch.
BATCH = 10_000
NO_PARQUET = "is no Parquet file, or not all of it"


class NoParquet(ValueError):
    """A file is no Parquet, or is damaged. The message is Arrow's."""


@dataclass(frozen=True)
class ParquetReader:
    """Reads Parquet files. Raises ValueError for a schema or options that can't work."""

    schema: Mapping[str, str]
    rename: Mapping[str, str]
    """A column's name in files → its own."""
    ignore: Sequence[str]

    def __post_init__(self) -> None:
        if unknown := {*self.rename.values()} - {*self.schema}:
            raise ValueError(f"rename names {', '.join(sorted(unknown))}, which the schema lacks")
        # Raises ValueError for types that can't be declared.
        _ = self.arrow

    @cached_property
    def arrow(self) -> pa.Schema:
        """The rows' schema."""
        column_of = {name: column for column, name in self._in_file.items()}
        return pa.schema([(column_of[name], parquet_arrow_type(type_)) for name, type_ in self._types.items()])

    @cached_property
    def _in_file(self) -> Mapping[str, str]:
        """Column → its name in files."""
        before = {column: name for name, column in self.rename.items()}
        return {column: before.get(column, column) for column in self.schema}

    @cached_property
    def _types(self) -> Mapping[str, IcebergType]:
        """Name in files → type."""
        return {self._in_file[column]: parse_type(type_) for column, type_ in self.schema.items()}

    def head_problem(self, file: DeliveredFile) -> str | None:
        """Returns what is wrong with a file's columns and types, or None."""
        try:
            return self._schema_problem(schema_in(file.location))
        except NoParquet as error:
            return f"{NO_PARQUET} ({error})"

    def _schema_problem(self, found: pa.Schema) -> str | None:
        names = [name for name in found.names if name not in self.ignore]
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            return f"has the column {', '.join(repeated)} more than once"
        missing, unknown = self._types.keys() - {*names}, {*names} - self._types.keys()
        problems = {
            name: type_problem(self._types[name], found.field(name).type) for name in names if name not in unknown
        }
        others = [f"{name}{problem}" for name, problem in problems.items() if problem]
        if not missing and not unknown and not others:
            return None
        told = (", ".join(sorted(missing)), ", ".join(sorted(unknown)), "; ".join(others))
        lacks, has, differ = (one or "none" for one in told)
        return f"has other columns (missing: {lacks}; unknown: {has}; of another type: {differ})"

    def rows(self, file: DeliveredFile) -> Iterator[pa.RecordBatch]:
        """Yields a file's rows, numbered from 1 in messages.

        Raises WrongFile at once for damage, and for wrong values at the end or once MOST_SHOWN are found.
        """
        wrong: list[tuple[int, str]] = []
        row = 1
        try:
            for batch in _batches_in(file.location, [*self._types]):
                yield self._typed(batch, row, wrong)
                row += batch.num_rows
                if len(wrong) >= MOST_SHOWN:
                    break
        except NoParquet as error:
            raise WrongFile(f" is damaged at or behind row {row}, or its reader does not know it ({error})") from None
        if wrong:
            raise WrongFile(*(f", row {number}, column {told}" for number, told in sorted(wrong)[:MOST_SHOWN]))

    def _typed(self, batch: pa.RecordBatch, row: int, wrong: list[tuple[int, str]]) -> pa.RecordBatch:
        """Converts a batch; adds wrong values to ``wrong``. row: the number of the first row."""
        columns = []
        for name, type_ in self._types.items():
            array, found = converted(batch.column(name), type_)
            columns.append(array)
            wrong += [(row + one.row, f"{name}{one.place}: {one.told}") for one in found]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)


def columns_of_parquet(location: str) -> list[tuple[str, str]]:
    """Returns a file's columns: name → declared type. location: a path or a URL.

    Raises ValueError if it is no Parquet, or a column's type can't be declared; OSError for storage.
    """
    try:
        found = schema_in(location)
    except NoParquet as error:
        raise ValueError(f"{NO_PARQUET} ({error})") from None
    if not len(found):
        raise ValueError("it has no columns")
    columns = []
    for field in found:
        try:
            type_ = told_type(field.type)
            parse_type(type_)
        except ValueError as error:
            raise ValueError(f"column {field.name}: {error}; ignore=[{field.name!r}] leaves it out") from None
        columns.append((field.name, type_))
    return columns


def schema_in(location: str) -> pa.Schema:
    """Returns a file's schema, with Parquet's old timestamps (INT96) as the Arrow type INT96.

    Raises NoParquet, and OSError for storage.
    """
    with _opened(location) as raw, _damage_told(raw):
        found = parquet.ParquetFile(pa.PythonFile(raw, "r"), coerce_int96_timestamp_unit=INT96.unit).schema_arrow
        found.to_string(show_field_metadata=False, show_schema_metadata=False)  # fails on names that are not UTF-8
        return found


def _batches_in(location: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields a file's rows in batches of these columns. Raises NoParquet, and OSError for storage."""
    # With pre_buffer, a file's bytes would stay in memory until its end. INT96 is cut to microseconds, as in Spark:
    # nanoseconds in 64 bits end in the year 2262, and later times would become others.
    options = {"coerce_int96_timestamp_unit": "us", "page_checksum_verification": True, "pre_buffer": False}
    with _opened(location) as raw, _damage_told(raw):
        file = parquet.ParquetFile(pa.PythonFile(raw, "r"), **options)
        rows = 0
        for batch in file.iter_batches(BATCH, columns=[*columns], use_threads=False):
            rows += batch.num_rows
            yield batch
    # Arrow ends silently if a column ends too early.
    if rows < file.metadata.num_rows:
        raise NoParquet(f"{rows} rows, of which its footer promises {file.metadata.num_rows}")


@contextmanager
def _opened(location: str) -> Iterator[_Raw]:
    system, path = file_system(location)
    with system.open_input_file(path) as source:
        yield _Raw(source)


@contextmanager
def _damage_told(raw: _Raw) -> Iterator[None]:
    """Raises NoParquet for damage; raises a failure of the storage as it is."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if raw.failed:
            raise raw.failed from None
        raise NoParquet(str(error).partition("\n")[0]) from None


class _Raw(io.RawIOBase):
    """A file in storage, read through Python to keep the storage's error: Arrow's own does not tell it from damage."""

    def __init__(self, source: pa.NativeFile) -> None:
        self._source = source
        self.failed: OSError | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._source.tell())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._source.seek(offset, whence))

    def read(self, size: int = -1) -> Any:
        try:
            return self._source.read_buffer(None if size < 0 else size)
        except OSError as error:
            self.failed = error
            raise

"""What a step calls to read its files: read_csv(), read_json() and read_parquet()."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from lakehouse_assets.files.cell_types import Spelling
from lakehouse_assets.files.csv_rows import CsvReader
from lakehouse_assets.files.csv_text import CsvForm
from lakehouse_assets.files.delivered import (
    OF_PARTITIONS,
    PACKED,
    DropZoneError,
    FileReader,
    ReadFiles,
    find_files,
    refuse,
)
from lakehouse_assets.files.json_rows import JsonReader
from lakehouse_assets.files.parquet_rows import ParquetReader
from lakehouse_assets.step.window import note_opened

# In bytes, as stored. Files of up to this size together are read in this process, as Spark's Python workers start
# slowly.
HERE = 2**23
# Bytes of one task, and for how many bytes opening a file counts: Spark's spark.sql.files.maxPartitionBytes and
# openCostInBytes.
TASK_BYTES, OPENING_BYTES = 2**27, 2**22
OF_TASK = re.compile(
    rf"^(?:\w+\.)*{DropZoneError.__name__}: (.+?){OF_PARTITIONS}(\[[^\n]*\])", re.MULTILINE | re.DOTALL
)
"""A DropZoneError in the text of a Spark task's error: its message, and its partitions as JSON."""


def read_csv(
    spark: SparkSession,
    folder: str,
    keys: Sequence[str],
    schema: Mapping[str, str],
    *,
    files: str = "{key}.csv",
    delimiter: str = ",",
    quote: str = '"',
    escape: str = "",
    encoding: str = "utf-8",
    header: bool = True,
    skip: int = 0,
    comment: str = "",
    null: str | Sequence[str] = "",
    decimal: str = ".",
    thousands: str = "",
    booleans: tuple[str, str] = ("", ""),
    formats: Mapping[str, str] | None = None,
    time_zone: str = "",
    trim: bool = False,
    rename: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (),
) -> DataFrame:
    r"""Reads the rows of CSV files strictly, as one DataFrame. docs/files.md says how each type is written.

    `lakehouse columns FILE` prints this call for a file. folder: a path, or a URL such as ``s3://…``. keys: the
    partition keys to read. schema: column → type in Iceberg's spelling, such as ``long``, ``decimal(9,2)`` or
    ``timestamptz``, in any order. files: the files' names below the folder, such as ``orders_{key}.csv`` or
    ``day={key}/*.csv``; compressed files (``.gz``, ``.zst``, ``.bz2``) are found too.

    delimiter, quote, escape: the marks of the file; a blank as delimiter stands for any number of blanks and tabs, an
    empty quote for none. encoding: a Python codec, such as ``cp1252``. header: whether the first line has the names;
    without a header, the schema has the columns in their order. skip: the number of lines before the header or the
    first row. comment: the start of lines to leave out. null: how a missing value is written; a quoted string is never
    one. decimal, thousands: the marks in numbers. booleans: how true and false are written, if not ``true`` and
    ``false``. formats: column → the pattern of its dates or times, such as ``dd.MM.yyyy HH:mm``. time_zone: the zone of
    times without an offset, for ``timestamptz``. trim: whether to remove blanks around cells. rename: a column's name
    in the files → its own. ignore: columns of the files to leave out.

    Raises DropZoneError at once for all files that are missing, damaged or have another header, and for values that are
    not of their types, with line, column and the option that would take them; for large files, when their rows are
    read. Raises ValueError for a schema or options that can't work.

    Examples:
        >>> from pathlib import Path
        >>> from lakehouse_assets import read_csv
        >>> size = Path(folder, "2026-01-31.csv").write_text("id;amount\n1;2,5\n")
        >>> types = {"id": "int", "amount": "double"}
        >>> read_csv(spark, folder, ["2026-01-31"], types, delimiter=";", decimal=",").collect()
        [Row(id=1, amount=2.5)]
    """
    reader = CsvReader(
        schema=dict(schema),
        form=CsvForm(delimiter, quote, escape, encoding, header, skip, comment),
        spelling=Spelling(decimal, thousands, booleans, time_zone, dict(formats or {})),
        nulls=(null,) if isinstance(null, str) else tuple(null),
        rename=dict(rename or {}),
        ignore=tuple(ignore),
        trim=trim,
    )
    return _rows(spark, folder, keys, files, reader)


def read_json(
    spark: SparkSession,
    folder: str,
    keys: Sequence[str],
    schema: Mapping[str, str],
    *,
    files: str = "{key}.json",
    encoding: str = "utf-8",
    formats: Mapping[str, str] | None = None,
    time_zone: str = "",
    rename: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (),
) -> DataFrame:
    """Reads the rows of JSON files, as one DataFrame: one object a line, or one array of objects.

    folder: a path, or a URL such as ``s3://…``. keys: the partition keys to read. schema: column → type in Iceberg's
    spelling, such as ``long``, ``timestamptz`` or ``struct<lat: double, tags: list<string>>``. files: the files' names
    below the folder; compressed files (``.gz``, ``.zst``, ``.bz2``) are found too. encoding: a Python codec. formats:
    column, or a member's path such as ``place.since`` → the pattern of its dates or times, such as ``dd.MM.yyyy``.
    time_zone: the zone of times without an offset, for ``timestamptz``. rename: a field's name → its column. ignore:
    fields to leave out; those of a struct by their path.

    Numbers keep all their digits; dates, times and decimals may be strings, other types are as JSON has them. A missing
    field is null.

    Raises DropZoneError at once for all files that are missing or whose first object is wrong; when the rows are read,
    for unknown or repeated fields and values of another type, with their lines. Raises ValueError for a schema or
    options that can't work.

    Examples:
        >>> from pathlib import Path
        >>> from lakehouse_assets import read_json
        >>> size = Path(folder, "2026-01-31.json").write_text('{"id": 1, "tags": ["new"]}')
        >>> read_json(spark, folder, ["2026-01-31"], {"id": "long", "tags": "list<string>"}).collect()
        [Row(id=1, tags=['new'])]
    """
    spelling = Spelling(formats=dict(formats or {}), time_zone=time_zone)
    reader = JsonReader(dict(schema), encoding, spelling, dict(rename or {}), tuple(ignore))
    return _rows(spark, folder, keys, files, reader)


def read_parquet(
    spark: SparkSession,
    folder: str,
    keys: Sequence[str],
    schema: Mapping[str, str],
    *,
    files: str = "{key}.parquet",
    rename: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (),
) -> DataFrame:
    """Reads the rows of Parquet files, as one DataFrame.

    folder: a path, or a URL such as ``s3://…``. keys: the partition keys to read. schema: column → type in Iceberg's
    spelling, such as ``long``, ``decimal(9,2)`` or ``list<string>``, in any order. files: the files' names below the
    folder. rename: a column's name in the files → its own. ignore: columns to leave out.

    Values stay as they are: small integers become ``int`` or ``long``, decimals get wider, times with a zone are
    ``timestamptz`` and those without one ``timestamp``. Spark gets a UUID as text.

    Raises DropZoneError at once for all files that are missing, not Parquet, or have other columns or types; when the
    rows are read, for damaged files, times that microseconds can't hold, integers that ``long`` can't hold, and strings
    that are not UTF-8, with their rows. Raises ValueError for a schema that can't be read.

    Examples:
        >>> from lakehouse_assets import read_parquet
        >>> spark.range(1).write.parquet(f"{folder}/2026-01-31")
        >>> read_parquet(spark, folder, ["2026-01-31"], {"id": "long"}, files="{key}/*.parquet").collect()
        [Row(id=0)]
    """
    reader = ParquetReader(dict(schema), dict(rename or {}), tuple(ignore))
    return _rows(spark, folder, keys, files, reader, packed=("",))


@contextmanager
def wrong_files_told() -> Iterator[None]:
    """Raises the DropZoneError that a Spark task raised, with its partitions; Spark keeps only the text."""
    try:
        yield
    except PythonException as error:
        if found := OF_TASK.search(str(error)):
            raise DropZoneError(found[1].strip(), json.loads(found[2])) from None
        raise


def _rows(
    spark: SparkSession,
    folder: str,
    keys: Sequence[str],
    pattern: str,
    reader: FileReader,
    packed: Sequence[str] = PACKED,
) -> DataFrame:
    """Finds the files, checks all heads, and reads small files here and others in tasks. packed: as in find_files()."""
    found = find_files(folder, keys, pattern, packed)
    read = ReadFiles(reader, found)
    refuse(read.head_problems(), folder, pattern, len(found))
    note_opened(file.opened for file in found)
    schema = from_arrow_schema(reader.arrow, prefer_timestamp_ntz=True)
    numbers = range(len(found))
    # Only Spark 4 and later take an Arrow table below; EMR's Spark is older.
    takes_arrow = int(spark.version.partition(".")[0]) >= 4
    if takes_arrow and sum(file.size for file in found) <= HERE:
        return spark.createDataFrame(pa.Table.from_batches(read.rows(numbers), reader.arrow), schema)
    tasks = _tasks([file.size + OPENING_BYTES for file in found], spark.sparkContext.defaultParallelism)
    return spark.range(0, len(found), 1, tasks).mapInArrow(read, schema)


def _tasks(costs: Sequence[int], parallelism: int) -> int:
    """Returns the number of tasks. costs: each file's bytes, with those that its opening counts for."""
    # The negations round up: no task gets more than about TASK_BYTES.
    return min(len(costs), max(parallelism, -(-sum(costs) // TASK_BYTES)))

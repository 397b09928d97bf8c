"""Finds the rows of a staged partition that have the same unique key, counted in its files.

What duplicates mean for the run is decided in commit/audit.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.parquet import ParquetFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import StaticTable
from pyiceberg.typedef import Record
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

# Up to so many keys of one partition are counted here, and so many at once, at some 100 bytes each. A Spark job takes
# 3 s more for 336,776 rows in 365 files, 1 s more for one file, and ten times as long for 3.9 million rows in 12
# partitions, as it must move their five columns. Larger partitions are left to Spark, which manages memory, and larger
# chunks, which it counts on many machines.
COUNTED_AT_ONCE, COUNTED_HERE = 2_000_000, 20_000_000
# Example rows of a broken unique key: enough to find the cause, few enough to read.
SHOWN = 5
READERS = 8
ROWS, FILE = "#rows", "#file"  # names that no table's column has


def find_duplicates(spark: SparkSession, name: str, fork: StaticTable, unique: Sequence[str]) -> tuple[str, ...]:
    """Finds at most SHOWN examples of rows that have the same values of ``unique`` within an Iceberg partition.

    Each example is told with its partition.

    name, fork: the staged fork as Spark and as PyIceberg know it.
    """
    snapshot = fork.current_snapshot()
    if not unique or snapshot is None:
        return ()
    entries = [e for m in snapshot.manifests(fork.io) for e in m.fetch_manifest_entry(fork.io)]
    files = [entry.data_file for entry in entries]
    partitions: dict[Record, list[DataFile]] = defaultdict(list)
    for file in files:
        partitions[file.partition].append(file)
    largest = max((sum(file.record_count for file in of) for of in partitions.values()), default=0)
    small = largest <= COUNTED_AT_ONCE and sum(file.record_count for file in files) <= COUNTED_HERE

    def place(file: DataFile) -> str:
        return fork.specs()[file.spec_id].partition_to_path(file.partition, fork.schema())

    if small and all(file.file_format is FileFormat.PARQUET for file in files):
        readers = min(READERS, COUNTED_AT_ONCE // max(largest, 1))
        with suppress(pa.ArrowNotImplementedError):  # it can't group by every type: UUIDs, say
            return _count_here(fork.io, partitions.values(), list(unique), place, readers)
    grouped = spark.table(name).groupBy("_partition", *unique)
    counted = grouped.agg(F.count("*").alias(ROWS), F.first("_file").alias(FILE))
    found = counted.where(f"`{ROWS}` > 1").limit(SHOWN).collect()
    by_path = {file.file_path: file for file in files}
    return tuple(_example(row.asDict(), unique, place(by_path[row[FILE]])) for row in found)


def _count_here(
    io: FileIO,
    partitions: Iterable[list[DataFile]],
    unique: list[str],
    place: Callable[[DataFile], str],
    readers: int,
) -> tuple[str, ...]:
    def repeated(of_partition: list[DataFile]) -> list[str]:
        keys = pa.concat_tables(_read_keys(io, file, unique) for file in of_partition)
        rows = keys.group_by(unique).aggregate([([], "count_all")]).rename_columns([*unique, ROWS])
        found = rows.filter(pc.field(ROWS) > 1).slice(0, SHOWN).to_pylist()
        return [_example(row, unique, place(of_partition[0])) for row in found]

    with ThreadPoolExecutor(readers, thread_name_prefix="unique") as pool:
        return tuple(islice(chain.from_iterable(pool.map(repeated, partitions)), SHOWN))


def _read_keys(io: FileIO, file: DataFile, unique: list[str]) -> pa.Table:
    with io.new_input(file.file_path).open() as stream:
        return ParquetFile(stream).read(unique, use_threads=False)


def _example(row: dict[str, Any], unique: Sequence[str], place: str) -> str:
    values = ", ".join(f"{name}={row[name]}" for name in unique)
    return f"{values}: {row[ROWS]} rows" + (f" in {place}" if place else "")

"""Checks the rows that a worker staged: declared conditions and unique keys."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from pkgutil import resolve_name
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.parquet import ParquetFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import StaticTable
from pyiceberg.typedef import Record
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse_assets.wire.code import FUNCTION
from lakehouse_assets.wire.receipts import FailedCheck
from lakehouse_assets.worker.failure import CheckError, root_message

# Example rows in a message: enough to find the cause, few enough to read.
SHOWN = 5
# What a condition has if it may use a pattern: parts of functions' and operators' names.
PATTERNS = r"like|regexp|to_date|to_timestamp|date_format|unix"
HAS_PATTERN = re.compile(rf"(?!.*\bselect\b).*({PATTERNS})", re.IGNORECASE | re.DOTALL)
"""Finds conditions with a regular expression or a date format. Not those with a subquery, which may read much."""
WHATEVER_COLUMNS = ("PARSE_SYNTAX_ERROR", "UNRESOLVED_ROUTINE", "WRONG_NUM_ARGS", "INVALID_WHERE_CONDITION")
"""Spark's error conditions for SQL that no columns can make valid."""


def condition(
    rows: DataFrame, what: str, column: Callable[[], Column], *, otherwise: bool, counted: bool = False
) -> Column:
    """Returns a condition for a filter of the rows, checked without reading them.

    column: makes the condition. otherwise: what null counts as. counted: whether the condition will also be used in
    count_if(). Raises CheckError with a message that begins with ``what``.
    """
    try:
        found = F.coalesce(column(), F.lit(otherwise))
        # Spark looks up the columns here; later its error would not say which condition is wrong. A filter takes no
        # aggregate, window or generator.
        where = rows.where(found)
        if counted:  # in an aggregate, Spark refuses more, such as rand()
            where.agg(F.count_if(found))
    except AnalysisException as error:
        raise _unfit(what, error) from None
    return found


def _unfit(what: str, error: Exception) -> CheckError:
    problem = root_message(str(error)).partition("SQLSTATE")[0].strip()
    return CheckError(f"{what} can't be evaluated: {problem} Correct it in the table's declaration")


def sql(text: str) -> Column:
    """Returns an SQL condition as a column.

    The parentheses keep the condition's last word from being an alias; the line breaks end a comment in it.
    """
    return F.expr(f"(\n{text}\n)")


def refuse_unreadable(rows: DataFrame, checks: Mapping[str, str], delete_when: str = "") -> None:
    """Raises CheckError for a condition that can't be evaluated on rows of the table; reads no rows.

    delete_when is for the step's rows, whose columns are not known yet: it is refused only if none can make it valid.
    """
    if delete_when:
        try:
            rows.where(sql(delete_when))
        except AnalysisException as error:
            if (_condition_of(error) or "").startswith(WHATEVER_COLUMNS):
                raise _unfit(f"delete_when ({delete_when})", error) from None
    failing = {name: _failing(rows, name, check) for name, check in checks.items()}
    _run_over_nothing(rows, {_told(n, checks[n]): of for n, of in failing.items() if HAS_PATTERN.match(checks[n])})


def _run_over_nothing(rows: DataFrame, conditions: Mapping[str, Column]) -> None:
    """Runs conditions on no rows: only then does Spark find a wrong regular expression or date format."""
    if not conditions:
        return
    nothing = rows.sparkSession.createDataFrame([], rows.schema).coalesce(1)
    # All at once first: usually none is wrong.
    try:
        nothing.select(*conditions.values()).collect()
    except Exception:
        for what, column in conditions.items():  # one by one, to name the wrong one
            try:
                nothing.select(column).collect()
            except Exception as error:
                known = _condition_of(error) if isinstance(error, AnalysisException) else None
                if not (known or "").startswith("UNRESOLVED_COLUMN"):  # Iceberg's own, which only the table's rows have
                    raise _unfit(what, error) from None


def failed_checks(rows: DataFrame, checks: Mapping[str, str]) -> tuple[FailedCheck, ...]:
    """Returns the checks that some rows fail. One pass counts for all checks; a failed one takes another, for examples.

    Raises CheckError.
    """
    if not checks:
        return ()
    failing = {name: _failing(rows, name, check) for name, check in checks.items()}
    counts = rows.agg(*(F.count_if(failed).alias(str(n)) for n, failed in enumerate(failing.values()))).first()
    assert counts is not None
    found = zip(failing.items(), counts, strict=True)
    return tuple(FailedCheck(name, count, _examples(rows, failed)) for (name, failed), count in found if count)


def _told(name: str, check: str) -> str:
    return f"the check {name!r} ({check})"


def _failing(rows: DataFrame, name: str, check: str) -> Column:
    """Returns the condition of rows that fail a check; a check that is null passes. Raises CheckError."""
    declared = (lambda: resolve_name(check)()) if FUNCTION.fullmatch(check) else partial(sql, check)
    return ~condition(rows, _told(name, check), declared, otherwise=True, counted=True)


def _examples(rows: DataFrame, failed: Column) -> tuple[str, ...]:
    found = rows.where(failed).limit(SHOWN).collect()
    return tuple(", ".join(f"{name}={value}" for name, value in row.asDict().items()) for row in found)


# The most keys counted in this process, at some 100 bytes each: COUNTED_AT_ONCE in one partition, or in those that are
# read at once; COUNTED_HERE in a chunk. Compared with this, a Spark job takes 3 s longer for 336,776 rows in 365 files,
# 1 s longer for one file, and ten times as long for 3.9 million rows in 12 partitions, whose five columns it must
# shuffle. Larger partitions are left to Spark, which manages memory, and so are larger chunks, which it counts on many
# machines.
COUNTED_AT_ONCE, COUNTED_HERE = 2_000_000, 20_000_000
READERS = 8
ROWS, FILE = "#rows", "#file"  # names that no table's column has


def find_duplicates(spark: SparkSession, name: str, fork: StaticTable, unique: Sequence[str]) -> tuple[str, ...]:
    """Returns at most SHOWN examples of ``unique`` values that repeat within an Iceberg partition.

    name: the fork's name in Spark. fork: the same, as its worker left it.
    """
    snapshot = fork.current_snapshot()
    if not unique or snapshot is None:
        return ()
    files = [e.data_file for m in snapshot.manifests(fork.io) for e in m.fetch_manifest_entry(fork.io)]
    partitions: dict[Record, list[DataFile]] = defaultdict(list)
    for file in files:
        partitions[file.partition].append(file)
    largest = max((sum(file.record_count for file in files) for files in partitions.values()), default=0)
    small = largest <= COUNTED_AT_ONCE and sum(file.record_count for file in files) <= COUNTED_HERE

    # Such as day=2026-01-31.
    def place(file: DataFile) -> str:
        return fork.specs()[file.spec_id].partition_to_path(file.partition, fork.schema())

    if small and all(file.file_format is FileFormat.PARQUET for file in files):
        # No more partitions at once than have COUNTED_AT_ONCE rows together.
        readers = min(READERS, COUNTED_AT_ONCE // max(largest, 1))
        with suppress(pa.ArrowNotImplementedError):  # it can't group by all types, such as UUIDs
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
        keys = ParquetFile(stream).read(unique, use_threads=False)
    for number, field in enumerate(keys.schema):
        if pa.types.is_floating(field.type):
            keys = keys.set_column(number, field, _as_keys(keys.column(number)))
    return keys


def _as_keys(floats: pa.ChunkedArray) -> pa.ChunkedArray:
    """Gives equal keys equal bits, by which PyArrow groups.

    In Spark, and so in a merge, 0.0 equals -0.0, and all NaNs are equal.
    """
    # -0.0 + 0.0 is 0.0.
    zero, nan = pa.scalar(0.0, floats.type), pa.scalar(float("nan"), floats.type)
    return pc.if_else(pc.is_nan(floats), nan, pc.add(floats, zero))


def _example(row: dict[str, Any], unique: Sequence[str], place: str) -> str:
    values = ", ".join(f"{name}={row[name]}" for name in unique)
    return f"{values}: {row[ROWS]} rows" + (f" in {place}" if place else "")


def _condition_of(error: AnalysisException) -> str | None:
    if hasattr(error, "getCondition"):
        return error.getCondition()
    return error.getErrorClass()  # its name before Spark 4

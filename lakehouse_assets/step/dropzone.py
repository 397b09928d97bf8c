"""Reads the drop zone strictly: a missing file, other columns or a value of another type is an error that names it.

Nothing is written, and no table is known here.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse_assets.step.opened import OpenedFile, note_opened
from lakehouse_assets.step.window import BadPartitions

# This many compressed bytes surely hold a file's header line, which takes about a hundredth of them.
HEAD = 4096
FOOTERS_AT_ONCE = 16
NO_PARQUET = "is not a Parquet file"
"""Words of the error that Parquet's reader raises for another file (ParquetFileReader.readFooter)."""
PATTERN = re.compile(r"[\\*?\[\]{},^]")
OF_FILE = ("path", "length", "unix_millis(modificationTime) AS modified")
"""What Spark tells of a file without reading it, in SQL (its source binaryFile)."""
TIME = "yyyy-MM-dd'T'HH:mm:ssX"


class DropZoneError(BadPartitions):
    """Files of the drop zone are missing, empty or of other columns; the message names the folder and each of them."""


def read_csv(
    spark: SparkSession, folder: str, names: Sequence[str], schema: Mapping[str, str], *, null: str = ""
) -> DataFrame:
    r"""Reads the rows of ``<folder>/<name>.csv.gz`` for all names, as one DataFrame.

    schema: column name → type (``string``, ``int``, ``double``, ``timestamptz``, ISO 8601 with a zone, …) as
    `lakehouse columns` tells it, in the header's order. null: how the files write a missing value.
    Raises DropZoneError at once for all files that are missing, empty or of another header. A row of another length, a
    truncated file and a value of another type raise an error that names the file, when the rows are read.

    Example:
        >>> import gzip
        >>> from pathlib import Path
        >>> from lakehouse_assets import read_csv
        >>> size = Path(folder, "2026-01-31.csv.gz").write_bytes(gzip.compress(b"id,amount\n1,2.5\n"))
        >>> read_csv(spark, folder, ["2026-01-31"], {"id": "int", "amount": "double"}).collect()
        [Row(id=1, amount=2.5)]
    """
    _refuse(_problems(_headers(spark, folder, names), names, list(schema)), f"{folder}/*.csv.gz", len(names))
    # Read as strings first: Spark's own casts either name neither column nor value (FAILFAST) or give null.
    raw = (
        spark.read.schema(", ".join(f"`{name}` string" for name in schema))
        .options(header=True, mode="FAILFAST", nullValue=null, escape='"', pathGlobFilter=_glob(names))
        .csv(_escaped(folder))
    )
    return raw.select(*(_typed(name, _spark_type(type_)).alias(name) for name, type_ in schema.items()))


def read_parquet(spark: SparkSession, folder: str, names: Sequence[str], schema: Mapping[str, str]) -> DataFrame:
    """Reads the rows of ``<folder>/<name>.parquet`` for all names, as one DataFrame; a repeated name counts once.

    schema: column name → Spark type, such as ``bigint``, ``decimal(9,2)`` or ``array<string>``, in any order. A Parquet
    file has its types in its footer, which is read of each file: some 30 ms a file.
    Raises DropZoneError at once for all files that are missing, no Parquet, or of other columns or types. A file that
    is damaged elsewhere raises an error that names it, when the rows are read.

    Example:
        >>> from lakehouse_assets import read_parquet
        >>> spark.range(1).write.parquet(f"{folder}/2026-01-31.parquet")
        >>> read_parquet(spark, folder, ["2026-01-31"], {"id": "long"}).collect()
        [Row(id=0)]
    """
    names = [*dict.fromkeys(names)]  # Spark would read a file once for each time that it is named
    wanted = spark.createDataFrame(
        [], ", ".join(f"`{name}` {_spark_type(type_)}" for name, type_ in schema.items())
    ).schema
    paths = [_escaped(f"{folder}/{name}.parquet") for name in names]
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        found = [*pool.map(lambda path: _parquet_problem(spark, path, wanted), paths)]
    problems: dict[str, list[str]] = defaultdict(list)
    for name, problem in zip(names, found, strict=True):
        if problem:
            problems[problem].append(name)
    _refuse(problems, f"{folder}/*.parquet", len(names))
    opened = spark.read.format("binaryFile").load(paths).selectExpr(*OF_FILE).collect() if paths else []
    note_opened(OpenedFile(row.path, row.length, row.modified) for row in opened)
    strict = {"ignoreCorruptFiles": False, "ignoreMissingFiles": False}
    return spark.read.schema(wanted).options(**strict).parquet(*paths)


def _refuse(problems: Mapping[str, list[str]], files: str, asked: int) -> None:
    """Raises DropZoneError if there are problems. problems: each problem → the names of the files that have it."""
    if problems:
        found = "; ".join(f"{', '.join(names)} {problem}" for problem, names in problems.items())
        raise DropZoneError(
            f"{files}: of {asked} files asked for {found}. Let the source deliver them, then run again",
            partitions=[name for names in problems.values() for name in names],
        )


def _headers(spark: SparkSession, folder: str, names: Sequence[str]) -> dict[str, list[str] | None]:
    """Returns the columns of each file that exists, by its name without extension; None for a file that is no gzip.

    Spark reads each file whole, in one job, with the file systems and credentials of the rows. Its own header check
    (enforceSchema) does not name a missing column, and takes a file without a header for one without rows.
    """
    files = spark.read.format("binaryFile").options(pathGlobFilter=_glob(names))
    try:
        heads = files.load(_escaped(folder)).selectExpr(*OF_FILE, f"substring(content, 1, {HEAD}) AS head").collect()
    except AnalysisException as error:
        if condition_of(error) != "PATH_NOT_FOUND":
            raise
        raise DropZoneError(
            f"the drop zone has no folder {folder}; let the source deliver it, then run again"
        ) from error
    note_opened(OpenedFile(row.path, row.length, row.modified) for row in heads)
    return {row.path.rpartition("/")[2].removesuffix(".csv.gz"): _columns(row.head) for row in heads}


def condition_of(error: AnalysisException) -> str | None:
    """Returns the name that Spark gives to a kind of error, such as ``PATH_NOT_FOUND``; None where it gives none."""
    if hasattr(error, "getCondition"):
        return error.getCondition()
    return error.getErrorClass()  # its name before Spark 4


def _columns(head: bytes) -> list[str] | None:
    try:
        text = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(head)  # 16: a gzip's header and trailer
    except zlib.error:
        return None
    return text.partition(b"\n")[0].decode(errors="replace").rstrip("\r").split(",")


def _problems(
    headers: Mapping[str, list[str] | None], names: Sequence[str], expected: list[str]
) -> dict[str, list[str]]:
    """Returns each problem → the names of the files that have it."""
    problems: dict[str, list[str]] = defaultdict(list)
    for name in names:
        found = headers.get(name, [""])
        if found is None:
            problems["is no gzip"].append(name)
        elif found == [""]:
            problems["is missing or empty, without even a header"].append(name)
        elif found != expected:
            lacks = ", ".join(column for column in expected if column not in found) or "none"
            has = ", ".join(column for column in found if column not in expected) or "none"
            problems[f"has other columns (missing: {lacks}; unknown: {has}; header: {','.join(found)})"].append(name)
    return problems


def _parquet_problem(spark: SparkSession, path: str, wanted: StructType) -> str | None:
    try:
        schema = spark.read.parquet(path).schema
    except AnalysisException as error:
        if condition_of(error) == "PATH_NOT_FOUND":
            return "is missing"
        return f"can't be read: {str(error).partition('SQLSTATE')[0].strip()}"
    except Exception as error:  # the session's own kind, in which Java's is text
        if NO_PARQUET not in str(error):
            raise
        return "is no Parquet file, or not all of it"
    has, wants = ({field.name: field.dataType.simpleString() for field in fields} for fields in (schema, wanted))
    if has == wants:
        return None
    lacks = ", ".join(name for name in wants if name not in has) or "none"
    unknown = ", ".join(name for name in has if name not in wants) or "none"
    others = ", ".join(f"{n} {has[n]}, expected {wants[n]}" for n in wants if has.get(n, wants[n]) != wants[n])
    return f"has other columns (missing: {lacks}; unknown: {unknown}; of another type: {others or 'none'})"


def _glob(names: Sequence[str]) -> str:
    return f"{{{','.join(map(_escaped, names))}}}.csv.gz"


def _escaped(path: str) -> str:
    """Escapes what Hadoop's patterns give a meaning (GlobPattern): a partition key may have such characters."""
    return PATTERN.sub(r"\\\g<0>", path)


def _spark_type(type_: str) -> str:
    """Returns Spark's name of a type that Iceberg calls otherwise."""
    return "timestamp" if type_ == "timestamptz" else type_


def _typed(name: str, type_: str) -> Column:
    raw = F.col(name)
    if type_ == "string":
        return raw
    cast = F.expr(f"try_cast(`{name}` AS {type_})")  # Column.try_cast exists since Spark 4
    value = F.try_to_timestamp(raw, F.lit(TIME)) if type_ == "timestamp" else cast
    complaint = F.concat(F.lit(f"column {name}: '"), raw, F.lit(f"' is no {type_}, in "), F.col("_metadata.file_path"))
    return F.when(raw.isNotNull() & value.isNull(), F.raise_error(complaint).cast(type_)).otherwise(value)

"""Reading the drop zone strictly: a missing file, another header or a value of another type is an error that names it.
Nothing is written, and no table is known here."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse_assets.step.bad_partitions import BadPartitions

# So many compressed bytes surely hold a file's header line, which takes about a hundredth of it.
HEAD = 4096
TIME = "yyyy-MM-dd'T'HH:mm:ssX"


class DropZoneError(BadPartitions):
    """Files of the drop zone are missing, empty or of other columns; the message names the folder and each of them."""


def read_csv(
    spark: SparkSession, folder: str, names: Sequence[str], schema: Mapping[str, str], *, null: str = ""
) -> DataFrame:
    """The rows of ``<folder>/<name>.csv.gz`` for all names, as one DataFrame.

    schema: column name → Spark type (``string``, ``int``, ``double`` or ``timestamp``, ISO 8601 with a zone), in the
    header's order. null: how the files write a missing value.
    Raises DropZoneError at once for all files that are missing, empty or of another header. A row of another length, a
    truncated file and a value of another type raise an error that names the file, when the rows are read.
    """
    if problems := _problems(_headers(spark, folder, names), names, list(schema)):
        found = "; ".join(f"{', '.join(files)} {problem}" for problem, files in problems.items())
        raise DropZoneError(
            f"{folder}/*.csv.gz: of {len(names)} files asked for {found}. Let the source deliver them, then run again",
            partitions=[name for files in problems.values() for name in files],
        )
    # Read as strings first: Spark's own casts either name neither column nor value (FAILFAST) or give null.
    raw = (
        spark.read.schema(", ".join(f"`{name}` string" for name in schema))
        .options(header=True, mode="FAILFAST", nullValue=null, escape='"', pathGlobFilter=_glob(names))
        .csv(folder)
    )
    return raw.select(*(_typed(name, type_).alias(name) for name, type_ in schema.items()))


def _headers(spark: SparkSession, folder: str, names: Sequence[str]) -> dict[str, list[str] | None]:
    """The columns of each file that exists, by file name; None for a file that is no gzip.

    Spark reads each file whole, in one job, with the file systems and credentials of the rows. Its own header check
    (enforceSchema) does not name a missing column, and takes a file without a header for one without rows.
    """
    files = spark.read.format("binaryFile").options(pathGlobFilter=_glob(names))
    try:
        heads = files.load(folder).select("path", F.substring("content", 1, HEAD).alias("head")).collect()
    except AnalysisException as error:
        if _condition(error) != "PATH_NOT_FOUND":
            raise
        raise DropZoneError(
            f"the drop zone has no folder {folder}; let the source deliver it, then run again"
        ) from error
    return {row.path.rpartition("/")[2].removesuffix(".csv.gz"): _columns(row.head) for row in heads}


def _condition(error: AnalysisException) -> str | None:
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
    """Each problem → the names of the files that have it."""
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


def _glob(names: Sequence[str]) -> str:
    return f"{{{','.join(names)}}}.csv.gz"


def _typed(name: str, type_: str) -> Column:
    raw = F.col(name)
    if type_ == "string":
        return raw
    cast = F.expr(f"try_cast(`{name}` AS {type_})")  # Column.try_cast exists since Spark 4
    value = F.try_to_timestamp(raw, F.lit(TIME)) if type_ == "timestamp" else cast
    complaint = F.concat(F.lit(f"column {name}: '"), raw, F.lit(f"' is no {type_}, in "), F.col("_metadata.file_path"))
    return F.when(raw.isNotNull() & value.isNull(), F.raise_error(complaint).cast(type_)).otherwise(value)

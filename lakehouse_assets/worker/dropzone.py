"""Reading the drop zone strictly: whatever a file lacks, has too much of or spells differently is an error naming it.
No table is known here and nothing is written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

# A gzip around nothing: 10 bytes of header, 2 of deflate, 8 of trailer (RFC 1952). What an export leaves that died
# before its first byte; Spark reads it, as it reads no byte at all, as a file without rows.
EMPTY_GZIP = 20
TIME = "yyyy-MM-dd'T'HH:mm:ssX"


class DropZoneError(ValueError):
    """Files of the drop zone are missing or empty; the message names the folder and each of them."""


def read_csv(
    spark: SparkSession, folder: str, names: Sequence[str], schema: Mapping[str, str], *, null: str = ""
) -> DataFrame:
    """The rows of ``<folder>/<name>.csv.gz`` for all names, as one DataFrame from one listing and one read.

    schema: column name → Spark type (``string``, ``int``, ``double`` or ``timestamp``, ISO 8601 with a zone), in the
    order of the files' header. null: how the files spell it.
    Raises DropZoneError at once for files that are not there or empty. The rest comes with the read: a header that
    differs, a row of another length, a truncated file, a value of another type. Each names its file.
    """
    _check_files(spark, folder, names)
    # Strings first: Spark's own cast error names neither the column nor the value (FAILFAST) or goes on with null.
    raw = (
        spark.read.schema(", ".join(f"`{name}` string" for name in schema))
        .options(header=True, enforceSchema=False, mode="FAILFAST", nullValue=null, escape='"')
        .options(pathGlobFilter=_glob(names))
        .csv(folder)
    )
    return raw.select(*(_typed(name, type_).alias(name) for name, type_ in schema.items()))


def _check_files(spark: SparkSession, folder: str, names: Sequence[str]) -> None:
    # Spark lists, not Python: the same file systems and credentials as the read that follows, local or s3://.
    # binaryFile opens no file as long as its content is not selected.
    listing = spark.read.format("binaryFile").options(pathGlobFilter=_glob(names))
    try:
        files = listing.load(folder).select("path", "length").collect()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise DropZoneError(
            f"the drop zone has no folder {folder}; let the source deliver it, then run again"
        ) from error
    sizes = {row.path.rpartition("/")[2].removesuffix(".csv.gz"): row.length for row in files}
    problems = {
        "missing": [name for name in names if name not in sizes],
        "empty, without even a header": [name for name in names if sizes.get(name, math.inf) <= EMPTY_GZIP],
    }
    said = [f"{len(of)} {problem}: {', '.join(of)}" for problem, of in problems.items() if of]
    if said:
        raise DropZoneError(
            f"{folder}/*.csv.gz: of {len(names)} files {'; '.join(said)}. Let the source deliver them, then run again"
        )


def _glob(names: Sequence[str]) -> str:
    return f"{{{','.join(names)}}}.csv.gz"


def _typed(name: str, type_: str) -> Column:
    raw = F.col(name)
    if type_ == "string":
        return raw
    value = F.try_to_timestamp(raw, F.lit(TIME)) if type_ == "timestamp" else raw.try_cast(type_)
    complaint = F.concat(F.lit(f"column {name}: '"), raw, F.lit(f"' is no {type_}, in "), F.col("_metadata.file_path"))
    return F.when(raw.isNotNull() & value.isNull(), F.raise_error(complaint).cast(type_)).otherwise(value)

"""Rewrites all files of a private fork, and sums up row hashes before and after.

Equal sums prove that the rewrite kept the rows. Spark's xxhash64 skips nulls and refuses maps: so null flags, lengths
and map entries are hashed too. The hash does not tell 0.0 from -0.0, nor NaNs with different bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyiceberg.io import load_file_io
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from lakehouse_assets.wire.receipts import Receipt
from lakehouse_assets.wire.work import Digest, RewriteAssignment, Rewritten
from lakehouse_assets.worker.session import TableCredentials, committed_metadata, literal, register

OPTIONS = {
    # The run has chosen the files that are worth it: the fork lists no others.
    "rewrite-all": "true",
    # If true, the procedure returns normally and reports no failure even if groups of files have failed.
    "partial-progress.enabled": "false",
}


class RewriteError(RuntimeError):
    """Iceberg's procedure did not rewrite everything."""


def rewrite(spark: SparkSession, assignment: RewriteAssignment, credentials: TableCredentials) -> Receipt:
    """Rewrites the fork and writes the receipt.

    Raises RewriteError, ForkError, CredentialsExpired, and what Spark raises.
    """
    with credentials.expiry_explained():
        fork = register(spark, assignment.fork_base, assignment.token, assignment.chunk)
        before = row_sums(spark.table(fork), counts_only=assignment.counts_only)
        _call(spark, fork, assignment)
        after = row_sums(spark.table(fork), counts_only=assignment.counts_only)
        receipt = Receipt.of(
            assignment,
            metadata_location=committed_metadata(spark, fork, assignment.fork_base, assignment.table),
            rewritten=Rewritten(before, after),
        )
        receipt.write(load_file_io(dict(credentials.catalog), assignment.receipt), assignment.receipt)
        return receipt


def _call(spark: SparkSession, fork: str, assignment: RewriteAssignment) -> None:
    options = ", ".join(f"{literal(name)}, {literal(value)}" for name, value in OPTIONS.items())
    columns = ", ".join(f"`{name}`" for name in assignment.zorder)
    order = f"sort_order => {literal(f'zorder({columns})')}, " if assignment.zorder else ""
    # "sort" without an order sorts by the table's own.
    strategy = "sort" if assignment.zorder or assignment.sorts else "binpack"
    (row,) = spark.sql(
        f"CALL stage.system.rewrite_data_files(table => {literal(fork.removeprefix('stage.'))}, "
        f"strategy => '{strategy}', {order}options => map({options}))"
    ).collect()
    refuse_failures(row.asDict(), assignment.table)


def refuse_failures(said: Mapping[str, int], table: str) -> None:
    """Raises RewriteError if the procedure reports failed files.

    If it reports none, it may still have failed: only equal row sums prove the rewrite. said: the procedure's result.
    """
    if failed := said["failed_data_files_count"]:
        raise RewriteError(f"table {table}: {failed} files were not rewritten; Iceberg's procedure said {dict(said)}")


# The two halves of a hash are summed separately: sums of whole 64-bit hashes would overflow.
LOW_BITS, HIGH_SHIFT = 0xFFFFFFFF, 32


def row_sums(rows: DataFrame, *, counts_only: bool = False) -> dict[str, Digest]:
    """Returns the count and the hash sums of the live rows of each data file; files without live rows are missing.

    counts_only: leaves the sums 0.
    """
    if counts_only:
        counted = rows.groupBy(F.col("_file")).agg(F.count(F.lit(1))).collect()
        return {file: Digest(count, 0, 0, 0) for file, count in counted}
    hashed = rows.select(F.col("_file").alias("file"), row_hash(rows).alias("h"))
    sums = hashed.groupBy("file").agg(
        F.count(F.lit(1)),
        F.sum(F.col("h").bitwiseAND(F.lit(LOW_BITS))),
        F.sum(F.shiftright("h", HIGH_SHIFT)),
        F.bit_xor("h"),
    )
    return {file: Digest(*numbers) for file, *numbers in sums.collect()}


def row_hash(rows: DataFrame) -> Column:
    """Returns the hash of each row."""
    parts = [part for field in rows.schema for part in _parts(rows[_quoted(field.name)], field.dataType)]
    return F.xxhash64(*parts)


def _parts(value: Column, kind: DataType) -> list[Column]:
    """Returns what to hash of a value: its null flag comes first, as xxhash64 skips nulls."""
    if isinstance(kind, StructType):
        fields = [part for field in kind for part in _parts(value.getField(field.name), field.dataType)]
        return [value.isNull(), *fields]
    if isinstance(kind, ArrayType):
        return [value.isNull(), F.size(value), F.transform(value, _element(kind.elementType))]
    if isinstance(kind, MapType):
        entry = StructType().add("key", kind.keyType).add("value", kind.valueType)
        return [value.isNull(), F.size(value), F.transform(F.map_entries(value), _element(entry))]
    return [value.isNull(), value]


def _element(kind: DataType) -> Callable[[Column], Column]:
    return lambda element: F.struct(*_parts(element, kind))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"

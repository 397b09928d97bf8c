"""Runs a step beside Spark, for run_step()."""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyiceberg.partitioning import PartitionField
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog_in_spark import LAKE
from lakehouse_assets.environment.env_reader import public
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.environment.spark_setup import environment, spark_conf
from lakehouse_assets.step.window import CHANGE_TYPE
from lakehouse_assets.wire.code import step_of
from lakehouse_assets.worker.row_checks import failed_checks
from lakehouse_assets.worker.session import build_session
from lakehouse_assets.worker.stage import StagingWindow

SHOWN = 10
"""The most repeated keys in a message."""


def compute(
    table: Table, keys: tuple[str, ...], inputs: Mapping[str, pa.Table], changes: Mapping[str, pa.Table], landing: str
) -> tuple[pa.Table, list[str]]:
    """Returns a step's rows, and a sentence for each declared check that they fail."""
    spark = _session()
    for name, rows in inputs.items():
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {LAKE}.{name.rpartition('.')[0]}")
        spark.createDataFrame(rows).writeTo(f"{LAKE}.{name}").create()
    start, end = table.alignment.window(keys) or (None, None)
    offers: dict[str, Callable[..., DataFrame]] = {"changes": lambda name: _changes(spark, changes, name)}
    window = StagingWindow(
        keys, start, end, table.alignment.dimensions(keys), landing, table=table.identifier, offers=offers
    )
    try:
        rows = step_of(table.step).load()(spark, window)
    except AnalysisException as error:
        if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
            raise
        raise LookupError(f"the step reads a table that the test does not give: {error}") from None
    names = [column.name for column in table.columns]
    if lacking := {name.lower() for name in names} - {name.lower() for name in rows.columns}:
        raise AssertionError(f"{table.identifier}: the step returned no column {', '.join(sorted(lacking))}")
    found = rows.cache()
    failed = failed_checks(found, table.checks)
    own = {name.lower(): name for name in names}
    named = found.withColumnsRenamed({name: own.get(name.lower(), name) for name in found.columns})
    problems = [f"check {check.name!r}: {check.rows} rows fail, such as {check.examples}" for check in failed]
    return named.toArrow(), [*problems, *_repeated(table, named)]


def _repeated(table: Table, rows: DataFrame) -> Iterator[str]:
    """Finds rows with the same ``unique`` columns in one Iceberg partition."""
    if not table.unique:
        return
    parts = [_partition_value(table.schema.find_field(field.source_id).name, field) for field in table.spec.fields]
    counts = rows.groupBy(*(F.col(f"`{name}`") for name in table.unique), *map(F.expr, parts)).count()
    found = counts.where("count > 1").select(*table.unique).limit(SHOWN).collect()
    if found:
        yield f"rows with the same {', '.join(table.unique)}: {', '.join(str(row.asDict()) for row in found)}"


def _partition_value(column: str, field: PartitionField) -> str:
    """Returns SQL for a partition's value (https://iceberg.apache.org/docs/latest/spark-queries/#sql-functions)."""
    name, _, argument = str(field.transform).rstrip("]").partition("[")
    if name == "identity":
        return f"`{column}`"
    return f"{LAKE}.system.{name}({argument}, `{column}`)" if argument else f"{LAKE}.system.{name}s(`{column}`)"


def _changes(spark: SparkSession, changes: Mapping[str, pa.Table], name: str) -> DataFrame:
    """Returns the given changes of a table. Raises LookupError if the test gives none."""
    if (rows := changes.get(name.removeprefix(f"{LAKE}."))) is None:
        raise LookupError(f"the step reads the changes of {name}: give them to run_step(changes=…)")
    frame = spark.createDataFrame(rows)
    return frame if CHANGE_TYPE in frame.columns else frame.withColumn(CHANGE_TYPE, F.lit("INSERT"))


def _session() -> SparkSession:
    """Returns a session of this process's Spark with an empty catalog ``lake``."""
    if SparkSession.getActiveSession() is None:
        folder = tempfile.TemporaryDirectory(prefix="lakehouse-steps-")
        atexit.register(folder.cleanup)  # before PySpark's own, which are called first
        os.environ.update(environment())
        build_session(public(spark_conf(read_settings(), {}, folder=Path(folder.name))))
    spark = SparkSession.builder.getOrCreate().newSession()
    prefix = f"spark.sql.catalog.{LAKE}"
    spark.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set(f"{prefix}.catalog-impl", "org.apache.iceberg.inmemory.InMemoryCatalog")
    return spark

"""Steps for tests: small, and each does only what its name says.
No Dagster here: these run in the worker."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from lakehouse_assets.step.window import Window


def numbers(spark: SparkSession, window: Window) -> DataFrame:
    """Three rows a day: (day, n, text)."""
    days = ",".join(f"DATE'{key}'" for key in window.keys)
    return spark.sql(
        f"SELECT day, n, concat('n', n) AS text FROM (SELECT explode(array({days})) AS day), range(3) AS t(n)"
    )


def wide(spark: SparkSession, window: Window) -> DataFrame:
    """As numbers(), with a hundred columns more, c0 to c99."""
    return numbers(spark, window).selectExpr("*", *(f"CAST(n AS DOUBLE) AS c{n}" for n in range(100)))


def whole(spark: SparkSession, window: Window) -> DataFrame:
    """Three rows for a table without partitions."""
    return spark.sql("SELECT n, concat('n', n) AS text FROM range(3) AS t(n)")


def settings(spark: SparkSession, window: Window) -> DataFrame:
    """How many rows a shuffle's result is cut for, as n; as text, the branch that writers are told and the temporary
    views that are there. Leaves a view behind."""
    views = [view.name for view in spark.catalog.listTables() if view.isTemporary]
    told = f"{spark.conf.get('spark.wap.branch', None)} {views}"
    spark.range(1).createOrReplaceTempView("left_behind")
    parts = int(spark.conf.get("spark.sql.shuffle.partitions") or 0)
    return spark.createDataFrame([(parts, told)], "n LONG, text STRING")


def other_days(spark: SparkSession, window: Window) -> DataFrame:
    """As numbers, and one row of a day that is not among the window's keys."""
    return numbers(spark, window).unionByName(spark.sql("SELECT DATE'2024-02-29' AS day, 0L AS n, 'n0' AS text"))


def nulls(spark: SparkSession, window: Window) -> DataFrame:
    """As numbers, with n null where it was 1."""
    return numbers(spark, window).selectExpr("day", "nullif(n, 1L) AS n", "text")


def doubles(spark: SparkSession, window: Window) -> DataFrame:
    """As numbers, each row twice."""
    return numbers(spark, window).unionByName(numbers(spark, window))


def nothing(spark: SparkSession, window: Window) -> DataFrame:
    """No rows for any day."""
    return numbers(spark, window).where("false")


def raising(spark: SparkSession, window: Window) -> DataFrame:
    """A bug in the user's code."""
    return {}["carrier"]  # type: ignore[return-value]


def interrupted(spark: SparkSession, window: Window) -> DataFrame:
    """Interrupted, as by a termination of the run, while it works."""
    raise KeyboardInterrupt


def raising_in_java(spark: SparkSession, window: Window) -> DataFrame:
    """An error that only shows when rows are computed."""
    return numbers(spark, window).selectExpr("day", "n", "if(n >= 0, raise_error('no such n'), text) AS text")


def endless(spark: SparkSession, window: Window) -> DataFrame:
    """Prints that it runs, then keeps the JVM busy for ever."""
    print("the endless step runs", flush=True)
    spark.sql("SELECT count_if(hash(a.id, b.id) = 0) FROM range(10000000) a CROSS JOIN range(10000000) b").collect()
    return numbers(spark, window)

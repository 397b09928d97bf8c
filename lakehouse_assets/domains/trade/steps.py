"""The steps of trade: for each table, a function from a Spark session and a window to the table's rows or changes.
DataFrame API only. Nothing here configures a catalog, writes a table or imports Dagster."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse_assets.step.window import Window

CODES = {"exp_imp": 1, "ym": 6, "Country": 3, "Custom": 3, "hs2": 2, "hs4": 4, "hs6": 6, "hs9": 9}
"""Digits of each code; leading zeros matter."""
NUMBERS = {"Year": "int", "month": "int", "Q1": "long", "Q2": "long", "Value": "long"}
LINE = ("exp_imp", "Year", "month", "ym", "Country", "Custom", "hs2", "hs4", "hs6", "hs9", "Q1", "Q2", "Value")
KEY = ("exp_imp", "ym", "Country", "Custom", "hs9")
MOST_REJECTED = 0.01
BROKEN = "#broken"  # a name that no column has


class TooManyRejected(RuntimeError):
    """So many lines can't be read that the file is perhaps of another kind."""


def customs(spark: SparkSession, window: Window) -> DataFrame:
    """The figures of the window's months; lines that can't be read are left to rejected()."""
    lines = _lines(spark, window, sorted({key[:4] for key in window.keys}))
    good = lines.where(_problem().isNull()).where(F.col("ym").isin(list(window.keys)))
    return good.select(*(F.col(name).cast(NUMBERS.get(name, "string")).alias(name) for name in LINE))


def rejected(spark: SparkSession, window: Window) -> DataFrame:
    """The lines of the window's years that can't be read. Raises TooManyRejected."""
    lines = _lines(spark, window, window.keys).withColumn("reason", _problem())
    counts = lines.agg(F.count("*").alias("lines"), F.count("reason").alias("rejected")).first()
    assert counts is not None
    if counts.rejected > MOST_REJECTED * counts.lines:
        raise TooManyRejected(
            f"{counts.rejected} of {counts.lines} lines of {window.landing}/customs, years {', '.join(window.keys)}, "
            f"can't be read, expected {MOST_REJECTED:.0%} at most. Look at the files, then run again"
        )
    line = F.coalesce(F.col(f"`{BROKEN}`"), F.concat_ws(",", *(F.coalesce(F.col(c), F.lit("")) for c in LINE)))
    return lines.where(F.col("reason").isNotNull()).select("file", line.alias("line"), "reason")


def revisions(spark: SparkSession, window: Window) -> DataFrame:
    """The figures of the window's months as first published, revision 0, and every correction of them."""
    schema = ", ".join(f"{name} {NUMBERS.get(name, 'string')}" for name in (*KEY, "Q1", "Q2", "Value"))
    read = spark.read.options(header=True, mode="FAILFAST").schema(f"{schema}, revision int, op string")
    corrections = read.csv(f"{window.landing}/revisions")
    derived = {name: F.substring("hs9", 1, CODES[name]) for name in ("hs2", "hs4", "hs6")}
    dated = {"Year": F.substring("ym", 1, 4).cast("int"), "month": F.substring("ym", 5, 2).cast("int")}
    published = spark.table("lake.trade.customs").withColumns({"revision": F.lit(0), "op": F.lit("U")})
    changes = published.unionByName(corrections.withColumns({**derived, **dated}))
    return changes.where(F.col("ym").isin(list(window.keys)))


def countries(spark: SparkSession, window: Window) -> DataFrame:
    """Code and name of each country."""
    read = spark.read.options(header=True, mode="FAILFAST").schema("Country string, name string")
    return read.csv(f"{window.landing}/countries.csv")


def _lines(spark: SparkSession, window: Window, years: list[str] | tuple[str, ...]) -> DataFrame:
    """The files' lines as text: LINE, BROKEN for a line of another length, and the file's name."""
    schema = ", ".join(f"{name} string" for name in (*LINE, f"`{BROKEN}`"))
    read = spark.read.options(header=True, mode="PERMISSIVE", columnNameOfCorruptRecord=BROKEN).schema(schema)
    lines = read.csv([f"{window.landing}/customs/{year}.csv" for year in years])
    return lines.withColumn("file", F.col("_metadata.file_name"))


def _problem() -> Column:
    """What is wrong with a line; null if nothing is."""
    wrong = [F.when(F.col(f"`{BROKEN}`").isNotNull(), F.lit("it has another number of fields"))]
    for name, digits in CODES.items():
        text = F.concat(F.lit(f"{name} is not of {digits} digits: "), F.coalesce(F.col(name), F.lit("none")))
        wrong.append(F.when(~F.coalesce(F.col(name).rlike(f"^[0-9]{{{digits}}}$"), F.lit(False)), text))
    for name, of in NUMBERS.items():
        missing = F.col(name).isNotNull() if name in ("Q1", "Q2") else F.lit(True)
        text = F.concat(F.lit(f"{name} is no number: "), F.coalesce(F.col(name), F.lit("none")))
        wrong.append(F.when(missing & F.expr(f"try_cast({name} AS {of}) IS NULL"), text))
    return F.coalesce(*wrong)

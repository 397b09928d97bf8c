"""The steps of nyc: for each table, a function from a Spark session and a window to the table's rows.

DataFrame API only. Nothing here configures a catalog, writes a table or imports Dagster.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse_assets import Window, read_csv

NA = "NA"
"""How the files write a missing value."""
# The columns of each kind of file, with their types.
AIRLINES = {"carrier": "string", "name": "string"}
AIRPORTS = {
    **dict.fromkeys(("faa", "name"), "string"),
    **dict.fromkeys(("lat", "lon"), "double"),
    **dict.fromkeys(("alt", "tz"), "int"),
    **dict.fromkeys(("dst", "tzone"), "string"),
}
PLANES = {
    "tailnum": "string",
    "year": "int",
    **dict.fromkeys(("type", "manufacturer", "model"), "string"),
    **dict.fromkeys(("engines", "seats", "speed"), "int"),
    "engine": "string",
}
WEATHER = {
    "origin": "string",
    **dict.fromkeys(("year", "month", "day", "hour"), "int"),
    **dict.fromkeys(("temp", "dewp", "humid"), "double"),
    "wind_dir": "int",
    **dict.fromkeys(("wind_speed", "wind_gust", "precip", "pressure", "visib"), "double"),
    "time_hour": "timestamptz",
}
FLIGHTS = {
    **dict.fromkeys(("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay"), "int"),
    **dict.fromkeys(("arr_time", "sched_arr_time", "arr_delay"), "int"),
    "carrier": "string",
    "flight": "int",
    **dict.fromkeys(("tailnum", "origin", "dest"), "string"),
    **dict.fromkeys(("air_time", "distance", "hour", "minute"), "int"),
    "time_hour": "timestamptz",
}


def airlines(spark: SparkSession, window: Window) -> DataFrame:
    """Returns one row for each carrier."""
    return read_csv(spark, f"{window.landing}/dimensions", ["airlines"], AIRLINES, null=NA)


def airports(spark: SparkSession, window: Window) -> DataFrame:
    """Returns one row for each airport."""
    return read_csv(spark, f"{window.landing}/dimensions", ["airports"], AIRPORTS, null=NA)


def planes(spark: SparkSession, window: Window) -> DataFrame:
    """Returns one row for each plane."""
    return read_csv(spark, f"{window.landing}/dimensions", ["planes"], PLANES, null=NA)


def weather(spark: SparkSession, window: Window) -> DataFrame:
    """Returns the readings of the window's UTC days, one for each hour and airport. A day's file may have none."""
    rows = read_csv(spark, f"{window.landing}/weather", window.keys, WEATHER, null=NA)
    return rows.withColumnRenamed("time_hour", "observed_at")


def flights(spark: SparkSession, window: Window) -> DataFrame:
    """Returns the flights of the window's local days."""
    rows = read_csv(spark, f"{window.landing}/flights", window.keys, FLIGHTS, null=NA)
    flight_date = F.make_date("year", "month", "day").alias("flight_date")
    return rows.select(flight_date, "*").withColumnRenamed("time_hour", "scheduled_hour_at")


def flights_enriched(spark: SparkSession, window: Window) -> DataFrame:
    """Adds weather, carrier, destination and plane to the flights of the window's days; null where one is unknown."""
    flown = spark.table("lake.nyc.flights").where(_in_days(F.col("flight_date"), window))
    # A local day D lasts from 05:00 UTC of D to 05:00 UTC of D+1 (04:00 in summer). The bounds let Iceberg skip all
    # other days.
    observed_at = F.col("observed_at")
    observed = (observed_at >= _midnight(window.start_date)) & (observed_at < _midnight(window.end_date, days=1))
    # Joined rows have the same year, month, day and hour: the flight's are kept.
    readings = spark.table("lake.nyc.weather").where(observed).drop("year", "month", "day", "hour")
    carriers = _prefixed(spark.table("lake.nyc.airlines"), "carrier_", key="carrier")
    destinations = _prefixed(spark.table("lake.nyc.airports"), "dest_", key="faa").withColumnRenamed("faa", "dest")
    fleet = _prefixed(spark.table("lake.nyc.planes"), "plane_", key="tailnum")
    # A column of the same name to join by; observed_at stays, and is null where no reading is joined.
    hourly = readings.withColumn("scheduled_hour_at", observed_at)
    return (
        flown.join(F.broadcast(hourly), ["origin", "scheduled_hour_at"], "left")
        .join(F.broadcast(carriers), "carrier", "left")
        .join(F.broadcast(destinations), "dest", "left")
        .join(F.broadcast(fleet), "tailnum", "left")
    )


def _in_days(day: Column, window: Window) -> Column:
    # Iceberg prunes by the range. The keys as well, because a chunk need not have every day of the range.
    whole = day.between(window.start_date, window.end_date - timedelta(days=1))
    return whole & day.isin([date.fromisoformat(key) for key in window.keys])


def _midnight(day: date, days: int = 0) -> datetime:
    return datetime.combine(day, time(), UTC) + timedelta(days=days)


def _prefixed(rows: DataFrame, prefix: str, key: str) -> DataFrame:
    """Puts the prefix before the names of all columns but the key."""
    return rows.withColumnsRenamed({name: prefix + name for name in rows.columns if name != key})

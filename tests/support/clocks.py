"""A table with a column of each kind, Dagster partitions in awkward clocks over it, and moments that try them.
For the unit tests, on PyIceberg's transforms, and the integration tests, on Spark's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
from hypothesis import strategies as st
from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, LessThan
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros

from lakehouse_assets.declare.alignment import Alignment

TABLE = "shop.orders"
COLUMNS = {
    "day": DateType(),
    "at": TimestampType(),
    "at_utc": TimestamptzType(),
    "region": StringType(),
    "shop": IntegerType(),
    "paid": BooleanType(),
    "price": DecimalType(5, 2),
    "other_day": DateType(),
    "weight": DoubleType(),
}
SCHEMA = Schema(*(NestedField(i, name, kind) for i, (name, kind) in enumerate(COLUMNS.items(), start=1)))
NEW_YORK = "America/New_York"
DAILY = dg.DailyPartitionsDefinition("2013-01-01")
REGIONS = dg.StaticPartitionsDefinition(["eu", "us", "asia"])


def spec(*terms: str) -> PartitionSpec:
    """``day``, ``month(at)``, ``bucket[4](shop)``."""
    fields = []
    for position, term in enumerate(terms):
        transform, _, column = term.rstrip(")").rpartition("(")
        source = SCHEMA.find_field(column).field_id
        fields.append(PartitionField(source, 1000 + position, parse_transform(transform or "identity"), f"p{position}"))
    return PartitionSpec(*fields)


def align(partitions: dg.PartitionsDefinition | None, *terms: str) -> Alignment:
    return Alignment.of(TABLE, SCHEMA, spec(*terms), partitions)


def between(column: str, low: str, high: str) -> BooleanExpression:
    return And(GreaterThanOrEqual(column, low), LessThan(column, high))


def tuple_of(row: dict[str, Any], *terms: str) -> Record:
    """The partition tuple of a row (values as Iceberg holds them), by PyIceberg's transforms."""
    fields = spec(*terms).fields
    columns = [SCHEMA.find_field(f.source_id) for f in fields]
    pairs = zip(fields, columns, strict=True)
    return Record(*(f.transform.transform(c.field_type)(row[c.name]) for f, c in pairs))


def value_at(moment: datetime, column: str) -> int:
    """A moment as the column holds it: the instant for timestamptz, the wall clock otherwise."""
    if column == "at_utc":
        return datetime_to_micros(moment)
    wall = moment.replace(tzinfo=None)
    return date_to_days(wall.date()) if column == "day" else datetime_to_micros(wall)


CLOCKS: list[tuple[dg.TimeWindowPartitionsDefinition, str, str]] = [
    (DAILY, "day", "day"),
    (DAILY, "at_utc", "day(at_utc)"),
    (DAILY, "at_utc", "hour(at_utc)"),
    (dg.DailyPartitionsDefinition("1960-01-01"), "day", "day(day)"),
    (dg.DailyPartitionsDefinition("1960-01-01"), "at", "hour(at)"),
    (dg.DailyPartitionsDefinition("2013-01-01", timezone=NEW_YORK), "day", "day"),
    (dg.DailyPartitionsDefinition("2013-01-01", timezone=NEW_YORK), "at", "day(at)"),
    (dg.DailyPartitionsDefinition("2013-01-01", timezone=NEW_YORK), "at_utc", "hour(at_utc)"),
    (dg.DailyPartitionsDefinition("2013-01-01", timezone="America/Sao_Paulo"), "at", "day(at)"),  # midnights skipped
    (dg.DailyPartitionsDefinition("2013-01-01", timezone=NEW_YORK, hour_offset=2), "at", "hour(at)"),
    (dg.DailyPartitionsDefinition("2013-01-01", timezone=NEW_YORK, hour_offset=2), "at_utc", "hour(at_utc)"),
    (dg.DailyPartitionsDefinition("2013-01-01", timezone="Asia/Kolkata", minute_offset=30), "at_utc", "hour(at_utc)"),
    (dg.HourlyPartitionsDefinition("2013-01-01-00:00"), "at", "hour(at)"),
    (dg.HourlyPartitionsDefinition("2013-01-01-00:00", timezone=NEW_YORK), "at_utc", "hour(at_utc)"),
    (dg.HourlyPartitionsDefinition("2013-01-01-00:00", minute_offset=30), "at_utc", "at_utc"),
    (dg.WeeklyPartitionsDefinition("2013-01-01", day_offset=3, timezone=NEW_YORK), "day", "day(day)"),
    (dg.MonthlyPartitionsDefinition("2013-01-01"), "day", "month(day)"),
    (dg.MonthlyPartitionsDefinition("2013-01-01", timezone=NEW_YORK), "at", "month(at)"),
    (dg.MonthlyPartitionsDefinition("2013-01-01", timezone="Asia/Tokyo", hour_offset=9), "at_utc", "month(at_utc)"),
    (
        dg.TimeWindowPartitionsDefinition(
            cron_schedule="0 */6 * * 1-5", start="2013-01-01-00", fmt="%Y-%m-%d-%H", timezone=NEW_YORK
        ),
        "at",
        "hour(at)",
    ),
    (dg.TimeWindowPartitionsDefinition(cron_schedule="0 0 1 */3 *", start="2013-01", fmt="%Y-%m"), "day", "month(day)"),
]
TRANSITIONS = [datetime(2013, 3, 10, 7, tzinfo=UTC), datetime(2013, 11, 3, 6, tzinfo=UTC)] + [
    datetime(year, month, day, hour, tzinfo=UTC)
    for year, month, day, hour in [
        (2013, 10, 20, 3),
        (2016, 2, 29, 0),
        (2016, 3, 1, 0),
        (2020, 1, 1, 0),
        (2015, 2, 22, 2),
    ]
]
MOMENTS = st.one_of(
    st.datetimes(datetime(2013, 3, 1), datetime(2024, 12, 31), timezones=st.just(UTC)),
    st.builds(
        lambda at, minutes, micros: at + timedelta(minutes=minutes, microseconds=micros),
        st.sampled_from(TRANSITIONS),
        st.integers(-3000, 3000),
        st.sampled_from([-1, 0, 1]),
    ),
)

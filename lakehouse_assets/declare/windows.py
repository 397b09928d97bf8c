"""Puts Dagster's time windows in a column's own clock, and checks that they are whole numbers of Iceberg partitions.

It knows nothing of static values (alignment.py), regions (region.py) or tables.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
from pyiceberg.transforms import Transform
from pyiceberg.types import DateType, IcebergType, TimestamptzType
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros

Span = tuple[float, float]
"""A half-open range [low, high) in a column's unit: days for a date, microseconds for a timestamp, both since 1970."""

EVERYTHING: Span = (-math.inf, math.inf)
DAY_MICROS = 86_400_000_000
TICKS = 400
"""Enough ticks to know a cron schedule: more than a year of daily ones."""
ZONES_UNTIL = datetime(2038, 1, 1, tzinfo=UTC)
"""From here on the time zone database has rules in place of single changes: two offsets alternate."""


def windows(
    partitions: dg.TimeWindowPartitionsDefinition, keys: Collection[str]
) -> dict[str, tuple[datetime, datetime]]:
    """Returns the window of each key, aware, in the definition's zone, ascending; leaves out keys that it lacks.

    Windows in the future are included: Dagster decides whether they may be materialized yet.
    Raises ValueError for a key that is no time in the definition's format.
    """
    wanted = frozenset(keys)
    end = partitions.end.timestamp() if partitions.end else math.inf
    return {
        label: (window.start, window.end)
        for window in partitions.time_windows_for_partition_keys(wanted, validate=False)
        if (label := _label(partitions, window)) in wanted
        and window.start.timestamp() >= partitions.start.timestamp()
        and window.end.timestamp() <= end
    }


def _label(partitions: dg.TimeWindowPartitionsDefinition, window: dg.TimeWindow) -> str:
    if window.start.fold:  # the second of two equal wall-clock times: only Dagster knows whether their keys differ
        return partitions.get_partition_keys_in_time_window(window)[0]
    return window.start.strftime(partitions.fmt)


def bound(moment: datetime, type: IcebergType) -> int:
    """Converts an aware window bound to the unit and clock of a column: UTC for timestamptz, else its wall clock."""
    if isinstance(type, TimestamptzType):
        return datetime_to_micros(moment)
    local = _wall(moment)
    return date_to_days(local.date()) if isinstance(type, DateType) else datetime_to_micros(local)


def _wall(moment: datetime) -> datetime:
    """Returns the naive wall-clock time; where the clock jumps ahead, the time before it, so windows stay adjacent."""
    instant = moment.astimezone(UTC)
    after = instant.astimezone(moment.tzinfo)
    before = (instant - timedelta(microseconds=1)).astimezone(moment.tzinfo)
    jump = (after.utcoffset() or timedelta()) - (before.utcoffset() or timedelta())
    return after.replace(tzinfo=None, fold=0) - max(jump, timedelta())


def span(transform: Transform[Any, Any], value: int, type: IcebergType) -> Span:
    """Returns the column's values that a time transform, or identity, maps to the partition value ``value``."""
    day = 1 if isinstance(type, DateType) else DAY_MICROS
    if width := {"identity": 1, "hour": DAY_MICROS // 24, "day": day}.get(str(transform)):
        return value * width, (value + 1) * width
    months = {"month": 1, "year": 12}[str(transform)]
    return _first_day(value * months) * day, _first_day((value + 1) * months) * day


def _first_day(months: int) -> float:
    years, month = divmod(months, 12)
    if not date.min.year <= 1970 + years <= date.max.year:
        return math.copysign(math.inf, years)
    return date_to_days(date(1970 + years, month + 1, 1))


def misaligned(
    partitions: dg.TimeWindowPartitionsDefinition, transform: Transform[Any, Any], type: IcebergType
) -> str | None:
    """Returns the reason why some window starts or ends inside an Iceberg partition; None if none ever does.

    It is decided from schedule and zone: each wall-clock tick, at each offset of the zone after the definition's start,
    must be the first moment of an Iceberg partition in the column's clock.
    """
    utc = isinstance(type, TimestamptzType)
    offsets = {offset for _, offset in _offsets(partitions)} if utc else {timedelta()}
    for tick in _ticks(partitions.cron_schedule):
        for offset in offsets:
            if not _is_first(tick - offset, transform, type):
                at = (
                    "a Dagster partition can start inside an Iceberg partition: "
                    f"at {tick:%H:%M} on day {tick.day} of a month, {partitions.timezone}"
                )
                return f"{at}, which is {tick - offset:%H:%M} on day {(tick - offset).day}, UTC" if utc else at
    return None if utc else _repeated(partitions)


def _is_first(at: datetime, transform: Transform[Any, Any], type: IcebergType) -> bool:
    value, apply = datetime_to_micros(at), transform.transform(type)
    if isinstance(type, DateType):
        value, within = divmod(value, DAY_MICROS)
        if within:
            return False
    return apply(value) != apply(value - 1)


def _repeated(partitions: dg.TimeWindowPartitionsDefinition) -> str | None:
    """Says why two windows have the same wall-clock time (hours when clocks go back); None if no two have."""
    if len({tick.time() for tick in _ticks(partitions.cron_schedule)}) == 1:
        return None
    for (before, earlier), (after, later) in pairwise(_offsets(partitions)):
        if later < earlier:
            around = dg.TimeWindow(before.astimezone(ZoneInfo(partitions.timezone)), after)
            keys = partitions.get_partition_keys_in_time_window(around)
            starts = {key: _wall(start) for key, (start, _) in windows(partitions, keys).items()}
            for (key, start), (next_key, next_start) in pairwise(starts.items()):
                if next_start <= start:
                    return f"{key} and {next_key} are the same wall-clock time, {start.isoformat(' ', 'minutes')}"
    return None


@lru_cache(maxsize=256)
def _ticks(cron_schedule: str) -> tuple[datetime, ...]:
    """Returns the schedule's first ticks of the year 2000, as wall-clock times."""
    clock = dg.TimeWindowPartitionsDefinition(
        cron_schedule=cron_schedule, start=datetime(2000, 1, 1), fmt="%Y-%m-%dT%H:%M"
    )
    return tuple(map(datetime.fromisoformat, clock.get_partition_keys_between_indexes(0, TICKS)))


def _offsets(partitions: dg.TimeWindowPartitionsDefinition) -> tuple[tuple[datetime, timedelta], ...]:
    return _zone_offsets(partitions.timezone, partitions.start.astimezone(UTC), partitions.end or ZONES_UNTIL)


@lru_cache(maxsize=256)
def _zone_offsets(timezone: str, start: datetime, end: datetime) -> tuple[tuple[datetime, timedelta], ...]:
    """Returns the zone's UTC offset week by week: none held for less, so each change lies between two neighbours."""
    zone = ZoneInfo(timezone)
    weeks = max(1, -(-(end - start) // timedelta(weeks=1)))
    moments = (start + timedelta(weeks=week) for week in range(weeks + 1))
    return tuple((moment, moment.astimezone(zone).utcoffset() or timedelta()) for moment in moments)

"""Which keys a pattern matches, and which patterns are refused when the declarations load.
What is done with an object that matches is the queue's."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from lakehouse_assets.declare.alignment import input_dimensions
from lakehouse_assets.declare.options import Arrivals, Pace, arrivals_problem

ANY = dg.DynamicPartitionsDefinition(name="any")
PARTITIONS = {
    "day": dg.DailyPartitionsDefinition("2013-01-01"),
    "hour": dg.HourlyPartitionsDefinition("2013-01-01-00:00"),
    "shop": dg.StaticPartitionsDefinition(["eu", "eu-1"]),
}


@pytest.mark.parametrize(
    ("pattern", "key", "dimensions", "expected"),
    [
        ("flights/{day}.csv.gz", "flights/2013-01-05.csv.gz", ["day"], "2013-01-05"),
        ("flights/{day}.csv.gz", "flights/2013-01-05.csv", ["day"], None),
        ("flights/{day}.csv.gz", "old/flights/2013-01-05.csv.gz", ["day"], None),
        ("flights/{day}.csv.gz", "flights/2013-01-05xcsv.gz", ["day"], None),
        ("flights/{day}.csv.gz", "flights/a/b.csv.gz", ["day"], None),
        ("flights/{day}.csv.gz", "flights/.csv.gz", ["day"], None),
        ("{origin}/{day}/part-*.parquet", "EWR/2013-01-05/part-7.parquet", ["day", "origin"], "2013-01-05|EWR"),
        ("{origin}/{day}/part-*.parquet", "EWR/2013-01-05/part-7/8.parquet", ["day", "origin"], None),
        ("{name}/*", "a b+c%20é/1", ["name"], "a b+c%20é"),
        ("{store-id}/{day}.csv", "7/2013-01-05.csv", ["day", "store-id"], "2013-01-05|7"),
        ("{origin}-{day}.csv", "EWR-2013-01-05.csv", ["day", "origin"], "2013-01-05|EWR"),
        ("{origin}-{day}.csv", "a-b-2013-01-05.csv", ["day", "origin"], "2013-01-05|a-b"),
        ("{day}-{origin}.csv", "2013-01-05-a-1.csv", ["day", "origin"], "2013-01-05|a-1"),
        ("{day}-*.csv", "2013-01-05-part-1.csv", ["day"], "2013-01-05"),
        ("{origin}-{hour}.csv", "7-2013-01-05-06:00.csv", ["origin", "hour"], "7|2013-01-05-06:00"),
        ("{shop}-{origin}.csv", "eu-1-x-y.csv", ["shop", "origin"], "eu-1|x-y"),
        ("{origin}-{shop}.csv", "x-y-eu-1.csv", ["shop", "origin"], "eu-1|x-y"),
        ("{shop}-{origin}.csv", "us-1-x.csv", ["shop", "origin"], "us-1|x"),
        ("planes.csv", "planes.csv", [], ""),
        ("planes.csv", "planes.csv\n", [], None),
    ],
)
def test_a_key_of_the_pattern_stands_for_a_partition(
    pattern: str, key: str, dimensions: list[str], expected: str | None
) -> None:
    assert arrivals_problem(Arrivals(pattern), dimensions) is None
    forms = {name: part.form for name in dimensions for part in input_dimensions(PARTITIONS.get(name, ANY))}
    assert Arrivals(pattern).partition_key(key, forms) == expected


@pytest.mark.parametrize(
    ("pattern", "dimensions", "reason"),
    [
        ("flights/*.csv", ["day"], "yields no partition key: expected {day}, found none"),
        ("flights/{date}.csv", ["day"], "expected {day}, found {date}"),
        ("flights/{day}.csv", ["day", "origin"], "expected {day}, {origin}, found {day}"),
        ("flights/{day}/{day}.csv", ["day"], "found {day}, {day}"),
        ("planes/{day}.csv", [], "expected no field, found {day}"),
        ("{day}{origin}", ["day", "origin"], "it doesn't show where one field ends"),
        ("/flights/{day}", ["day"], "without a leading slash"),
        ("flights/{day", ["day"], "fields in braces"),
        ("", [], "it must be a key"),
    ],
)
def test_a_pattern_that_yields_no_partition_key_is_refused(pattern: str, dimensions: list[str], reason: str) -> None:
    assert reason in (arrivals_problem(Arrivals(pattern), dimensions) or "")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"floor": -1}, "floor=-1, it must be a whole number of 1 or more"),
        ({"floor": 0}, "floor=0"),
        ({"ceiling": 0}, "ceiling=0, it must be a whole number of 1 or more"),
        ({"runs": 0}, "runs=0, it must be a whole number of 1 or more"),
        ({"tries": 0}, "tries=0, it must be a whole number of 1 or more"),
        ({"latency": timedelta(seconds=-1)}, "latency=-1 day, 23:59:59, it must be a timedelta of 0 or more"),
        ({"backoff": timedelta(0)}, "backoff=0:00:00, it must be a timedelta above 0"),
    ],
)
def test_a_pace_at_which_nothing_would_run_is_refused(options: dict[str, Any], reason: str) -> None:
    assert f"arrivals.pace has {reason}" in (arrivals_problem(Arrivals("{day}", Pace(**options)), ["day"]) or "")


def test_the_least_that_a_pace_may_be() -> None:
    least = Pace(1, timedelta(0), 1, 1, 1, timedelta.resolution)
    assert arrivals_problem(Arrivals("{day}", least), ["day"]) is None

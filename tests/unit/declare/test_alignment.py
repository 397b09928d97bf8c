"""Partition keys, Iceberg partitions and row predicates: what lines up, and that none passes over a key's rows.
No JVM, PyIceberg's transforms; Spark's own are tested in integration/test_partition_transforms.py."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

import dagster as dg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, In, Or
from pyiceberg.expressions.visitors import bind, expression_evaluator
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DateType,
    DecimalType,
    NestedField,
)
from pyiceberg.utils.datetime import date_to_days

from lakehouse_assets.declare.alignment import dimensions_of
from lakehouse_assets.declare.region import Region, Relation
from lakehouse_assets.errors import DeclarationError, UnknownPartitions
from tests.support.clocks import (
    CLOCKS,
    COLUMNS,
    DAILY,
    MOMENTS,
    NEW_YORK,
    REGIONS,
    SCHEMA,
    TABLE,
    align,
    between,
    spec,
    tuple_of,
    value_at,
)

MULTI = dg.MultiPartitionsDefinition({"day": DAILY, "region": REGIONS})
MONTH_1 = [f"2013-01-{day:02}" for day in range(1, 32)]


@pytest.mark.parametrize(
    ("partitions", "terms", "keys", "expected"),
    [
        (None, ["bucket[4](shop)"], [], AlwaysTrue()),
        (DAILY, ["day"], ["2013-01-31"], between("day", "2013-01-31", "2013-02-01")),
        (DAILY, ["day"], MONTH_1, between("day", "2013-01-01", "2013-02-01")),
        (
            DAILY,
            ["day(at_utc)"],
            ["2013-01-03", "2013-01-01"],
            Or(
                between("at_utc", "2013-01-01T00:00:00+00:00", "2013-01-02T00:00:00+00:00"),
                between("at_utc", "2013-01-03T00:00:00+00:00", "2013-01-04T00:00:00+00:00"),
            ),
        ),
        (
            dg.DailyPartitionsDefinition("2013-01-01", timezone=NEW_YORK),
            ["hour(at_utc)"],
            ["2013-03-10"],  # 23 hours
            between("at_utc", "2013-03-10T05:00:00+00:00", "2013-03-11T04:00:00+00:00"),
        ),
        (
            dg.DailyPartitionsDefinition("2013-01-01", timezone=NEW_YORK, hour_offset=2),
            ["hour(at)"],
            ["2013-03-09", "2013-03-10"],  # 02:00 of the 10th is skipped by the clocks: the two still touch
            between("at", "2013-03-09T02:00:00", "2013-03-11T02:00:00"),
        ),
        (
            dg.HourlyPartitionsDefinition("2013-01-01-00:00", timezone=NEW_YORK),
            ["hour(at_utc)"],
            ["2013-11-03-01:00-0500"],  # the second hour from 01:00 to 02:00
            between("at_utc", "2013-11-03T06:00:00+00:00", "2013-11-03T07:00:00+00:00"),
        ),
        (
            dg.WeeklyPartitionsDefinition("2013-01-01"),
            ["day(at)"],
            ["2013-01-06", "2013-01-13"],
            between("at", "2013-01-06T00:00:00", "2013-01-20T00:00:00"),
        ),
        (
            dg.MonthlyPartitionsDefinition("2013-01-01"),
            ["month(day)", "bucket[4](shop)"],
            ["2013-12-01"],
            between("day", "2013-12-01", "2014-01-01"),
        ),
        (REGIONS, ["region"], ["eu"], EqualTo("region", "eu")),
        (REGIONS, ["region", "bucket[4](shop)"], ["eu", "us"], In("region", ["us", "eu"])),
        (dg.StaticPartitionsDefinition(["1", "-2"]), ["shop"], ["-2", "1"], In("shop", [1, -2])),
        (dg.StaticPartitionsDefinition(["true", "false"]), ["paid"], ["true"], EqualTo("paid", True)),
        (dg.StaticPartitionsDefinition(["1.5"]), ["price"], ["1.5"], EqualTo("price", Decimal("1.50"))),
        (dg.DynamicPartitionsDefinition(name="days"), ["day"], ["2013-01-02"], EqualTo("day", "2013-01-02")),
        (
            MULTI,
            ["day", "region"],
            ["2013-01-01|eu", "2013-01-02|eu", "2013-01-01|us", "2013-01-02|us", "2013-01-02|asia"],
            And(between("day", "2013-01-01", "2013-01-03"), In("region", ["eu", "us", "asia"])),
        ),
        (
            dg.MultiPartitionsDefinition({"shop": dg.StaticPartitionsDefinition(["1", "2"]), "region": REGIONS}),
            ["shop", "region"],
            ["eu|1", "eu|2", "us|1", "us|2", "asia|2"],
            And(In("region", ["eu", "us", "asia"]), In("shop", [1, 2])),
        ),
    ],
)
def test_predicate(
    partitions: dg.PartitionsDefinition | None, terms: list[str], keys: list[str], expected: BooleanExpression
) -> None:
    predicate = align(partitions, *terms).region(keys).predicate()
    # Bound, because the predicate has a column's own unit where these tests have ISO text.
    assert bind(SCHEMA, predicate, case_sensitive=True) == bind(SCHEMA, expected, case_sensitive=True)


@pytest.mark.parametrize(
    ("partitions", "terms", "expected"),
    [
        (DAILY, [], "none): time windows need exactly one column"),
        (DAILY, ["month(day)"], "start inside an Iceberg partition: at 00:00 on day 2"),
        (DAILY, ["month(day)"], "day(day) would fit"),
        (DAILY, ["region"], "found none"),
        (DAILY, ["day", "day(at)"], "found day, at"),
        (dg.DailyPartitionsDefinition("2013-01-01", timezone=NEW_YORK), ["day(at_utc)"], "05:00 on day 1, UTC"),
        (dg.DailyPartitionsDefinition("2013-01-01", timezone=NEW_YORK), ["day(at_utc)"], "hour(at_utc) would fit"),
        (dg.DailyPartitionsDefinition("2013-01-01", hour_offset=6), ["day"], "06:00"),
        (dg.HourlyPartitionsDefinition("2013-01-01-00:00", minute_offset=30), ["hour(at)"], "No transform of it"),
        (dg.HourlyPartitionsDefinition("2013-01-01-00:00", timezone="Asia/Kolkata"), ["hour(at_utc)"], "18:30"),
        (
            dg.HourlyPartitionsDefinition("2013-01-01-00:00", timezone=NEW_YORK),
            ["hour(at)"],
            "2013-11-03-01:00 and 2013-11-03-01:00-0500 are the same wall-clock time",
        ),
        (dg.WeeklyPartitionsDefinition("2013-01-01"), ["month(at)"], "day(at) would fit"),
        (dg.MonthlyPartitionsDefinition("2013-01-01", day_offset=15), ["month(at)"], "on day 15 of a month"),
        (dg.MonthlyPartitionsDefinition("2013-01-01"), ["year(at)"], "month(at) would fit"),
        (REGIONS, ["region", "shop"], "exactly one plain column among them, found region, shop"),
        (REGIONS, ["bucket[4](region)"], "found none"),
        (REGIONS, ["shop"], "the key 'asia' is not of the type int"),
        (dg.StaticPartitionsDefinition(["1", "01"]), ["shop"], "have the same int value"),
        (dg.StaticPartitionsDefinition(["", "eu"]), ["region"], "the empty key '' can't be a partition"),
        (dg.StaticPartitionsDefinition(["1.555"]), ["price"], "the key '1.555' is not of the type decimal(5, 2)"),
        (dg.StaticPartitionsDefinition(["1234.5"]), ["price"], "the key '1234.5' is not of the type decimal(5, 2)"),
        (dg.StaticPartitionsDefinition(["3000000000"]), ["shop"], "is not of the type int"),
        (dg.StaticPartitionsDefinition(["1.5"]), ["weight"], "weight is a double"),
        (dg.DynamicPartitionsDefinition(name="weights"), ["weight"], "weight is a double"),
        (dg.MultiPartitionsDefinition({"when": DAILY, "area": REGIONS}), ["day", "region"], "dimension 'area' needs"),
        (dg.MultiPartitionsDefinition({"day": DAILY, "other_day": DAILY}), ["day", "other_day"], "static"),
    ],
)
def test_what_does_not_line_up_is_refused(partitions: dg.PartitionsDefinition, terms: list[str], expected: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        align(partitions, *terms)
    message = str(refused.value)
    assert expected in message
    assert f"'{TABLE}'" in message
    assert type(partitions).__name__ in message
    assert f"({', '.join(terms).replace('bucket[4](', 'bucket(4, ') or 'none'})" in message


def test_a_key_may_have_as_many_digits_as_its_decimal() -> None:
    key = "123456789012345678901234567890"
    column = NestedField(1, "id", DecimalType(38, 0))
    (dimension,) = dimensions_of(
        Schema(column),
        PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id")),
        dg.StaticPartitionsDefinition([key]),
    )
    assert dimension.axis([key]).keys == {Decimal(key): key}


@pytest.mark.parametrize(
    ("partitions", "terms"),
    [
        (dg.HourlyPartitionsDefinition("2013-01-01-00:00", timezone="Asia/Kolkata", minute_offset=30), "hour(at_utc)"),
        (dg.MonthlyPartitionsDefinition("2013-01-01", timezone="Asia/Tokyo", hour_offset=9), "month(at_utc)"),
        (dg.MonthlyPartitionsDefinition("2013-01-01", timezone=NEW_YORK), "day"),
        (dg.DailyPartitionsDefinition("2013-01-01", timezone=NEW_YORK, minute_offset=7), "at_utc"),
        (dg.TimeWindowPartitionsDefinition(cron_schedule="0 0 1 1 *", start="2000", fmt="%Y"), "year(day)"),
        (dg.MultiPartitionsDefinition({"other_day": DAILY, "region": REGIONS}), "day region other_day"),
        (
            dg.MultiPartitionsDefinition({"when": DAILY, "other_day": dg.DynamicPartitionsDefinition(name="d")}),
            "day other_day",
        ),
        (DAILY, "month(day) day"),
        (None, "month(day) day(at)"),
    ],
)
def test_what_lines_up_is_accepted(partitions: dg.PartitionsDefinition | None, terms: str) -> None:
    align(partitions, *terms.split())


def test_the_finer_of_two_terms_of_a_column_decides() -> None:
    region = align(DAILY, "month(day)", "day").region(["2013-02-01"])
    assert region.key_of(tuple_of({"day": 15737}, "month(day)", "day")) == "2013-02-01"
    assert region.key_of(tuple_of({"day": 15738}, "month(day)", "day")) is None


@pytest.mark.parametrize(
    ("partitions", "terms", "keys", "expected"),
    [
        (DAILY, ["day"], [], "is partitioned, but no partition was requested"),
        (None, ["day"], ["2013-01-01"], "has no Dagster partitions, but '2013-01-01' was requested"),
        (
            DAILY,
            ["day"],
            ["2012-12-31"],
            "no such partition: '2012-12-31'; its partitions are Daily, starting 2013-01-01",
        ),
        (DAILY, ["day"], ["2013-1-2"], "no such partition: '2013-1-2'"),
        (DAILY, ["day"], ["tomorrow"], "'tomorrow'"),
        (
            dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-02-01"),
            ["day"],
            ["2013-02-01"],
            "no such partition",
        ),
        (dg.WeeklyPartitionsDefinition("2013-01-01"), ["day"], ["2013-01-07"], "no such partition: '2013-01-07'"),
        (
            dg.TimeWindowPartitionsDefinition(
                "2013-01-01", "%Y-%m-%d", cron_schedule="0 0 * * *", exclusions=["0 0 * * 0"]
            ),
            ["day"],
            ["2013-01-06"],
            "no such partition: '2013-01-06'",
        ),
        (REGIONS, ["region"], ["mars"], "no such partition: 'mars'; its partitions are 'asia', 'eu', 'us'"),
        (dg.DynamicPartitionsDefinition(name="shops"), ["shop"], ["one"], "the key 'one' is not of the type int"),
        (
            dg.DynamicPartitionsDefinition(name="regions"),
            ["region"],
            ["eu", ""],
            "the empty key '' can't be a partition",
        ),
        (dg.DynamicPartitionsDefinition(name="regions"), ["region"], [], "Dagster drops an empty key"),
        (MULTI, ["day", "region"], ["2013-01-01"], "keys of the form day|region"),
        (MULTI, ["day", "region"], ["2013-01-01|mars"], "no such partition: 'mars'"),
    ],
)
def test_keys_the_table_lacks_are_refused(
    partitions: dg.PartitionsDefinition | None, terms: list[str], keys: list[str], expected: str
) -> None:
    alignment = align(partitions, *terms)
    with pytest.raises(UnknownPartitions) as refused:
        alignment.region(keys)
    assert expected in str(refused.value)
    assert f"'{TABLE}'" in str(refused.value)


def test_window_and_dimensions() -> None:
    multi, keys = align(MULTI, "day", "region"), ["2013-01-05|us", "2013-01-02|eu", "2013-01-02|us"]
    assert multi.window(keys) == (datetime(2013, 1, 2, tzinfo=UTC), datetime(2013, 1, 6, tzinfo=UTC))
    assert multi.dimensions(keys) == {"day": ("2013-01-05", "2013-01-02"), "region": ("us", "eu")}
    assert align(DAILY, "day").dimensions(["2013-01-05"]) == {}
    assert align(REGIONS, "region").dimensions(["us", "eu"]) == {"region": ("us", "eu")}
    assert align(REGIONS, "region").window(["us"]) is None
    assert align(None).window([]) is None
    assert align(None).dimensions([]) == {}
    in_new_york = align(dg.DailyPartitionsDefinition("2013-01-01", timezone=NEW_YORK), "day")
    start, end = in_new_york.window(["2013-11-03"]) or pytest.fail("no window")
    assert end.astimezone(UTC) - start.astimezone(UTC) == timedelta(hours=25)
    assert (start.date().isoformat(), end.date().isoformat()) == ("2013-11-03", "2013-11-04")


def test_nulls_are_outside_every_key_and_inside_the_whole_table() -> None:
    for partitions, term, key in [(DAILY, "day", "2013-01-01"), (REGIONS, "region", "eu")]:
        region = align(partitions, term).region([key])
        assert region.key_of(Record(None)) is None
        assert region.relation(SCHEMA, spec(term), Record(None)) is Relation.OUTSIDE
    assert (
        align(DAILY, "day").region(["2013-01-01"]).relation(SCHEMA, spec("void(day)"), Record(None))
        is Relation.OVERLAPS
    )
    whole = align(None, "day").region([])
    assert whole.key_of(Record(None)) == ""
    assert whole.relation(SCHEMA, spec("day"), Record(None)) is Relation.INSIDE


def test_columns_are_found_by_name_whatever_their_ids() -> None:
    """A column added in the middle of a declaration gets another id in the table that exists."""
    region = align(DAILY, "day").region(["2013-01-01"])
    evolved = Schema(NestedField(1, "other_day", DateType()), NestedField(7, "day", DateType()))
    identity = parse_transform("identity")
    assert region.relation(evolved, PartitionSpec(PartitionField(7, 1000, identity, "day")), Record(15706)) == "inside"
    assert region.relation(evolved, PartitionSpec(PartitionField(1, 1000, identity, "d")), Record(15706)) == "overlaps"


@pytest.mark.parametrize(("partitions", "column", "term"), CLOCKS)
@settings(max_examples=20, deadline=None)
@given(moment=MOMENTS)
def test_a_moment_belongs_to_the_key_dagster_gives_it(
    partitions: dg.TimeWindowPartitionsDefinition, column: str, term: str, moment: datetime
) -> None:
    key = partitions.get_partition_key_for_timestamp(moment.timestamp())
    window = partitions.time_window_for_partition_key(key)
    local = moment.astimezone(window.start.tzinfo)
    last = window.end.astimezone(UTC) - timedelta(microseconds=1)
    region = align(partitions, term).region([key])
    matches = expression_evaluator(SCHEMA, region.predicate(), case_sensitive=True)
    for inside in (local, window.start.astimezone(UTC).astimezone(local.tzinfo), last.astimezone(local.tzinfo)):
        row = {column: value_at(inside, column)}
        assert region.key_of(tuple_of(row, term)) == key
        assert region.relation(SCHEMA, spec(term), tuple_of(row, term)) is Relation.INSIDE
        assert matches(Record(*(row.get(name) for name in COLUMNS)))
    for outside in (window.start.astimezone(UTC) - timedelta(microseconds=1), window.end.astimezone(UTC)):
        row = {column: value_at(outside.astimezone(local.tzinfo), column)}
        assert region.key_of(tuple_of(row, term)) is None
        assert region.relation(SCHEMA, spec(term), tuple_of(row, term)) is Relation.OUTSIDE
        assert not matches(Record(*(row.get(name) for name in COLUMNS)))


DAYS = range(date_to_days(date(2013, 1, 1)), date_to_days(date(2015, 1, 1)))
NAMES = ["eu", "us", "asia", "europe", "usa"]
ROWS = [{"day": day, "region": name} for day in DAYS for name in NAMES]
KEYS = st.sets(
    st.tuples(st.integers(0, 75), st.sampled_from(REGIONS.get_partition_keys())).map(
        lambda cell: f"{datetime(2013, 12, 15) + timedelta(days=cell[0]):%Y-%m-%d}|{cell[1]}"
    ),
    min_size=1,
    max_size=200,
)
EXACT = [
    "day region",
    "region day(day) bucket[3](region)",
    "month(day) region",
    "year(day) region",
    "month(day) year(day) truncate[2](region) region",
]
LOOSE = ["month(day) bucket[3](region)", "day truncate[2](region)", "day", "region", "void(day) region", ""]


@pytest.mark.parametrize("terms", EXACT + LOOSE)
@settings(max_examples=20, deadline=None)
@given(keys=KEYS, whole_months=st.booleans(), at=st.integers(0, len(ROWS) - 1))
def test_relation_agrees_with_counting_rows(terms: str, keys: set[str], whole_months: bool, at: int) -> None:
    """INSIDE and OUTSIDE are never claimed wrongly, nor missed where the spec pins what the keys constrain."""
    if whole_months:
        keys = keys | {f"2014-01-{day:02}|{name}" for day in range(1, 32) for name in ("eu", "us")}
    region = align(MULTI, "day", "region").region(sorted(keys))
    partition = tuple_of(ROWS[at], *terms.split())
    owned = {region.key_of(tuple_of(row, "day", "region")) is not None for row in _rows_by_tuple(terms)[partition]}
    relation = region.relation(SCHEMA, spec(*terms.split()), partition)
    if relation is not Relation.OVERLAPS:
        assert owned == {relation is Relation.INSIDE}
    elif terms in EXACT:
        assert owned == {True, False}


@cache
def _rows_by_tuple(terms: str) -> dict[Record, list[dict[str, Any]]]:
    groups: dict[Record, list[dict[str, Any]]] = defaultdict(list)
    for row in ROWS:
        groups[tuple_of(row, *terms.split())].append(row)
    return groups


@settings(max_examples=15, deadline=None)
@given(keys=KEYS)
def test_the_predicate_selects_each_row_of_the_region(keys: set[str]) -> None:
    region: Region = align(MULTI, "day", "region").region(sorted(keys))
    matches: Callable[[Record], bool] = expression_evaluator(SCHEMA, region.predicate(), case_sensitive=True)
    owned = [row for row in ROWS if region.key_of(tuple_of(row, "day", "region")) is not None]
    assert len(owned) == len(keys)
    assert all(matches(Record(*(row.get(name) for name in COLUMNS))) for row in owned)

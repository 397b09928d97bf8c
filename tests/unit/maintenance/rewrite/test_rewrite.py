"""Rows are sorted as Iceberg says, where PyArrow can, and nothing else is claimed to be sorted.
A sort order in a whole rewrite is in integration/test_compact.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, StructType, UUIDType

from lakehouse_assets.maintenance.health.needs_spark import unsortable
from lakehouse_assets.maintenance.rewrite.compact import sort

SCHEMA = Schema(
    NestedField(1, "n", LongType()),
    NestedField(2, "d", DoubleType()),
    NestedField(3, "s", StringType()),
    NestedField(4, "id", UUIDType()),
    NestedField(5, "p", StructType(NestedField(6, "x", LongType()))),
)
ASC, DESC = SortDirection.ASC, SortDirection.DESC
FIRST, LAST = NullOrder.NULLS_FIRST, NullOrder.NULLS_LAST
Way = tuple[int, SortDirection, NullOrder]


def order(*ways: Way) -> SortOrder:
    return SortOrder(*[SortField(source, IdentityTransform(), d, nulls) for source, d, nulls in ways])


def rank(value: Any, direction: SortDirection, nulls: NullOrder) -> tuple[int, int, Any]:
    """Where a value goes in ascending order; of a descending one, where its opposite does."""
    if value is None:
        return (0 if (nulls is FIRST) is (direction is ASC) else 2, 0, 0)
    return (1, int(value != value), 0 if value != value else value)


def expected(rows: list[dict[str, Any]], ways: list[Way]) -> list[dict[str, Any]]:
    """By Python's stable sort, the last key first."""
    for source, direction, nulls in reversed(ways):
        name = SCHEMA.find_field(source).name
        rank_of: Callable[[dict[str, Any]], Any] = lambda r, n=name, d=direction, o=nulls: rank(r[n], d, o)  # noqa: E731
        rows = sorted(rows, key=rank_of, reverse=direction is DESC)
    return rows


values = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(0, 2),
        "d": st.none() | st.sampled_from([1.0, -1.0, math.nan, math.inf, -math.inf]),
        "s": st.none() | st.sampled_from(["", "a", "B", "ä"]),
    }
)
ways_of = st.lists(
    st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from([ASC, DESC]), st.sampled_from([FIRST, LAST])),
    min_size=1,
    max_size=3,
    unique_by=lambda way: way[0],
)


@settings(max_examples=150, deadline=None)
@given(st.lists(values, max_size=12), ways_of)
def test_rows_come_in_the_order_of_a_plain_stable_sort(rows: list[dict[str, Any]], ways: list[Way]) -> None:
    schema = pa.schema([("n", pa.int64()), ("d", pa.float64()), ("s", pa.string()), ("at", pa.int64())])
    numbered = [row | {"at": n} for n, row in enumerate(rows)]
    table = pa.Table.from_pylist(numbered, schema=schema)
    found = sort(table, order(*ways), SCHEMA)["at"].to_pylist()
    wanted = [row["at"] for row in expected(numbered, ways)]
    key = [tuple(rank(numbered[at][SCHEMA.find_field(s).name], d, o) for s, d, o in ways) for at in found]
    assert key == [tuple(rank(numbered[at][SCHEMA.find_field(s).name], d, o) for s, d, o in ways) for at in wanted]
    assert sorted(found) == sorted(wanted)


def test_an_unsorted_table_keeps_its_order() -> None:
    table = pa.table({"n": [3, 1, 2]})
    assert sort(table, SortOrder(order_id=0), SCHEMA) is table


def test_what_pyarrow_cannot_sort_is_said() -> None:
    assert not [*unsortable(order((1, ASC, FIRST), (2, DESC, LAST), (3, ASC, LAST)), SCHEMA)]
    bucket = SortOrder(SortField(1, BucketTransform(4), ASC, FIRST))
    assert [*unsortable(bucket, SCHEMA)] == ["it is sorted by bucket[4](n)"]
    assert [*unsortable(order((4, ASC, FIRST)), SCHEMA)] == ["it is sorted by id, a uuid"]
    assert [*unsortable(order((6, ASC, FIRST)), SCHEMA)] == ["it is sorted by p.x, which is nested or was dropped"]
    assert [*unsortable(order((9, ASC, FIRST)), SCHEMA)] == ["it is sorted by column 9, which is nested or was dropped"]


@pytest.mark.parametrize("direction", [ASC, DESC])
def test_nans_are_above_all_numbers(direction: SortDirection) -> None:
    table = pa.table({"d": [math.nan, 1.0, None, math.inf]})
    found = sort(table, order((2, direction, LAST)), SCHEMA)["d"].to_pylist()
    numbers = [1.0, math.inf, "nan"] if direction is ASC else ["nan", math.inf, 1.0]
    assert ["nan" if d is not None and math.isnan(d) else d for d in found] == [*numbers, None]

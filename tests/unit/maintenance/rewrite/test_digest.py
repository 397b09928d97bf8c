"""The digest sees every change of a row that a rewrite could make, and none where there is none.
Whether a rewrite's own faults are caught is in integration/test_compact.py."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pprint import pformat
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse_assets.commit.landing import Proof
from lakehouse_assets.maintenance.rewrite.digest import ROWS_AT_ONCE, _of_hashes, digest, row_hashes
from lakehouse_assets.wire.work import Digest

POINT = pa.struct([("x", pa.int64()), ("y", pa.int64())])
SCHEMA = pa.schema(
    [
        ("flag", pa.bool_()),
        ("small", pa.int32()),
        ("large", pa.int64()),
        ("other", pa.int64()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("price", pa.decimal128(38, 4)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("at_utc", pa.timestamp("us", "UTC")),
        ("time", pa.time64("us")),
        ("text", pa.string()),
        ("more", pa.large_string()),
        ("bytes", pa.binary()),
        ("id", pa.binary(16)),
        ("odd", pa.binary(3)),
        ("point", POINT),
        ("numbers", pa.list_(pa.int64())),
        ("nested", pa.list_(pa.list_(pa.string()))),
        ("points", pa.list_(POINT)),
        ("map", pa.map_(pa.string(), pa.int64())),
        ("deep", pa.struct([("list", pa.list_(POINT)), ("text", pa.string())])),
    ]
)
ROW: dict[str, Any] = {
    "flag": True,
    "small": 1,
    "large": 1,
    "other": 2,
    "single": 1.5,
    "double": 2.5,
    "price": Decimal("12345678901234567890.1234"),
    "day": date(2024, 2, 29),
    "at": datetime(2024, 2, 29, 1, 2, 3, 456789),
    "at_utc": datetime(2024, 2, 29, 1, 2, 3, 456789, UTC),
    "time": (datetime.min + timedelta(microseconds=1)).time(),
    "text": "text",
    "more": "a longer text, of several words",
    "bytes": b"bytes",
    "id": bytes(range(16)),
    "odd": b"abc",
    "point": {"x": 1, "y": 2},
    "numbers": [1, 2, 3],
    "nested": [["a"], ["b", "c"]],
    "points": [{"x": 1, "y": 2}, {"x": 3, "y": 4}],
    "map": [("a", 1), ("b", 2)],
    "deep": {"list": [{"x": 1, "y": None}], "text": "t"},
}
NOTHING: dict[str, Any] = dict.fromkeys(SCHEMA.names)


def of(*rows: dict[str, Any], schema: pa.Schema = SCHEMA) -> Digest:
    return digest([pa.Table.from_pylist([dict(row) for row in rows], schema=schema)])


def bits(number: int) -> float:
    """The double of these bits."""
    return struct.unpack("<d", struct.pack("<Q", number))[0]


ALTERED: list[dict[str, Any]] = [
    *({name: None} for name in SCHEMA.names),
    {"flag": False},
    {"small": 2},
    {"large": 1 + 2**32},
    {"large": 2, "other": 1},  # values that swapped columns
    {"single": 1.5000001},
    {"double": -2.5},
    {"double": math.nan},
    {"price": Decimal("12345678901234567890.1235")},
    {"price": Decimal("-12345678901234567890.1234")},
    {"day": date(2024, 3, 1)},
    {"at": datetime(2024, 2, 29, 1, 2, 3, 456788)},
    {"at_utc": datetime(2024, 2, 29, 1, 2, 3, 456788, UTC)},
    {"time": (datetime.min + timedelta(microseconds=2)).time()},
    {"text": "Text"},
    {"text": "text\0"},
    {"text": ""},
    {"text": "a longer text, of several words", "more": "text"},
    {"more": "a longer text, of several word"},
    {"more": "a longer text, of several wordS"},
    {"more": "a longerf severa text, ol words"},  # the same words of eight bytes, in another order
    {"bytes": b""},
    {"bytes": b"bytes\0\0\0"},
    {"id": bytes(range(15, -1, -1))},
    {"id": bytes([*range(8, 16), *range(8)])},
    {"id": bytes([*range(15), 99])},
    {"odd": b"abd"},
    {"point": {"x": 2, "y": 1}},
    {"point": {"x": None, "y": None}},
    {"point": {"x": None, "y": 2}},
    {"point": {"x": 1, "y": None}},
    {"numbers": []},
    {"numbers": [1, 2]},
    {"numbers": [1, 3, 2]},
    {"numbers": [1, 2, 3, None]},
    {"numbers": [1, None, 3]},
    {"nested": [["a", "b"], ["c"]]},
    {"nested": [["a"], None]},
    {"nested": [["a"], []]},
    {"nested": [["a"], ["b", None]]},
    {"nested": [[], ["a"], ["b", "c"]]},
    {"points": [{"x": 3, "y": 4}, {"x": 1, "y": 2}]},
    {"points": [{"x": 1, "y": 4}, {"x": 3, "y": 2}]},
    {"points": [{"x": 1, "y": 2}, None]},
    {"points": [{"x": 1, "y": 2}, {"x": None, "y": None}]},
    {"map": []},
    {"map": [("a", 2), ("b", 1)]},
    {"map": [("a", 1), ("b", None)]},
    {"map": [("b", 2), ("a", 1)]},
    {"deep": {"list": [{"x": None, "y": 1}], "text": "t"}},
    {"deep": {"list": [None], "text": "t"}},
    {"deep": {"list": None, "text": "t"}},
    {"deep": {"list": [], "text": "t"}},
]


@pytest.mark.parametrize("altered", ALTERED, ids=repr)
def test_every_change_of_a_value_is_seen(altered: dict[str, Any]) -> None:
    assert of(ROW | altered) != of(ROW)
    assert of(ROW | altered, NOTHING, ROW) != of(ROW, NOTHING, ROW)


@pytest.mark.parametrize("name", SCHEMA.names)
def test_a_null_that_moves_between_rows_or_columns_is_seen(name: str) -> None:
    one, other = ROW | {name: None}, ROW | {"small": 7}
    moved = ROW, ROW | {name: None, "small": 7}
    assert of(one, other) != of(*moved)
    assert len({of(ROW | {n: None}) for n in SCHEMA.names}) == len(SCHEMA.names)


def test_values_that_two_rows_swap_are_seen() -> None:
    one, two = ROW, ROW | {"large": 5, "text": "five", "numbers": [5]}
    for name in ("large", "text", "numbers"):
        swapped = one | {name: two[name]}, two | {name: one[name]}
        assert of(*swapped) != of(one, two)


def test_rows_that_are_lost_or_doubled_are_seen_also_in_pairs() -> None:
    other = ROW | {"large": 9}
    assert len({of(ROW), of(ROW, ROW), of(ROW, ROW, ROW), of(ROW, other, other), of(), of(other)}) == 6
    assert of(ROW, other, other, other) != of(ROW, ROW, ROW, other)


def test_rows_in_another_order_and_other_batches_are_the_same() -> None:
    rows = [
        ROW
        | {"large": n, "flag": n % 3 == 0, "double": n / 3, "price": Decimal(n), "id": bytes([n] * 16)}
        | {"text": f"{n}" * (n % 20), "numbers": list(range(n % 4)), "point": {"x": n, "y": None} if n % 3 else None}
        for n in range(100)
    ]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    batches = table.to_batches(max_chunksize=7)
    assert digest(reversed(batches)) == digest([table]) == digest([table.take(list(range(99, -1, -1)))])
    assert digest([table.slice(0, 13), table.slice(13)]) == digest([table])
    halves = digest([table.slice(0, 50)]) + digest([table.slice(50)])
    assert halves == digest([table])
    assert halves.rows == 100


def test_a_table_of_more_rows_than_are_hashed_at_once_is_hashed_whole() -> None:
    count = 2 * ROWS_AT_ONCE + 5
    numbers = pa.table({"n": np.arange(count), "s": [f"{n}" for n in range(count)], "l": [[n] for n in range(count)]})
    assert digest([numbers]).rows == count
    assert digest([numbers]) == digest([numbers.slice(0, 11), numbers.slice(11)])
    last = pa.concat_tables([numbers.slice(0, count - 1), numbers.slice(count - 2, 1)])
    assert digest([last]) != digest([numbers])


def test_how_strings_are_stored_does_not_matter() -> None:
    values = ["", None, "a", "eight by", "a text of more than one word", "ünïcödé"]
    kinds = (pa.string(), pa.large_string(), pa.string_view())
    assert len({digest([pa.table({"t": pa.array(values, kind)})]) for kind in kinds}) == 1
    assert len({digest([pa.table({"t": pa.array(values[n:], pa.string())})]) for n in range(2)}) == 2


def test_floats_count_by_their_bits() -> None:
    different = [0.0, -0.0, math.nan, bits(0x7FF8000000000001), math.inf, -math.inf, None]
    assert len({digest([pa.table({"d": pa.array([d], pa.float64())})]) for d in different}) == len(different)
    assert digest([pa.table({"d": [math.nan]})]) == digest([pa.table({"d": [math.nan]})])


def test_what_lies_under_a_null_does_not_matter() -> None:
    mask = pa.array([True, False])
    clean = pa.StructArray.from_arrays([pa.array([None, 2], pa.int64())], names=["x"], mask=mask)
    dirty = pa.StructArray.from_arrays([pa.array([1, 2], pa.int64())], names=["x"], mask=mask)
    assert digest([pa.table({"s": clean})]) == digest([pa.table({"s": dirty})])
    offsets = pa.array([0, 2, 3], pa.int32())
    long = pa.ListArray.from_arrays(offsets, pa.array([7, 8, 9]), mask=mask)
    assert digest([pa.table({"l": long})]) == digest([pa.table({"l": pa.array([None, [9]])})])


def test_hashes_with_the_same_sums_or_the_same_xor_are_told_apart() -> None:
    pairs = [(1, 4), (2, 3), (7, 2), (1 << 32, 4 << 32), (2 << 32, 3 << 32)]
    assert len({_of_hashes(np.array(pair, np.uint64)) for pair in pairs}) == len(pairs)


def test_a_table_without_rows_has_the_digest_of_nothing() -> None:
    assert digest([]) == digest([SCHEMA.empty_table()]) == Digest()


def test_hashes_are_spread_over_all_bits() -> None:
    hashes = row_hashes(pa.record_batch({"n": pa.array(range(10_000))}))
    assert len(set(hashes.tolist())) == 10_000
    ones = np.unpackbits(hashes.view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
    assert (abs(ones - 0.5) < 0.03).all()


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "large": st.none() | st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1),
    "text": st.none() | st.text(max_size=20),
    "double": st.none() | st.floats(),
    "numbers": st.none() | st.lists(st.none() | st.integers(-2, 2), max_size=3),
    "point": st.none() | st.fixed_dictionaries({"x": st.none() | st.just(1), "y": st.none() | st.just(1)}),
    "points": st.none()
    | st.lists(st.none() | st.fixed_dictionaries({"x": st.none() | st.just(1), "y": st.none()}), max_size=2),
    "nested": st.none() | st.lists(st.none() | st.lists(st.none() | st.text("ab", max_size=2), max_size=2), max_size=2),
    "map": st.none() | st.lists(st.tuples(st.text("ab", max_size=1), st.none() | st.integers(0, 1)), max_size=2),
}
GENERATED = pa.schema([SCHEMA.field(name) for name in VALUES])
rows_of = st.lists(st.fixed_dictionaries(VALUES), max_size=4)


def exactly(row: dict[str, Any]) -> str:
    """Writes a row as text, floats by their bits and parts by their names: Hypothesis shuffles the latter."""
    number = row["double"]
    return pformat(row | {"double": None if number is None else struct.pack("<d", number)})


@settings(max_examples=150, deadline=None)
@given(rows_of, rows_of)
def test_digests_are_equal_exactly_where_the_multisets_are(one: list[Any], other: list[Any]) -> None:
    same = sorted(map(exactly, one)) == sorted(map(exactly, other))
    assert (of(*one, schema=GENERATED) == of(*other, schema=GENERATED)) is same
    assert of(*one, schema=GENERATED) == of(*reversed(one), schema=GENERATED)


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (Digest(2, 1, 1, 1), "the same before and after"),
        (Digest(2, 1, 1, 2), "not the same rows"),
        (Digest(3, 1, 1, 1), "2 rows before, 3 after"),
    ],
)
def test_a_proof_says_what_it_found(after: Digest, says: str) -> None:
    proof = Proof(Digest(2, 1, 1, 1), after)
    assert says in str(proof)
    assert proof.holds is ("the same before" in says)


FAULTS: list[Callable[[Digest], Digest]] = [
    lambda d: Digest(d.rows + 1, d.low, d.high, d.xor),
    lambda d: Digest(d.rows, d.low + 1, d.high, d.xor),
    lambda d: Digest(d.rows, d.low, d.high + 1, d.xor),
    lambda d: Digest(d.rows, d.low, d.high, d.xor ^ 1),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_proof_compares_every_part(fault: Callable[[Digest], Digest]) -> None:
    assert not Proof(of(ROW), fault(of(ROW))).holds

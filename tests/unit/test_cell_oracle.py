"""The oracle of cells against values that were worked out by hand, and how many of its nasty cells are taken.
The grammar that it is compared with has tests of its own."""

from __future__ import annotations

import math
from datetime import date
from decimal import Decimal

import pytest

from tests.support.cell_oracle import NASTY, TYPES, Refused, cells, same, stands_for

NOON = 1_767_614_400_000_000
"""2026-01-05T12:00, in microseconds since 1970."""
TAKEN: list[tuple[str, str, object]] = [
    *[("int", "2147483647", 2**31 - 1), ("int", "-2147483648", -(2**31)), ("int", "+007", 7), ("int", "-0", 0)],
    *[("long", "9223372036854775807", 2**63 - 1), ("long", "-9223372036854775808", -(2**63))],
    *[("double", ".5", 0.5), ("double", "-1.50E+2", -150.0), ("double", "0e999", 0.0), ("double", "-0", -0.0)],
    *[("double", "9007199254740992", 2.0**53), ("double", "5e-324", 5e-324), ("double", "1e23", 1e23)],
    *[("double", "NaN", math.nan), ("double", "nan", math.nan), ("double", "-inf", -math.inf)],
    *[("float", "Infinity", math.inf), ("float", "16777216", 2.0**24), ("float", "16777218.0", 2.0**24 + 2)],
    *[("float", "0.1", 0.10000000149011612), ("float", "1e-45", 2.0**-149), ("float", "-1e-45", -(2.0**-149))],
    # Halfway between two floats but for a trifle that a double has no room for, up and down.
    ("float", "1.000000178813934326171875000000001", 1 + 2.0**-22),
    ("float", "1.000000178813934326171874999999999", 1 + 2.0**-23),
    ("float", "3.4028235677973366163753939545814e38", 2.0**128 - 2.0**104),
    *[("decimal(9,2)", "2.5500", Decimal("2.55")), ("decimal(9,2)", "-9999999.99", Decimal("-9999999.99"))],
    *[("decimal(9,2)", "0000000000001", Decimal("1.00")), ("decimal(5,5)", ".00001", Decimal("0.00001"))],
    ("decimal(38,10)", "9999999999999999999999999999.9999999999", Decimal("9" * 28 + "." + "9" * 10)),
    *[("boolean", text, text.lower() == "true") for text in ("true", "True", "TRUE", "false", "False", "FALSE")],
    *[("date", "2024-02-29", date(2024, 2, 29)), ("date", "0001-01-01", date.min), ("date", "9999-12-31", date.max)],
    *[("timestamp", t, NOON) for t in ("2026-01-05T12:00", "2026-01-05 12:00:00", "2026-01-05T12:00:00.00000000")],
    *[("timestamp", "2026-01-05T12:00:00.5", NOON + 500_000), ("timestamp", "1969-12-31T23:59:59.999999", -1)],
    *[("timestamp", "2026-01-05T12:00:00.123456000", NOON + 123_456)],
    *[("timestamptz", "2026-01-05" + t, NOON) for t in ("T12:00Z", " 13:00+01", "T17:30:00+0530", "T11:00-01:00")],
    *[("timestamptz", "2026-01-06T06:00+18:00", NOON), ("timestamptz", "2026-01-04T18:00:00.0-18", NOON)],
    ("timestamptz", "2026-01-05T12:00-00:00", NOON),
    ("timestamptz", "1969-12-31T23:59:59.999999Z", -1),
    *[("string", text, text) for text in ("", " a ", "\0", "١٢")],
]  # fmt: skip
REFUSED = [
    *[("int", t) for t in ("", " 1", "1 ", "1\n", "1.0", "1e3", "1_000", "١٢", "0x1F", "--1", "2147483648")],
    ("int", "1" * 5000),
    *[("long", "9223372036854775808"), ("long", "-9223372036854775809"), ("long", "1L")],
    *[("double", t) for t in ("16777217.x", ".", "1e400", "1e-400", "7f", "12d", "1,5", "0x1p3", "+NaN", "INF", "1_0")],
    ("double", "infinity"),
    *[("double", t) for t in ("9007199254740993", "9" * 400, "1e", "\u0660.\u0665", " 1")],
    *[("float", "16777217"), ("float", "1e39"), ("float", "1e-46"), ("float", "3.4028235677973366163753939545815e38")],
    *[("decimal(9,2)", t) for t in ("2.555", "10000000", "1e2", "NaN", "", "1,5", "٢")],
    *[("decimal(5,5)", "1.0"), ("decimal(38,10)", "1" * 29)],
    *[("boolean", t) for t in ("t", "F", "yes", "NO", "0", "1", "tRUE", "true ", "")],
    *[("date", t) for t in ("2023-02-29", "1900-02-29", "0000-01-01", "20230101", "2026", "2026-05", "2026-1-5")],
    *[("date", t) for t in ("2026-W01-1", "2026-01-05 or so", "2026-01-05Z", "2026-13-01", "2026-01-05\n")],
    *[("timestamp", "2026-01-05" + t) for t in ("", "T", "T24:00", "T23:59:60", "T12", "t12:00", "  12:00", "T12:00Z")],
    *[("timestamp", "2026-01-05" + t) for t in ("T12:00:00,5", "T12:00:00.", "T12:00:00.1234567", " 12:00 ")],
    ("timestamp", "2026-01-05T12:00.5"),
    ("timestamp", "2026-01-05T12:00:00.0000000000"),
    *[("timestamptz", "2026-01-05" + t) for t in ("T12:00", "T12:00z", "T12:00 Z", "T12:00+1", "T12:00+18:01", "Z")],
    *[("timestamptz", "2026-01-05" + t) for t in ("T12:00+19", "T12:00+00:60", "T12:00+01:00:00", "T12:00ZZ")],
    ("timestamptz", "2026-01-05+01:00"),
    *[("timestamptz", "0001-01-01T00:00+00:01"), ("timestamptz", "9999-12-31T23:59-00:01")],
]  # fmt: skip


@pytest.mark.parametrize(("type_", "text", "value"), TAKEN)
def test_a_text_stands_for_its_value(type_: str, text: str, value: object) -> None:
    assert same(stands_for(type_, text), value)


@pytest.mark.parametrize(("type_", "text"), REFUSED)
def test_another_text_stands_for_none(type_: str, text: str) -> None:
    with pytest.raises(Refused):
        stands_for(type_, text)


@pytest.mark.parametrize("type_", [t for t in TYPES if t != "string"])
def test_of_the_nasty_cells_many_are_taken_and_many_are_not(type_: str) -> None:
    taken = refused = 0
    for text in (texts := [*cells(type_, 3000, seed=1)]):
        try:
            stands_for(type_, text)
            taken += 1
        except Refused:
            refused += 1
    assert min(taken, refused) > 500
    assert texts == [*cells(type_, 3000, seed=1)] != [*cells(type_, 3000, seed=2)]
    assert len(texts) == 3000
    assert set(NASTY) <= set(texts)

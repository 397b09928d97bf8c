"""The grammar of each type: what docs/files.md says, the values that were taken wrongly before, and 200,000 cells."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakehouse_assets.files.cell_types import Spelling, arrow_type, read_cells
from tests.support.cell_oracle import TYPES, Refused, cells, same, stands_for

WRONG = object()
FUZZED = 16_700
"""Cells of each of TYPES."""


def cell(text: str, type_: str, **spelling: Any) -> Any:
    """The value of one text; WRONG if it stands for none."""
    values, wrong = read_cells(pa.array([text]), "c", arrow_type(type_), Spelling(**spelling))
    return WRONG if wrong[0].as_py() else values[0].as_py()


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        *(("date", text) for text in ("2026-01-05 or so", "2026", "2026-05", "2026-02-30", "20260105", "0000-01-01")),
        *(("double", text) for text in ("7f", "12d", "1e999", "-1e999", "1e-999", "0x10", "INF", "nan(1)", "1_0", "٣")),
        *(("double", text) for text in ("9007199254740993", "", " 1", "1 ", "1,5", "NA")),
        *(("float", text) for text in ("16777217", "1e39", "1e-60")),
        *(("int", text) for text in ("2147483648", "1.0", "1e3", "0x1F", "0XA", " 1", "1_0", "--1", "+-1", "٣", "")),
        *(("long", text) for text in ("9223372036854775808", "-9223372036854775809", "0x1F")),
        *(("decimal(9,2)", text) for text in ("2.555", "12345678", "1e3", ".", "-", "", "1.2.3", "NaN")),
        *(("boolean", text) for text in ("t", "YES", "n", "0", "1", "tRUE", "")),
        *(("timestamp", text) for text in ("2026-01-05T10:00:00Z", "2026-01-05T10:00:00+01:00", "2026-01-05")),
        *(
            ("timestamp", text)
            for text in ("2026-01-05 24:00", "2026-01-05 23:59:60", "2026-01-05 10", "2026-01-05T9:00")
        ),
        *(("timestamp", text) for text in ("2026-01-05 10:00:00.1234567", "2026-02-30 10:00", "2026-01-05  10:00")),
        *(("timestamp", text) for text in ("0000-01-01 00:00", "10000-01-01 00:00", "-0001-01-01 00:00")),
        *(("timestamptz", text) for text in ("0000-12-31T23:59-01:00", "0001-01-01T00:00+00:01")),
        *(("timestamptz", text) for text in ("9999-12-31T23:59-00:01", "10000-01-01T00:00+01:00")),
        *(("timestamptz", text) for text in ("2026-01-05T10:00:00", "2026-01-05T10:00:00+19:00", "2026-01-05T10:00z")),
    ],
)
def test_a_text_that_stands_for_no_value_is_wrong(type_: str, text: str) -> None:
    assert cell(text, type_) is WRONG
    # Beside others, which are looked at all at once.
    good = {
        "date": "2026-01-05",
        "boolean": "true",
        "timestamp": "2026-01-05 10:00",
        "timestamptz": "2026-01-05T10:00Z",
    }
    texts = pa.array([good.get(type_, "1"), text, None, good.get(type_, "1")])
    values, wrong = read_cells(texts, "c", arrow_type(type_), Spelling())
    assert wrong.to_pylist() == [False, True, False, False]
    assert values.null_count == 2


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("int", "007", 7),
        ("int", "+5", 5),
        ("int", "-2147483648", -(2**31)),
        ("long", "9223372036854775807", 2**63 - 1),
        ("float", "16777216", 16777216.0),
        ("double", "9007199254740992", 9007199254740992.0),
        ("double", ".5", 0.5),
        ("double", "5.", 5.0),
        ("double", "+1.5E-3", 0.0015),
        ("double", "0e5", 0.0),
        ("double", "-Infinity", -math.inf),
        ("double", "inf", math.inf),
        ("decimal(9,2)", "-1234567.80", Decimal("-1234567.80")),
        ("decimal(9,2)", "+.5", Decimal("0.50")),
        ("decimal(9,2)", "0000000002.5000", Decimal("2.50")),
        ("decimal(38,0)", "9" * 38, Decimal("9" * 38)),
        ("decimal(2,2)", "0.12", Decimal("0.12")),
        ("boolean", "TRUE", True),
        ("boolean", "False", False),
        ("date", "9999-12-31", date(9999, 12, 31)),
        ("timestamp", "2026-01-05 10:00", datetime(2026, 1, 5, 10)),
        ("timestamp", "2026-01-05T10:00:00.123456000", datetime(2026, 1, 5, 10, 0, 0, 123456)),
        ("timestamptz", "2026-01-05 10:00+01", datetime(2026, 1, 5, 9, tzinfo=UTC)),
        ("timestamptz", "2026-01-05T10:00:00.5-0530", datetime(2026, 1, 5, 15, 30, 0, 500000, tzinfo=UTC)),
        ("timestamptz", "2026-01-05T10:00:00Z", datetime(2026, 1, 5, 10, tzinfo=UTC)),
        ("string", " a ", " a "),
    ],
)
def test_a_text_is_read_with_all_that_it_says(type_: str, text: str, value: object) -> None:
    assert cell(text, type_) == value


@pytest.mark.parametrize("text", ["nan", "NaN"])
@pytest.mark.parametrize("spelling", [{}, {"decimal": ",", "thousands": "."}, {"thousands": "'"}])
def test_nan_is_a_number_of_its_own(text: str, spelling: dict[str, str]) -> None:
    assert math.isnan(cell(text, "double", **spelling))


@pytest.mark.parametrize(
    ("type_", "text", "spelling", "value"),
    [
        ("double", "1.234,5", {"decimal": ",", "thousands": "."}, 1234.5),
        ("double", "1234,5", {"decimal": ",", "thousands": "."}, 1234.5),
        ("double", "12.34,5", {"decimal": ",", "thousands": "."}, WRONG),
        ("double", "1,234.5,6", {"decimal": ".", "thousands": ","}, WRONG),
        ("double", "1.5", {"decimal": ","}, WRONG),
        ("double", "0.500", {"decimal": ",", "thousands": "."}, WRONG),
        ("double", ",5", {"decimal": ",", "thousands": "."}, 0.5),
        ("double", "5,", {"decimal": ",", "thousands": "."}, 5.0),
        ("double", "1e-3", {"thousands": ","}, 0.001),
        ("double", "-Infinity", {"thousands": ","}, -math.inf),
        ("double", ".5", {"decimal": ",", "thousands": "."}, WRONG),
        ("double", ",500", {"thousands": ","}, WRONG),
        ("double", "", {"thousands": ","}, WRONG),
        ("decimal(9,2)", "-.5", {"thousands": ","}, Decimal("-0.50")),
        ("int", "007", {"thousands": ","}, 7),
        ("int", "1'234'567", {"thousands": "'"}, 1234567),
        ("decimal(9,2)", "-1.234,50", {"decimal": ",", "thousands": "."}, Decimal("-1234.50")),
        ("boolean", "f", {"booleans": ("t", "f")}, False),
        ("boolean", "true", {"booleans": ("t", "f")}, WRONG),
        ("timestamptz", "2026-07-05T10:00", {"time_zone": "Europe/Berlin"}, datetime(2026, 7, 5, 8, tzinfo=UTC)),
        ("timestamptz", "0001-01-01 00:00", {"time_zone": "Europe/Berlin"}, WRONG),
        ("timestamptz", "9999-12-31 23:59", {"time_zone": "America/New_York"}, WRONG),
        ("timestamptz", "9999-12-31 23:59", {"time_zone": "UTC"}, datetime(9999, 12, 31, 23, 59, tzinfo=UTC)),
        ("timestamptz", "2026-03-29 02:30", {"time_zone": "Europe/Berlin"}, WRONG),
        ("timestamptz", "2026-10-25 02:30", {"time_zone": "Europe/Berlin"}, WRONG),
        (
            "timestamptz",
            "2026-10-25T02:30+02:00",
            {"time_zone": "Europe/Berlin"},
            datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
        ),
        ("timestamp", "05.01.2026 10:00", {"formats": {"c": "dd.MM.yyyy HH:mm"}}, datetime(2026, 1, 5, 10)),
        ("date", "yy 05.01.2026", {"formats": {"c": "'yy' dd.MM.yyyy"}}, date(2026, 1, 5)),
        ("timestamp", "2026-01-05 10:00", {"formats": {"c": "dd.MM.yyyy HH:mm"}}, WRONG),
        ("date", "1/5/2026", {"formats": {"c": "M/d/yyyy"}}, date(2026, 1, 5)),
        ("date", "30/2/2026", {"formats": {"c": "d/M/yyyy"}}, WRONG),
        ("timestamp", "1/5/2026 12:04 AM", {"formats": {"c": "M/d/yyyy h:mm a"}}, datetime(2026, 1, 5, 0, 4)),
        ("date", "05-Jan-26", {"formats": {"c": "dd-MMM-yy"}}, date(2026, 1, 5)),
    ],
)
def test_a_file_may_write_values_otherwise(type_: str, text: str, spelling: dict[str, Any], value: object) -> None:
    assert cell(text, type_, **spelling) == value


@pytest.mark.parametrize(
    "type_", ["time", "uuid", "binary", "list<int>", "decimal(39,0)", "decimal(2,3)", "timestamp_ntz"]
)
def test_other_types_are_refused(type_: str) -> None:
    with pytest.raises(ValueError, match=r"declare it string|is no decimal"):
        arrow_type(type_)


@pytest.mark.parametrize("pattern", ["HH:mm", "yyyy-MM", "dd.MM.yyyy hh:mm", "dd.MM.yyyy qq", "dd.MM.yyyy dd"])
def test_a_pattern_that_can_t_tell_a_day_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="the pattern"):
        cell("x", "date", formats={"c": pattern})


@pytest.mark.parametrize("type_", TYPES)
def test_no_cell_is_taken_wrongly(type_: str) -> None:
    texts = [*cells(type_, FUZZED, seed=1)]
    values, wrong = read_cells(pa.array(texts), "c", arrow_type(type_), Spelling())
    found = values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values
    for text, value, is_wrong in zip(texts, found.to_pylist(), wrong.to_pylist(), strict=True):
        try:
            expected = stands_for(type_, text)
        except Refused:
            assert is_wrong, text
        else:
            assert not is_wrong, text
            assert same(value, expected), text


@pytest.mark.parametrize(
    "spelling",
    [
        *({"decimal": mark} for mark in ("", "e", "1", "-", "ab")),
        *({"thousands": mark} for mark in (".", "0", "-", "..")),
        {"decimal": ",", "thousands": ","},
        {"booleans": ("y", "y")},
        {"booleans": ("y", "n", "x")},
        {"time_zone": "Europe/Nowhere"},
    ],
)
def test_spellings_that_contradict_each_other_are_refused(spelling: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"decimal|booleans|time_zone"):
        Spelling(**spelling)


def test_the_cells_of_a_slice_are_its_own() -> None:
    texts = pa.array(["amount", "9.50", "1,234.50", "x"])[1:]
    values, is_wrong = read_cells(texts, "amount", arrow_type("decimal(9,2)"), Spelling(thousands=","))
    assert values.to_pylist() == [Decimal("9.50"), Decimal("1234.50"), None]
    assert is_wrong.to_pylist() == [False, False, True]

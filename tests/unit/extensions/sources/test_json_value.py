"""JSON values become rows: types, missing and further fields, and values that can't be read."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from lakehouse_assets.extensions.sources.values import Json, OtherCase

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("amount", pa.decimal128(9, 2)),
        ("tags", pa.list_(pa.string())),
    ]
)


def parse(*values: bytes) -> list[dict[str, object]]:
    return Json().parse(values, SCHEMA).to_pylist()


def test_fields_become_columns_of_their_types() -> None:
    value = b'{"n": 1, "day": "2013-01-31", "at": "2013-01-31T08:00:00+02:00", "amount": "1.50", "tags": ["a"]}'
    at = datetime(2013, 1, 31, 6, tzinfo=UTC)
    assert parse(value) == [{"n": 1, "day": date(2013, 1, 31), "at": at, "amount": Decimal("1.50"), "tags": ["a"]}]


def test_fields_that_are_missing_are_null_and_others_are_left_out() -> None:
    assert parse(b'{"n": 1, "other": {"a": 1}}') == [{"n": 1, "day": None, "at": None, "amount": None, "tags": None}]


def test_a_value_may_stand_on_several_lines() -> None:
    assert [row["n"] for row in parse(b'{\n "n": 1\n}', b'{"n": 2}')] == [1, 2]


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"[1]", b"1", b'{"n": "one"}', b'{"day": "31.1.2013"}', b'{"n": 1}{"n": 2}', b"null", b"{} null {}"],
)
def test_what_is_no_row_is_an_error(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse(value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b'{"n": "one"}', "field 'n' is of the type string, but its column has the type number"),
        (b'{"tags": 1}', "field 'tags' is of the type number, but its column has the type array"),
        (b'{"tags": [1]}', r"field 'tags/\[\]' is of the type number, but its column has the type string"),
    ],
)
def test_a_value_of_another_type_names_its_field(value: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse(value)


def test_types_that_json_lacks_are_refused() -> None:
    (problem,) = Json().problems({"a": "time", "b": "timestamptz", "c": "string"})
    assert "column 'a' is of the type time" in problem


@pytest.mark.parametrize(
    "type_", ["list<uuid>", "struct<a: time>", "list<fixed[3]>", "map<string, long>", "struct<a: list<map<int, int>>>"]
)
def test_nested_types_that_json_lacks_are_refused(type_: str) -> None:
    (problem,) = Json().problems({"a": type_, "time": "struct<time: long, uuid: list<timestamptz>, map: string>"})
    assert f"column 'a' is of the type {type_}, " in problem
    assert "can't be read from JSON: declare it" in problem


def test_a_field_in_another_case_is_refused_and_not_read_as_null() -> None:
    with pytest.raises(OtherCase, match="the field 'N' differs from the column 'n' only in case"):
        parse(b'{"n": 1}', b'{"N": 2}')
    assert [row["n"] for row in parse(b'{"n": 1, "N": 2}')] == [1], "the column's own name is there"
    place = pa.schema([("place", pa.list_(pa.struct([("lat", pa.float64())])))])
    with pytest.raises(OtherCase, match=r"the field 'place\.Lat' differs from the column 'place\.lat'"):
        Json().parse([b'{"place": [null, {"Lat": 1}]}'], place)


def test_case_can_be_ignored_and_no_digit_is_lost() -> None:
    nested = pa.schema(
        [
            ("amount", pa.decimal128(38, 18)),
            ("n", pa.int64()),
            ("at", pa.struct([("day", pa.date32())])),
            ("t", pa.string()),
        ]
    )
    value = (
        '{"AMOUNT": 12345678901234567890.123456789012345678, "N": 9007199254740993, '
        '"t": "\\u00e4\\n", "At": {"DAY": "2013-01-31"}}'
    )
    found = Json(ignore_case=True).parse([value.encode(), b'{"n": 1, "N": 2}'], nested).to_pylist()
    amount = Decimal("12345678901234567890.123456789012345678")
    assert found[0] == {"amount": amount, "n": 9007199254740993, "at": {"day": date(2013, 1, 31)}, "t": "ä\n"}
    assert found[1]["n"] == 1, "a field of the very name counts"
    with pytest.raises(ValueError, match="its fields 'Day' and 'dAY' both become the column 'day'"):
        Json(ignore_case=True).parse([b'{"Day": "2013-01-31", "dAY": "2013-01-31"}'], SCHEMA)


@pytest.mark.parametrize("value", [b'{"tags": ["\xed\xa0\xbd\xed\xb8\x80"]}', b'{"tags": ["\xff"]}'])
def test_text_that_is_not_utf_8_is_no_value(value: bytes) -> None:
    """Java's own encoding of characters beyond the basic plane: nothing could read the file that has it."""
    with pytest.raises(ValueError, match="not a JSON object"):
        parse(value)

"""JSON files: what each value becomes, and what is said of those that are none of their type."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse_assets.files import json_rows, sniff
from lakehouse_assets.files.cell_types import Spelling
from lakehouse_assets.files.delivered import MOST_SHOWN, DeliveredFile, WrongFile
from lakehouse_assets.files.json_rows import JsonReader
from lakehouse_assets.files.sniff import columns_of_json


class Delivery:
    """A folder with one file, and how it is read."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "day.json"

    def deliver(self, content: str | bytes) -> DeliveredFile:
        self.path.write_bytes(content.encode() if isinstance(content, str) else content)
        return DeliveredFile("day", str(self.path), self.path.stat().st_size, 0)

    def read(self, content: str | bytes, schema: Mapping[str, str], **options: Any) -> list[dict[str, Any]]:
        file, reader = self.deliver(content), reader_of(schema, **options)
        table = pa.Table.from_batches(reader.rows(file), reader.arrow)
        table.validate(full=True)
        rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="strict")
        return rows

    def problems(self, content: str | bytes, schema: Mapping[str, str], **options: Any) -> Sequence[str]:
        with pytest.raises(WrongFile) as error:
            self.read(content, schema, **options)
        return error.value.problems


def reader_of(
    schema: Mapping[str, str],
    *,
    encoding: str = "utf-8",
    rename: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (),
    **spelling: Any,
) -> JsonReader:
    return JsonReader(schema, encoding, Spelling(**spelling), rename or {}, ignore)


@pytest.fixture
def day(tmp_path: Path) -> Delivery:
    return Delivery(tmp_path)


AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("int", "-2147483648", -(2**31)),
        ("int", "null", None),
        ("long", "9223372036854775807", 2**63 - 1),
        ("double", "1e300", 1e300),
        ("double", "Infinity", float("inf")),
        ("float", "0.5", 0.5),
        (
            "decimal(38,18)",
            "12345678901234567890.123456789012345678",
            Decimal("12345678901234567890.123456789012345678"),
        ),
        ("decimal(9,2)", '"1.50"', Decimal("1.50")),
        ("boolean", "false", False),
        ("string", '"\\u00e9\\n"', "é\n"),
        ("string", '"\\ud83d\\ude00"', "😀"),
        ("string", '""', ""),
        ("date", '"2026-01-31"', date(2026, 1, 31)),
        ("timestamp", '"2026-01-31T12:00:00"', datetime(2026, 1, 31, 12)),
        ("timestamptz", '"2026-01-31T13:00:00+01:00"', AT),
        ("list<int>", "[1, null]", [1, None]),
        ("list<int>", "[]", []),
        ("list<list<string>>", '[["a"], null, []]', [["a"], None, []]),
        ("struct<a: int, b: list<timestamptz>>", '{"b": ["2026-01-31T12:00Z"]}', {"a": None, "b": [AT]}),
        ("map<string, decimal(3,1)>", '{"a": 1.5, "b": null}', {"a": Decimal("1.5"), "b": None}),
        ("map<string, struct<n: int>>", "{}", {}),
    ],
)
def test_each_type_takes_its_values(day: Delivery, type_: str, text: str, value: Any) -> None:
    rows = day.read(f'{{"a": {text}}}\n{{}}\n{{"a": null}}\n', {"a": type_})
    assert rows == [{"a": value}, {"a": None}, {"a": None}]


@pytest.mark.parametrize(
    ("type_", "text", "problem"),
    [
        ("int", "2147483648", "field a: '2147483648' is no int; declare it long"),
        ("int", "1.0", "field a: '1.0' is no int; declare it double"),
        ("int", '"1"', "field a: '1' is a string, expected int"),
        ("long", "true", "field a: true is a boolean, expected long"),
        ("double", "9007199254740993", "field a: '9007199254740993' is no double; declare it decimal(38,0)"),
        ("double", "1e400", "field a: '1e400' is no double"),
        ("decimal(3,1)", "1.25", "field a: '1.25' is no decimal(3, 1); declare it decimal(38,9)"),
        ("boolean", "1", "field a: 1 is a number, expected boolean"),
        ("boolean", '"true"', "field a: 'true' is a string, expected boolean"),
        ("string", "1.10", "field a: 1.10 is a number, expected string"),
        ("string", '{"b": 1}', "field a: {…} is an object, expected string"),
        ("string", '"\\ud83d"', 'field a: "\\ud83d" is no text: it has half of a surrogate pair'),
        ("date", "20260131", "field a: 20260131 is a number, expected date"),
        ("date", '"31.01.2026"', "field a: '31.01.2026' is no date; formats={'a': 'dd.MM.yyyy'} takes it"),
        ("date", '""', "field a: '' is no date; declare it string to take it as it is"),
        (
            "timestamptz",
            '"2026-01-31T12:00:00"',
            "field a: '2026-01-31T12:00:00' is no timestamptz; "
            "it has no offset: time_zone='…' takes it as of that zone, or declare it timestamp",
        ),
        ("list<int>", '{"b": 1}', "field a: {…} is an object, expected list<int>"),
        ("list<int>", "[1, 2, 2.5]", "field a[2]: '2.5' is no int; declare it double"),
        ("struct<b: list<int>>", '{"b": [1, "2"]}', "field a.b[1]: '2' is a string, expected int"),
        ("struct<b: int>", '{"b": 1, "B": 2}', "field a.B: is unknown; declare it, or name it in ignore=[…]"),
        ("struct<b: int>", "[1]", "field a: […] is an array, expected struct<b: int>"),
        ("map<string, list<int>>", '{"k": [1], "l": [null, true]}', "field a['l'][1]: true is a boolean, expected int"),
        ("map<string, int>", '{"\\udc80": 1}', 'field a[0]: "\\udc80" is no text: it has half of a surrogate pair'),
    ],
)
def test_other_values_are_told(day: Delivery, type_: str, text: str, problem: str) -> None:
    good = '{"a": null}\n\n'
    assert day.problems(f'{good}{{"a": {text}}}', {"a": type_}) == (f", line 3, {problem}",)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("null", "is no JSON object, but null"),
        ("[1]", "is no JSON object, but an array"),
        ('"a"', "is no JSON object, but a string"),
        ('{"a": 1, "a": 2}', "has the field 'a' more than once in one object"),
        ('{"a": {"b": 1, "b": 1}}', "has the field 'b' more than once in one object"),
        ('{"a": "1', "is no JSON object, or not all of one: each has a line of its own"),
        ('{"a": 1}{"a": 2}', "is no JSON object, or not all of one: each has a line of its own"),
        ("{'a': 1}", "is no JSON object, or not all of one: each has a line of its own"),
        ('{"a": 01}', "is no JSON object, or not all of one: each has a line of its own"),
        ('{"a": "\t"}', "is no JSON object, or not all of one: each has a line of its own"),
        ('{"a":' * 10**5, "is an object that is nested too deeply"),
        (b'{"a": "\xff"}', "holds bytes that are not UTF-8; encoding='cp1252' takes those of Windows"),
    ],
)
def test_lines_that_are_no_objects_are_told(day: Delivery, line: str | bytes, problem: str) -> None:
    wrong = line if isinstance(line, bytes) else line.encode()
    (told,) = day.problems(b'{"a": 1}\r\n' + wrong + b'\n{"a": 2}', {"a": "int"})
    assert told.startswith(f", line 2: {problem}")


@pytest.mark.parametrize("content", ["", "\n\n", "[]", " [ ] ", "\ufeff"])
def test_a_file_without_objects_has_no_rows(day: Delivery, content: str) -> None:
    assert day.read(content, {"a": "int"}) == []


@pytest.mark.parametrize(
    ("content", "rows", "problem"),
    [
        ('[{"a": 1}, {"a": 2}]', [1, 2], ""),
        ('\n[\n  {\n    "a": 1\n  },\n  {"a": 2}\n]\n', [1, 2], ""),
        ('[\n{"a": 1},\n{"a": "x"}\n]', [], ", line 3, field a: 'x' is a string, expected int"),
        ('[\n{"a": 1},\n2]', [], ", line 3: is no JSON object, but a number"),
        ('[\n{"a": 1},\n]', [], ", line 3: is no JSON object (Expecting value, at character 1)"),
        ('[{"a": 1}', [], ", line 1: is behind an element of an array, and is neither a comma nor its end: ''"),
        ('[{"a": 1}]\n[]', [], ", line 1: is behind an element of an array, and is neither a comma nor its end: "),
        (b'[{"a": 1},\n{"a": "\xff"}]', [], ", line 2: holds bytes that are not UTF-8"),
    ],
)
def test_a_file_may_be_one_array(day: Delivery, content: str | bytes, rows: list[int], problem: str) -> None:
    if not problem:
        assert day.read(content, {"a": "int"}) == [{"a": value} for value in rows]
    else:
        assert day.problems(content, {"a": "int"})[0].startswith(problem)


def test_of_many_wrong_values_the_first_are_told(day: Delivery) -> None:
    lines = ['{"a": "x", "b": 0.5}'] * (MOST_SHOWN * 2)
    problems = day.problems("\n".join(lines), {"a": "int", "b": "int"})
    assert len(problems) == MOST_SHOWN
    assert problems[:3] == (
        ", line 1, field a: 'x' is a string, expected int",
        ", line 1, field b: '0.5' is no int; declare it double",
        ", line 2, field a: 'x' is a string, expected int",
    )


def test_rows_come_in_batches(day: Delivery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_rows, "BATCH", 2)
    file, reader = day.deliver("".join(f'{{"a": {n}}}\n' for n in range(5))), reader_of({"a": "int"})
    assert [batch.num_rows for batch in reader.rows(file)] == [2, 2, 1]
    assert day.problems('{"a": 1}\n' * 4 + '{"a": 1.5}', {"a": "int"})[0].startswith(", line 5, field a: ")


def test_fields_are_renamed_and_left_out(day: Delivery) -> None:
    line = '{"Day": "31.01.2026", "place": {"since": "1.2.2025", "x": 1}, "junk": {"a": 1}}'
    rows = day.read(
        line,
        {"day": "date", "place": "struct<since: date>"},
        rename={"Day": "day"},
        ignore=["junk", "place.x"],
        formats={"day": "dd.MM.yyyy", "place.since": "d.M.yyyy"},
    )
    assert rows == [{"day": date(2026, 1, 31), "place": {"since": date(2025, 2, 1)}}]


@pytest.mark.parametrize(("encoding", "codec"), [("cp1252", "cp1252"), ("utf-16", "utf-16"), ("utf-8", "utf-8-sig")])
def test_other_encodings(day: Delivery, encoding: str, codec: str) -> None:
    content = '{"é": "€"}\n{"é": "b"}'.encode(codec)
    assert day.read(content, {"é": "string"}, encoding=encoding) == [{"é": "€"}, {"é": "b"}]


def test_bytes_that_are_no_utf_16_are_told(day: Delivery) -> None:
    problems = day.problems(b"\xff\xfe{\0\n\0\0\xd8\n\0", {"a": "int"}, encoding="utf-16")
    assert problems == (", line 1: holds bytes that are not utf-16, on this line or behind it",)


def test_a_compressed_file_that_ends_too_early_is_told(day: Delivery) -> None:
    day.path = day.path.with_suffix(".json.gz")
    packed = gzip.compress(b"".join(b'{"a": %d}\n' % n for n in range(10_000)))
    assert len(day.read(packed, {"a": "int"})) == 10_000
    assert day.problems(packed[:-20], {"a": "int"}) == (" ends too early for a file that is gz",)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"a": 1}', None),
        ("", "is empty"),
        ("[]", None),
        ('{"a": 1, "c": 1, "b": 2}', "has other fields (unknown: b, c)"),
        ("\n[1]", "is no JSON object, but a number (line 2)"),
        (
            "[1, 2",
            "is no JSON object, but a number (line 1)",
        ),
    ],
)
def test_the_first_object_is_looked_at_beforehand(day: Delivery, content: str, problem: str | None) -> None:
    assert reader_of({"a": "int"}).head_problem(day.deliver(content)) == problem


@pytest.mark.parametrize(
    ("schema", "options", "problem"),
    [
        ({"a": "time"}, {}, "declare it string"),
        ({"a": "map<int, string>"}, {}, "expected map<string, …>"),
        ({"a": "list<struct<b: map<date, int>>>"}, {}, "expected map<string, …>"),
        ({"a": "bigint"}, {}, "did you mean long"),
        ({"a": "int"}, {"rename": {"A": "b"}}, "b, which the schema lacks"),
        ({"a": "date"}, {"formats": {"b.c": "yyyyMMdd"}}, "b, which the schema lacks"),
        ({"a": "int"}, {"encoding": "utf-7000"}, "is unknown"),
    ],
)
def test_a_schema_or_options_that_cannot_work(schema: dict[str, str], options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        reader_of(schema, **options)


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (["1", "null"], "long"),
        (["1", "2147483648"], "long"),
        (["1", "9223372036854775808"], "decimal(38,0)"),
        (["1", "1.5"], "double"),
        (["1.0", "2.0"], "double"),
        (["1.5", "9007199254740993"], "decimal(38,18)"),
        (["true"], "boolean"),
        (['"2026-01-31"'], "date"),
        (['"2026-01-31T12:00"', '"2026-01-31 12:00:01.5"'], "timestamp"),
        (['"2026-01-31T12:00Z"'], "timestamptz"),
        (['"2026-01-31"', '"x"'], "string"),
        (['"1"'], "string"),
        (["null"], "string"),
        (["[]", "[1, 2.5]"], "list<double>"),
        (['{"a": 1}', '{"b": [{"c": "x"}]}'], "struct<a: long, b: list<struct<c: string>>>"),
        (['{"a b": 1, "c": 2.5}'], "map<string, double>"),
        (['{"a": 1, "A": 2}'], "map<string, long>"),
        (["{}"], "map<string, string>"),
    ],
)
def test_columns_are_told_and_take_their_values(day: Delivery, values: list[str], type_: str) -> None:
    content = "\n".join(f'{{"x": {value}}}' for value in values)
    day.deliver(content)
    found = columns_of_json(str(day.path))
    assert (found.columns, found.remarks) == ({"x": type_}, [])
    assert len(day.read(content, {"x": type_})) == len(values)


@pytest.mark.parametrize(("begin", "between", "end"), [("", "\n", "\n\n"), ("[", ", ", " ]")])
def test_what_was_not_looked_at_is_remarked(day: Delivery, begin: str, between: str, end: str) -> None:
    objects = [f'{{"x": "{"x" * sniff.JSON_HEAD}"}}', '{"x": 1}']
    for count, remarks in ((1, []), (2, ["these are the columns of the first megabyte"])):
        day.deliver(f"{begin}{between.join(objects[:count])}{end}")
        found = columns_of_json(str(day.path))
        assert found.columns == {"x": "string"}
        assert [remark.partition(":")[0] for remark in found.remarks] == remarks


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"a": {"b": 1}}\n{"a": {"b": "x"}}', r"field a\.b is a number and a string, .*ignore=\['a\.b'\]"),
        ('{"a": 1e300}\n{"a": 9007199254740993}', "field a has numbers such as 1e300"),
        ('{"a": 1}\n{', "line 2 is no JSON object"),
    ],
)
def test_columns_that_cannot_be_told(day: Delivery, content: str, problem: str) -> None:
    day.deliver(content)
    with pytest.raises(ValueError, match=problem):
        columns_of_json(str(day.path))

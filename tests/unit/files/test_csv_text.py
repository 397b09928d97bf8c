"""A CSV file is taken apart as RFC 4180 says, or refused with the line: records that were forged, torn or shifted."""

from __future__ import annotations

import io
from typing import Any

import pytest

from lakehouse_assets.files import csv_text
from lakehouse_assets.files.csv_text import CsvForm, MalformedFile, batches_of, records_of


def rows(data: bytes, columns: int = 2, nulls: tuple[str, ...] = ("",), **form: Any) -> list[tuple[bytes | None, ...]]:
    """The rows of a file, its header first; both readers must agree on them."""
    found = [
        row
        for batch in batches_of(io.BytesIO(data), CsvForm(**form), columns, nulls)
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]
    slow = [cells for cells, _ in records_of(io.BytesIO(data), CsvForm(**form))]
    assert [[(cell or b"").decode(errors="replace") for cell in row] for row in found] == [
        ["" if cell in nulls else cell for cell in cells] for cells in slow
    ]
    return found


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'1,"Dear Sir\n7, Main Street"\n2,x\n', [(b"1", b"Dear Sir\n7, Main Street"), (b"2", b"x")]),
        (b'1,"a\r\nb"\r\n2,b\r\n', [(b"1", b"a\r\nb"), (b"2", b"b")]),
        (b'1,"a""b"\n', [(b"1", b'a"b')]),
        (b'1,"""a"""\n', [(b"1", b'"a"')]),
        (b'1,""\n2,\n', [(b"1", b""), (b"2", None)]),
        (b"1,a\n\n2,b\n\n", [(b"1", b"a"), (b"2", b"b")]),
        (b"1,a\r\n2,b\n", [(b"1", b"a"), (b"2", b"b")]),
        (b"1,a\r2,b\r", [(b"1", b"a"), (b"2", b"b")]),
        (b"1,a", [(b"1", b"a")]),
        (b'1,"a\rb"\r\n2,b\r\n', [(b"1", b"a\rb"), (b"2", b"b")]),
        (b"\xef\xbb\xbf1,a\n", [(b"1", b"a")]),
        (b"1,Z\xfcrich\n", [(b"1", b"Z\xfcrich")]),  # proven to be UTF-8 where it is read as text
        (b"", []),
    ],
)
def test_rows_are_those_of_rfc_4180(data: bytes, expected: list[tuple[bytes | None, ...]]) -> None:
    assert rows(data) == expected


@pytest.mark.parametrize(
    ("data", "problem", "line"),
    [
        (b'1,a\n2,"b\n3,c\n', "a quote that is never closed", 2),
        (b'1,"a\n2,"b"\n', "begins on line 1", 2),
        (b'1,"a"b\n', "text behind the quote that closes", 1),
        (b'1,"a" \n', "text behind the quote that closes", 1),
        (b'1, "a"\n', "a quote in a cell that does not begin with one", 1),
        (b'1,a\n2,5" pipe\n', "a quote in a cell that does not begin with one", 2),
        (b"1,a\0b\n", "NUL", 1),
        ("1,ä\n".encode("utf-16"), "encoding='utf-16'", 1),
        (b"1\n", "not of 2 cells", None),
        (b"1,2\n1,2,3\n", "not of 2 cells", None),
        (b"1,2,\n", "not of 2 cells", None),
        (b"1,2\n\xff\n", "not of 2 cells", None),
        (b"1,a\r2,b\n", "a carriage return in a cell", 1),
        (b"1,a\n2,b\r3,c\n", "a carriage return in a cell", 2),
        (b'1,"a\rb"\n2,b\r3,c', "a carriage return in a cell", 2),
    ],
)
@pytest.mark.parametrize("at_once", [1, 2, 3, 2**20], ids=["by byte", "by two", "by three", "whole"])
def test_what_is_no_csv_is_refused_with_its_line(
    data: bytes, problem: str, line: int | None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_text, "READ_AT_ONCE", at_once)
    with pytest.raises(MalformedFile, match=problem) as raised:
        [*batches_of(io.BytesIO(data), CsvForm(), 2, [""])]
    assert raised.value.line == line


def test_utf_16_without_its_mark_is_told_how_to_be_read() -> None:
    data, form = "1,ä\n".encode("utf-16-le"), CsvForm(encoding="utf-16")
    with pytest.raises(MalformedFile, match="has no byte order mark; encoding='utf-16-le' or '-be'"):
        [*batches_of(io.BytesIO(data), form, 2, [""])]


@pytest.mark.parametrize("at_once", [1, 3, 2**20], ids=["by byte", "by three", "whole"])
def test_a_file_may_have_marks_of_its_own(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_text, "READ_AT_ONCE", at_once)
    pair = [(b"1", b"a"), (b"2", "ü".encode())]
    assert rows("1;a\n2;ü\n".encode(), delimiter=";") == pair
    assert rows("1\ta\n2\tü\n".encode("cp1252"), delimiter="\t", encoding="cp1252") == pair
    assert rows("1,a\n2,ü\n".encode("utf-16"), encoding="utf-16") == pair
    assert rows("  1    a\n2 \t ü  \n".encode(), delimiter=" ") == pair
    assert rows("Report\n\n1,a\n2,ü\n".encode(), skip=2) == pair
    assert rows("# a\n1,a\n#b\n2,ü\n".encode(), comment="#") == pair
    assert rows(b'1,"a\n# b"\n', comment="#") == [(b"1", b"a\n# b")]
    assert rows(b'1 "a  b"\n', delimiter=" ") == [(b"1", b"a  b")]
    assert rows(b"1,'a,''b'\n", quote="'") == [(b"1", b"a,'b")]
    assert rows(b'1,"a\\"b"\n2,"a\\\\"\n', escape="\\") == [(b"1", b'a"b'), (b"2", b"a\\")]
    assert rows(b'1,"a\n\nb"\r2,b\r') == [
        (b"1", b"a\n\nb"),
        (b"2", b"b"),
    ]  # no newline ends a row
    assert rows(b'1,5" pipe\n', quote="") == [(b"1", b'5" pipe')]


@pytest.mark.parametrize("at_once", [1, 3, 2**20], ids=["by byte", "by three", "whole"])
@pytest.mark.parametrize(
    ("data", "form", "first"),
    [
        (b'1,"5\\" pipe"\n#"c\n2,b\n', {"escape": "\\", "comment": "#"}, b'5" pipe'),
        (b'1,"5\\"\n# c\nd"\n2,b\n', {"escape": "\\", "comment": "#"}, b'5"\n# c\nd'),
        (b'  1  "a  b \n  c\t "\t\n2 b\n', {"delimiter": " "}, b"a  b \n  c\t "),
        (b'1 "\r\n\r\n#a\r\n"\r\n#c  "\r\n2 b', {"delimiter": " ", "comment": "#"}, b"\r\n\r\n#a\r\n"),
        (b'1 "a""  b\n ""c  "\n2 b\n', {"delimiter": " "}, b'a"  b\n "c  '),
        (b'1 "a\\"  b\n \\"c  \\\\"\n2  b\n', {"delimiter": " ", "escape": "\\"}, b'a"  b\n "c  \\'),
    ],
)
def test_blanks_and_comments_in_quoted_cells_stay(
    data: bytes, form: dict[str, Any], first: bytes, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_text, "READ_AT_ONCE", at_once)
    assert rows(data, **form) == [(b"1", first), (b"2", b"b")]


@pytest.mark.parametrize(
    "data", [b'1,"a\\tb"\n', b"1,\\N\n", b'1,"a""b"\n', b"1,a\\,b\n", b"1,a\\\n", b"1,a\\", b"1,a\\\\\\"]
)
def test_an_escape_is_for_quotes_and_itself(data: bytes) -> None:
    with pytest.raises(MalformedFile, match=r"escapes neither|text behind"):
        [*batches_of(io.BytesIO(data), CsvForm(escape="\\"), 2, [""])]


def test_lines_are_those_of_the_file() -> None:
    data = b'Report\n# a\nid,t\n\n1,"a\nb"\n# c\n2,b\n'
    found = [line for _, line in records_of(io.BytesIO(data), CsvForm(skip=1, comment="#"))]
    assert found == [3, 5, 8]


def test_a_row_may_be_long_but_not_a_whole_file() -> None:
    long = b"x" * (csv_text.LONGEST_ROW - 100)
    assert rows(b"1," + long + b"\n2,b\n") == [(b"1", long), (b"2", b"b")]
    with pytest.raises(MalformedFile, match="too long"):
        [*batches_of(io.BytesIO(b"1," + long * 4 + b"\n2,b\n"), CsvForm(), 2, [""])]


@pytest.mark.parametrize(
    "form",
    [
        {"delimiter": ""},
        {"delimiter": "||"},
        {"quote": ","},
        {"escape": '"'},
        {"delimiter": "ä"},
        {"encoding": "latin-99"},
    ],
)
def test_marks_that_can_t_be_told_apart_are_refused(form: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"delimiter|encoding"):
        CsvForm(**form)

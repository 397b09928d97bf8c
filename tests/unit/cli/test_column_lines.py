"""`lakehouse columns`: what it prints for files and tables can be declared as it is."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from lakehouse_assets import Column, column
from lakehouse_assets.cli import column_lines
from lakehouse_assets.cli.column_lines import lines_for_table, look_at
from lakehouse_assets.declare.columns import schema_of
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import LakehouseError
from lakehouse_assets.files import drop_zone, sniff
from lakehouse_assets.files.delivered import ReadFiles, find_files

CSV = b"""day,id,amount,paid,at,note,hour,nothing,code
2026-01-31,1,2.5,true,2026-01-31T08:00:00Z,"a, b",08:00:00,,10115
2026-02-01,2,,false,2026-02-01T08:00:00Z,c,09:00:00,,01067
"""
TYPES_OF_CSV = {
    "day": "date",
    "id": "long",
    "amount": "double",
    "paid": "boolean",
    "at": "timestamptz",
    "note": "string",
    "hour": "string",
    "nothing": "string",
    "code": "string",
}


def declared(lines: str) -> list[Column]:
    return eval(f"[{lines}]", {"column": column})


def read_as_told(
    path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Declares and reads a file exactly as `lakehouse columns` prints it. Returns the columns and the rows."""
    text = look_at(path).text
    lines, _, call = text.partition("\n\n")
    columns = declared(lines)
    schema_of(columns)

    def rows(
        spark: Any, folder: str, names: list[str], pattern: str, reader: Any, **options: Any
    ) -> list[dict[str, Any]]:
        found = ReadFiles(reader, find_files(folder, names, pattern, **options))
        assert not found.head_problems()
        return [row for batch in found.rows(range(len(found.files))) for row in batch.to_pylist()]

    monkeypatch.setattr(drop_zone, "_rows", rows)
    window = SimpleNamespace(landing=str(landing), keys=["2026-01-31"])
    names = {name: getattr(drop_zone, name) for name in ("read_csv", "read_json", "read_parquet")}
    return {one.name: one.type for one in columns}, eval(call, {**names, "spark": None, "window": window})


@pytest.mark.parametrize(
    ("name", "pack"),
    [("2026-01-31.csv", bytes), ("orders_2026-01-31.csv.gz", gzip.compress), ("orders.csv.bz2", bz2.compress)],
)
def test_a_csv_is_read_as_it_was_told(
    name: str, pack: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "orders").mkdir()
    path = tmp_path / "orders" / name
    path.write_bytes(pack(CSV))
    columns, rows = read_as_told(path, tmp_path, monkeypatch)
    assert columns == TYPES_OF_CSV
    assert [(row["day"], row["amount"], row["note"], row["nothing"], row["code"]) for row in rows] == [
        (date(2026, 1, 31), 2.5, "a, b", None, "10115"),
        (date(2026, 2, 1), None, "c", None, "01067"),
    ]


EXCEL = "Auftrag Nr.;Datum;Betrag €;Geliefert\n1;05.01.2026;1.234,50;ja\n2;31.01.2026;7,00;nein\n".encode("cp1252")
R = b'"","Sepal.Length","Species","when"\n"1",5.1,"setosa",2026-01-05\n"2",NA,"NA",NA\n'
PANDAS = b",when,n,x\n0,2026-01-05 10:00:00.123456,1.0,\n1,2026-01-06 11:00:00,,0.1\n"
POSTGRES = b"id\tat\tok\tnote\n1\t2026-01-05 10:00:00+00\tt\ta\n2\t\\N\tf\t\\N\n"
SENSOR = b"# station 7\n# units: C\ntime,temp\n2026-01-05T10:00Z,-1.5\n2026-01-05T11:00Z,-99\n"
UK = b'id,when,total\n1,05/01/2026,"1,234.50"\n2,31/01/2026,2\n'


@pytest.mark.parametrize(
    ("content", "types", "options", "row"),
    [
        (
            EXCEL,
            {"auftrag_nr": "long", "Datum": "date", "betrag": "double", "Geliefert": "string"},
            {
                "delimiter": ";",
                "encoding": "cp1252",
                "decimal": ",",
                "thousands": ".",
                "formats": {"Datum": "dd.MM.yyyy"},
            },
            {"auftrag_nr": 1, "Datum": date(2026, 1, 5), "betrag": 1234.5, "Geliefert": "ja"},
        ),
        (
            R,
            {"row": "long", "sepal_length": "double", "Species": "string", "when": "date"},
            {"null": "NA"},
            {"row": 2, "sepal_length": None, "Species": "NA", "when": None},
        ),
        (
            PANDAS,
            {"row": "long", "when": "timestamp", "n": "double", "x": "double"},
            {},
            {"row": 1, "when": datetime(2026, 1, 6, 11), "n": None, "x": 0.1},
        ),
        (
            POSTGRES,
            {"id": "long", "at": "timestamptz", "ok": "string", "note": "string"},
            {"delimiter": "\t", "null": "\\N"},
            {"id": 2, "at": None, "ok": "f", "note": None},
        ),
        (
            SENSOR,
            {"time": "timestamptz", "temp": "double"},
            {"comment": "#"},
            {"time": datetime(2026, 1, 5, 10, tzinfo=UTC), "temp": -1.5},
        ),
        (
            UK,
            {"id": "long", "when": "date", "total": "double"},
            {"thousands": ",", "formats": {"when": "dd/MM/yyyy"}},
            {"id": 1, "when": date(2026, 1, 5), "total": 1234.5},
        ),
        (b"7, .5\n3, 1\n", {"c_1": "long", "c_2": "double"}, {"header": False, "trim": True}, {"c_1": 7, "c_2": 0.5}),
        (b"x   y\n 1   2\n10  20\n", {"x": "long", "y": "long"}, {"delimiter": " "}, {"x": 10, "y": 20}),
        (b"'a'|'b'\n1|'x|y'\n", {"a": "long", "b": "string"}, {"delimiter": "|", "quote": "'"}, {"a": 1, "b": "x|y"}),
        (b"Report of May\n\na,b\n1,x\n2,y\n", {"a": "long", "b": "string"}, {"skip": 2}, {"a": 2, "b": "y"}),
        ("a,b\n1,ü\n".encode("utf-16"), {"a": "long", "b": "string"}, {"encoding": "utf-16"}, {"a": 1, "b": "ü"}),
        (b"n\n1\n2\n", {"n": "long"}, {}, {"n": 2}),
        (b"a,b\n", {"a": "string", "b": "string"}, {}, None),
    ],
    ids=[
        *("Excel's", "R's", "pandas'", "PostgreSQL's", "a sensor's", "with groups and days first", "with blanks"),
        *("between blanks", "in other quotes", "below a title", "UTF-16", "one column", "no row"),
    ],
)
def test_a_file_that_people_have_is_read_as_it_was_told(
    content: bytes,
    types: dict[str, str],
    options: dict[str, Any],
    row: dict[str, Any] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "2026-01-31.csv"
    path.write_bytes(content)
    columns, rows = read_as_told(path, tmp_path, monkeypatch)
    assert columns == types
    found = look_at(path).options
    assert {name: value for name, value in found.items() if name != "rename"} == options
    assert row is None or row in rows
    assert bool(rows) == (row is not None)


def test_what_comes_late_in_a_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "2026-01-31.csv"
    monkeypatch.setattr(sniff, "HEAD", 1000)
    path.write_bytes(b"n,city,m\n" + b"1,Bern,\n" * 1000 + "2.5,Zürich,NA\n".encode("cp1252"))
    columns, rows = read_as_told(path, tmp_path, monkeypatch)
    assert columns == {"n": "double", "city": "string", "m": "string"}
    assert rows[-1] == {"n": 2.5, "city": "Zürich", "m": None}


@pytest.mark.parametrize("head", range(40, 80, 3))
def test_a_cell_of_many_lines_may_be_cut_where_the_first_look_ends(
    head: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sniff, "HEAD", head)
    path = tmp_path / "notes.csv"
    path.write_text("id,note\n" + "".join(f'{n},"a line,\nanother, and\na third"\n' for n in range(3)))
    assert sniff.sniff(path).columns == {"id": "long", "note": "string"}


@pytest.mark.parametrize("head", [1000, 1001, 1002, 1003])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_cut_behind_a_line_and_may_have_other_quotes(
    encoding: str, head: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sniff, "HEAD", head)
    path = tmp_path / "notes.csv"
    path.write_text("\ufeffid,note\n" + "1,'a, Ċ'\n" * 200, encoding)
    found = sniff.sniff(path)
    assert found.columns == {"id": "long", "note": "string"}
    assert found.options == {"quote": "'", "encoding": "utf-16"}


def test_a_file_is_told_by_its_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_bytes(CSV)
    monkeypatch.chdir(tmp_path)
    assert look_at(Path("a.csv")).columns == TYPES_OF_CSV
    assert [file.name for file in find_files(".", ["a"], "{key}.csv")] == ["a"]


def test_what_a_file_does_not_tell_is_remarked(tmp_path: Path) -> None:
    path = tmp_path / "2026-01-31.csv"
    path.write_text("when,n\n01/02/2026,1\n03/04/2026,2\n")
    assert "# when is read as dd/MM/yyyy; MM/dd/yyyy and M/d/yyyy would fit as well\n" in look_at(path).text


@pytest.mark.parametrize(
    ("rows", "remarks"),
    [
        ("1.234;a", ["1.234 in n is read as 1.234; with decimal=',', thousands='.' it would be 1234"]),
        ("1.234;2,5", ["1.234 in n is read as 1234; with decimal='.' it would be 1.234"]),
        ("1,234;7", ["1,234 in n is read as 1.234; with decimal='.', thousands=',' it would be 1234"]),
        ("-1,234;2.5", ["-1,234 in n is read as -1234; with decimal=',' it would be -1.234"]),
        (
            "1.234;1,234",
            [
                "1.234 in n is read as 1234; with decimal='.' it would be 1.234",
                "1,234 in m is read as 1.234; with decimal='.', thousands=',' it would be 1234",
            ],
        ),
        (
            "".join(f"{n};\n" for n in range(500)) + "1.234;",
            ["1.234 in n is read as 1.234; with decimal=',', thousands='.' it would be 1234"],
        ),
        *((rows, []) for rows in ("1.234;2.5", "1.234;1.234,50", "1.234;1.234.567", "1.234;\n0.500;", "1234;7")),
    ],
)
def test_a_mark_that_may_be_of_thousands_is_remarked(rows: str, remarks: list[str], tmp_path: Path) -> None:
    path = tmp_path / "2026-01-31.csv"
    path.write_text(f"n;m\n{rows}\n")
    assert look_at(path).remarks == remarks


def test_the_pattern_is_told_by_the_names(tmp_path: Path) -> None:
    def told(name: str) -> tuple[str, str, str]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a,b\n1,2\n")
        found = look_at(path)
        return found.folder, found.files, found.name

    assert told("orders/2026-01-31.csv") == ("orders", "", "")
    assert told("orders/orders_2026-01.csv.gz".replace(".gz", "")) == ("orders", "orders_{key}.csv", "")
    assert told("orders/day=2026-01-31/part-1.csv") == ("orders", "day={key}/*.csv", "")
    assert told("orders/prices.csv") == ("orders", "", "prices")
    assert told("orders/prices.txt") == ("orders", "{key}.txt", "prices")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"a,b\n1\n2,3\n4\n5,6,7\n", "unlike lengths"),
        (b'a,b\n1,"x\n2,y\n', "line 2: it has a quote that is never closed"),
        (b"a,b\n1,x\0\n", "NUL"),
        (b"", "is empty"),
        (b"1\ta\n2\tline\\\nbreak\n3\tb\n4\tc\n", "may be a row"),
    ],
    ids=["rows of unlike lengths", "an open quote", "no text", "empty", "an escaped line break"],
)
def test_a_csv_that_read_csv_would_refuse_is_refused(content: bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(LakehouseError, match=rf"a\.csv.*{told}"):
        look_at(tmp_path / "a.csv")


def test_a_file_of_parquet_is_told_with_what_it_requires(tmp_path: Path) -> None:
    place = pa.struct([pa.field("lat", pa.float64(), nullable=False), pa.field("lon", pa.float64())])
    fields = [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("at", pa.timestamp("ns", "UTC")),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("places", pa.list_(place)),
        pa.field("tags", pa.map_(pa.string(), pa.int64())),
    ]
    file = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.schema(fields).empty_table(), file)
    assert look_at(file).text.startswith('column("id", "int", required=True),\ncolumn("at", "timestamptz"),\n')
    assert [*look_at(file).columns.values()] == [
        "int",
        *("timestamptz", "decimal(9, 2)", "list<struct<lat: double, lon: double>>"),
        "map<string, long>",
    ]


def test_a_table_is_told_with_its_docs(settings: Settings) -> None:
    columns = [
        column("id", "int", "Number of the order", required=True),
        column("name", "string", 'Its "name", where it has one'),
        column("place", "struct<lat: double, lon: double>"),
    ]
    lake = load_lake(settings)
    lake.create_namespace("shop")
    lake.create_table("shop.orders", schema_of(columns))
    assert declared(lines_for_table("shop.orders", settings)) == columns


def test_what_can_not_be_told_is_said(settings: Settings, tmp_path: Path) -> None:
    empty = tmp_path / "empty.csv"
    empty.touch()
    with pytest.raises(LakehouseError, match=r"empty\.csv"):
        look_at(empty)
    for missing in ("no.table", "nothing"):
        with pytest.raises(LakehouseError, match=f"{missing} is neither a file nor a table"):
            lines_for_table(missing, settings)


@pytest.mark.parametrize("content", ["a,b\n1,2\n3\n4,5\n6,7\n", "name,city\nAnn,Rome\nBob\nCid,Paris\nEve,Oslo\n"])
def test_rows_above_one_of_another_length_are_not_left_out_in_silence(content: str, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(content)
    with pytest.raises(sniff.MalformedFile, match="has rows of unlike lengths above line 4, and line 1 may be a row"):
        sniff.sniff(tmp_path / "in.csv")


def test_a_comment_within_the_rows_is_one(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a,b\n1,2\n# checked\n4,5\n6,7\n")
    found = sniff.sniff(tmp_path / "in.csv")
    assert found.columns == {"a": "long", "b": "long"}
    assert found.options == {"comment": "#"}


def test_a_home_that_was_moved_is_not_told_to_have_no_table(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Settings) -> None:
        raise SettingsError("the home was moved")

    monkeypatch.setattr(column_lines, "load_lake", refuse)
    with pytest.raises(SettingsError, match="was moved"):
        lines_for_table("shop.orders", settings)


def test_a_file_in_which_every_line_may_be_a_comment_ends_in_no_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("# a\n# b,c\n# d,e\n")
    assert "comment" not in sniff.sniff(tmp_path / "in.csv").options

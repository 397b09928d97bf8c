"""What read_csv() takes for a row, and what a person reads of a wrong file: line, column, value, and a way out."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException

from lakehouse_assets.files.cell_types import Spelling
from lakehouse_assets.files.csv_rows import CsvReader
from lakehouse_assets.files.csv_text import LONGEST_ROW, CsvForm
from lakehouse_assets.files.delivered import MOST_SHOWN, DropZoneError, ReadFiles, find_files
from lakehouse_assets.files.drop_zone import wrong_files_told

TYPES = {"id": "int", "name": "string"}


def reader(schema: dict[str, str] | None = None, **options: Any) -> CsvReader:
    spelling = {name: options.pop(name) for name in ("decimal", "formats", "time_zone", "booleans") if name in options}
    given = {"nulls": [""], "rename": {}, "ignore": [], "trim": False}
    own = {name: options.pop(name) for name in given if name in options}
    return CsvReader(schema=schema or TYPES, form=CsvForm(**options), spelling=Spelling(**spelling), **(given | own))


def read(folder: Path, names: list[str], schema: dict[str, str] | None = None, **options: Any) -> pa.Table:
    """The rows of ``<name>.csv`` for all names, after a look at their heads."""
    found = ReadFiles(reader(schema, **options), find_files(str(folder), names, "{key}.csv"))
    assert not found.head_problems()
    return pa.Table.from_batches(found.rows(range(len(found.files))), found.reader.arrow)


def head(folder: Path, data: bytes, schema: dict[str, str] | None = None, **options: Any) -> str | None:
    (folder / "a.csv").write_bytes(data)
    return reader(schema, **options).head_problem(find_files(str(folder), ["a"], "{key}.csv")[0])


def complaints(folder: Path, data: bytes, schema: dict[str, str] | None = None, **options: Any) -> list[str]:
    """What is said of a file's rows, without the file's name, which each sentence begins with."""
    (folder / "a.csv").write_bytes(data)
    with pytest.raises(DropZoneError) as raised:
        read(folder, ["a"], schema, **options)
    assert raised.value.partitions == ("a",)
    return [line.removeprefix(f"{folder}/a.csv") for line in str(raised.value).splitlines()]


def test_columns_come_by_their_names_whatever_their_order(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,x\n")
    (tmp_path / "b.csv").write_text('"name","Number of it",more\n"y\nz",2,\n')
    assert read(tmp_path, ["a"]).to_pylist() == [{"id": 1, "name": "x"}]
    renamed = read(tmp_path, ["b"], rename={"Number of it": "id"}, ignore=["more"])
    assert renamed.to_pylist() == [{"id": 2, "name": "y\nz"}]


def test_nulls_are_what_is_spelt_so_and_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,name\n,\n"",""\nNA,NA\n"NA","NA"\n')
    assert read(tmp_path, ["a"], nulls=["", "NA"]).to_pylist() == [
        {"id": None, "name": None},
        {"id": None, "name": ""},
        {"id": None, "name": None},
        {"id": None, "name": "NA"},
    ]


@pytest.mark.parametrize(("name", "nulls"), [("NA", ["NA"]), ("", [""]), ("null", ["", "null"])])
def test_a_name_in_the_header_is_no_null(name: str, nulls: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"id,{name}\n1,x\n2,{name}\n")
    rows = read(tmp_path, ["a"], nulls=nulls, rename={name: "name"})
    assert rows.to_pylist() == [{"id": 1, "name": "x"}, {"id": 2, "name": None}]


def test_a_file_without_a_header_has_the_schemas_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,x\n2,y\n")
    assert read(tmp_path, ["a"], header=False).column("id").to_pylist() == [1, 2]
    assert head(tmp_path, b"1,x,y\n", header=False) == "has 3 cells in its first row, expected 2"


def test_blanks_around_cells_are_taken_off_if_asked(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(" id , name\n 1 ,\tx \n, \n")
    assert read(tmp_path, ["a"], trim=True).to_pylist() == [{"id": 1, "name": "x"}, {"id": None, "name": None}]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is empty, without even a header"),
        (b"id\n", "has other columns (missing: name; unknown: none; header: id)"),
        (b"id,name,x,\n", "has other columns (missing: none; unknown: x, one without a name; header: id,name,x,)"),
        (b"id,id\n", "has the column 'id' more than once; header=False with skip=1 reads its columns by their order"),
        (b'id,"name\n', "has a quote that is never closed (line 1)"),
        (gzip.compress(b"id,name\n", mtime=0), "is compressed by gzip, so its name should end with .gz"),
        (
            b"id,Name\xfc\n",
            "has other columns (missing: name; unknown: Name\ufffd; header: id,Name\ufffd; encoding='cp1252' reads "
            "names from Windows)",
        ),
    ],
)
def test_a_wrong_header_is_told(data: bytes, problem: str, tmp_path: Path) -> None:
    assert head(tmp_path, data) == problem


@pytest.mark.parametrize(
    ("row", "type_", "told"),
    [
        ("x", "int", "'x' is no int; declare it string to take it as it is"),
        ("2147483648", "int", "'2147483648' is no int; declare it long"),
        ("1.0", "long", "'1.0' is no long; declare it double"),
        ("NA", "int", "'NA' is no int; if it is a missing value, null=[…, 'NA'] takes it"),
        (" 1", "int", "' 1' is no int; trim=True takes it"),
        ('"2,5"', "double", "'2,5' is no double; decimal=',' takes it"),
        ('"1,234.5"', "double", "'1,234.5' is no double; thousands=',' takes it"),
        ("16777217", "float", "'16777217' is no float; declare it double"),
        ("2.555", '"decimal(9,2)"', "'2.555' is no decimal(9,2); declare it decimal(38,9)"),
        ("t", "boolean", "'t' is no boolean; booleans=('t', 'f') takes it"),
        ("YES", "boolean", "'YES' is no boolean; booleans=('YES', 'NO') takes it"),
        ("05.01.2026", "date", "'05.01.2026' is no date; formats={'c': 'dd.MM.yyyy'} takes it"),
        ("2026-01-05 10:00", "date", "'2026-01-05 10:00' is no date; declare it timestamp"),
        ("2026-01-05T10:00Z", "timestamp", "'2026-01-05T10:00Z' is no timestamp; declare it timestamptz"),
        (
            "2026-01-05T10:00",
            "timestamptz",
            "'2026-01-05T10:00' is no timestamptz; it has no offset: time_zone='…' takes it as of that zone, or "
            "declare it timestamp",
        ),
        (f"{'x' * 100}", "int", f"'{'x' * 80}…' is no int; declare it string to take it as it is"),
    ],
)
def test_a_wrong_value_is_told_with_what_would_take_it(row: str, type_: str, told: str, tmp_path: Path) -> None:
    data = f'c,t\n1,"a\nb"\n\n{row},\n'.replace("\n1,", "\n,", 1).encode()
    schema = {"c": type_.strip('"'), "t": "string"}
    assert complaints(tmp_path, data, schema) == [f", line 5, column c: {told}"]


def test_rows_of_other_lengths_are_told(tmp_path: Path) -> None:
    assert complaints(tmp_path, b'id,name\n1,"a\nb"\n2\n\n3,c,d\n') == [
        ", line 4: has 1 cells, expected 2: '2'",
        ", line 6: has 3 cells, expected 2: '3,c,d'",
    ]


def test_a_row_that_is_too_long_is_told(tmp_path: Path) -> None:
    data = b'id,name\n1,"' + b"x" * 5 * LONGEST_ROW + b'"\n'
    assert complaints(tmp_path, data) == [": has rows that are not of 2 cells, or too long"]


def test_bytes_that_are_no_utf8_are_told(tmp_path: Path) -> None:
    data = "id,name\n1,ok\n2,Malmö\n".encode("cp1252")
    told = "holds bytes that are not UTF-8; encoding='cp1252' takes those of Windows"
    assert complaints(tmp_path, data) == [f", line 3, column name: {told}"]
    (tmp_path / "a.csv").write_bytes(data)
    assert read(tmp_path, ["a"], encoding="cp1252").column("name").to_pylist() == ["ok", "Malmö"]


def test_the_wrong_values_of_all_files_are_told_up_to_a_number(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.csv").write_text("id,name\n" + "1,x\n" * 3 + "y,x\n" * 3)
    (tmp_path / "b.csv").write_text("id,name\n1,x\n")
    with pytest.raises(DropZoneError) as raised:
        read(tmp_path, ["a", "b", "c"])
    assert [line.partition(",")[0][-5:] for line in str(raised.value).splitlines()] == ["a.csv"] * 3 + ["c.csv"] * 3
    assert raised.value.partitions == ("a", "c")
    (tmp_path / "c.csv").write_text("id,name\n" + "y,x\n" * 100_000)
    with pytest.raises(DropZoneError) as raised:
        read(tmp_path, ["a", "b", "c"])
    assert len(str(raised.value).splitlines()) == MOST_SHOWN + 1
    assert str(raised.value).endswith("\nand more")


@pytest.mark.parametrize("behind", ["", "\n", "\n\nJVM stacktrace:\n[1]"])
def test_the_partitions_of_wrong_files_survive_a_task(behind: str, tmp_path: Path) -> None:
    names = ["a", 'é"[x]', "c"]
    for name, row in zip(names, ("y,x", "y,x", "1,x"), strict=True):
        (tmp_path / f"{name}.csv").write_text(f"id,name\n{row}\n")
    files = ReadFiles(reader(), find_files(str(tmp_path), names, "{key}.csv"))
    with pytest.raises(DropZoneError) as of_task:
        [*files([pa.record_batch({"id": [0, 1, 2]})])]
    with pytest.raises(DropZoneError) as raised, wrong_files_told():
        raise PythonException(f"Traceback:\n  …\n{DropZoneError.__module__}.DropZoneError: {of_task.value}{behind}")
    with pytest.raises(DropZoneError) as here:
        read(tmp_path, names)
    assert (str(raised.value), raised.value.partitions) == (str(here.value), tuple(names[:2]))


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        ({"id": "time"}, {}),
        (TYPES, {"rename": {"x": "y"}}),
        (TYPES, {"formats": {"when": "dd.MM.yyyy"}}),
        (TYPES, {"header": False, "ignore": ["x"]}),
        (TYPES, {"ignore": ["name"]}),
        (TYPES, {"ignore": ["x", "x"]}),
        (TYPES, {"rename": {"a": "id", "b": "id"}}),
        (TYPES, {"skip": -1}),
        *((TYPES, {"comment": mark}) for mark in ('"', ",", "1", "a", " ")),
        *((TYPES, {"encoding": codec}) for codec in ("rot13", "base64", "nowhere")),
    ],
)
def test_options_that_can_t_work_are_refused(schema: dict[str, str], options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"declare it string|the schema|there is none|once|skip|comment|encoding"):
        reader(schema, **options)

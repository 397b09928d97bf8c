"""`lakehouse columns`: what it prints for files and tables can be declared as it is."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from lakehouse_assets import Column, column
from lakehouse_assets.cli.column_lines import lines_for_file, lines_for_table
from lakehouse_assets.declare.columns import schema_of
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import LakehouseError

CSV = b"""day,id,amount,paid,at,note,hour,nothing,code
2026-01-31,1,2.5,true,2026-01-31T08:00:00Z,"a, b",08:00:00,,10115
2026-02-01,2,,false,2026-02-01T08:00:00Z,c,09:00:00,,01067
"""


def declared(lines: str) -> list[Column]:
    return eval(f"[{lines}]", {"column": column})


@pytest.mark.parametrize("name", ["orders.csv", "orders.csv.gz"])
def test_types_of_a_csv_are_guessed(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(gzip.compress(CSV) if name.endswith(".gz") else CSV)
    found = declared(lines_for_file(tmp_path / name))
    assert {one.name: one.type for one in found} == {
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


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"a;b\n1;2\n", "';'"),
        (b"a;b\nx;1,50\n", "';'"),
        (b"a,a\n1,2\n", "2 times"),
        ("name,city\nBo,Malmö\n".encode("latin-1"), r"city .* not UTF-8"),
        (b"a,b\n1\n", ""),
    ],
    ids=["other separator", "with decimal commas", "a name twice", "latin-1", "fewer values"],
)
def test_a_csv_that_read_csv_would_refuse_is_refused(content: bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(LakehouseError, match=rf"a\.csv: .*{told}"):
        lines_for_file(tmp_path / "a.csv")


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
    lines = lines_for_file(file)
    assert lines.splitlines()[0] == 'column("id", "int", required=True),'
    assert [one.type for one in declared(lines)] == [
        *("int", "timestamptz", "decimal(9, 2)", "list<struct<lat: double, lon: double>>"),
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
        lines_for_file(empty)
    for missing in ("no.table", "nothing"):
        with pytest.raises(LakehouseError, match=f"{missing} is neither a file nor a table"):
            lines_for_table(missing, settings)

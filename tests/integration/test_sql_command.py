"""`lakehouse sql` in processes of its own, answered by a worker that stays."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyiceberg.table import Table

from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.extensions.fork_server import folders
from tests.conftest import ROOT
from tests.support.faults import wait_for
from tests.support.projects import make_project

pytestmark = pytest.mark.spark
ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "name": ["a", None, "it's"],
        "amount": pa.array([Decimal("9.90"), Decimal("-1.00"), None], pa.decimal128(9, 2)),
        "day": [date(2026, 1, 1), date(2026, 1, 2), None],
        "tags": pa.array([["x"], [], None], pa.list_(pa.string())),
    }
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with a lake, as the working folder, whose worker stays."""
    folder = tmp_path_factory.mktemp("sql")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "LAKEHOUSE_HOME": str(folder / "home"),
            "LAKEHOUSE_WORKER_IDLE": "PT5M",
            "PYTHONPATH": str(ROOT),
        }.items():
            patch.setenv(name, value)
        patch.chdir(make_project(folder / "project", "tests.support.tiny_location"))
        yield folder / "home"
        workers = folder / "home" / folders.WORKERS
        for one in folders.alive(workers):
            one.end()
        wait_for(lambda: not folders.alive(workers))


@pytest.fixture(scope="module")
def orders(home: Path) -> Table:
    catalog = load_lake(read_settings())
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", ROWS.schema)
    table.append(ROWS)
    return table


def ask(query: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lakehouse_assets.cli", "sql", query, *options]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=240)


def answered(query: str, *options: str) -> list[str]:
    done = ask(query, *options)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout.splitlines()


def workers(home: Path) -> list[int]:
    return [one.about.pid for one in folders.alive(home / folders.WORKERS)]


def test_rows_are_a_table(orders: Table, home: Path) -> None:
    lines = answered("SELECT id, name, amount, day, tags, id FROM shop.orders ORDER BY id")
    assert [line.split() for line in lines[:1]] == [["id", "name", "amount", "day", "tags", "id"]]
    assert [line.split() for line in lines[2:5]] == [
        ["1", "a", "9.90", "2026-01-01", "['x']", "1"],
        ["2", "NULL", "-1.00", "2026-01-02", "[]", "2"],
        ["3", "it's", "NULL", "NULL", "NULL", "3"],
    ]
    assert lines[6].startswith("3 rows in ")
    before = workers(home)
    assert answered("SELECT count(*) AS n FROM lake.shop.orders")[2] == "3"
    assert workers(home) == before != []


def test_many_rows_are_cut_off(orders: Table) -> None:
    lines = answered("SELECT id FROM range(101)")
    assert len(lines) == 2 + 100 + 2
    assert "-o rows.csv writes all of them" in lines[-1]


def test_files_have_all_rows(orders: Table, tmp_path: Path) -> None:
    query = "SELECT id, name, amount, day FROM shop.orders ORDER BY id"
    for suffix in ("csv", "json", "parquet"):
        answered(query, "-o", str(tmp_path / f"rows.{suffix}"))
    with (tmp_path / "rows.csv").open() as file:
        assert [*csv.reader(file)][1:] == [
            ["1", "a", "9.90", "2026-01-01"],
            ["2", "", "-1.00", "2026-01-02"],
            ["3", "it's", "", ""],
        ]
    assert json.loads((tmp_path / "rows.json").read_text().splitlines()[0]) == {
        "id": 1,
        "name": "a",
        "amount": "9.90",
        "day": "2026-01-01",
    }
    assert pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist() == ROWS.drop(["tags"]).to_pylist()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv", "rows.json", "rows.parquet"]
    for wrong in ("rows.xlsx", "nowhere/rows.csv"):
        assert ask(query, "-o", wrong).returncode == 2
    answered("SELECT double('NaN') AS x, interval 1 day AS i, map('a', 1) AS m", "-o", str(tmp_path / "odd.json"))
    assert json.loads((tmp_path / "odd.json").read_text()) == {"x": "nan", "i": "1 day, 0:00:00", "m": [["a", 1]]}
    for query, file, reason in (
        ("SELECT 1 AS a, 2 AS a", "x.json", "the result has several columns a: name them by AS"),
        ("SELECT id, tags FROM shop.orders", "x.csv", "CSV can't hold tags: write .json or .parquet"),
    ):
        done = ask(query, "-o", str(tmp_path / file))
        assert (done.returncode, reason in done.stderr) == (1, True), done.stderr


def test_a_table_as_it_was(orders: Table, home: Path) -> None:
    then = datetime.fromtimestamp(orders.refresh().current_snapshot().timestamp_ms / 1000, UTC)
    orders.append(ROWS)
    query = "SELECT count(*) AS n FROM shop.orders AS o"
    assert answered(query)[2] == "6"
    assert answered(query, "--at", then.isoformat())[2] == "3"
    assert answered("SELECT count(*) AS n FROM shop.orders.snapshots")[2] == "2"
    early = ask(query, "--at", "2020-01-01")
    assert (early.returncode, early.stdout) == (1, "")
    assert "shop.orders has no snapshot of 2020-01-01" in early.stderr


REFUSED = {
    "SELECT * FROM shop.order": "there is no table lake.shop.order; shop has shop.orders",
    "SELECT * FROM nowhere.orders": "there is no table lake.nowhere.orders; there is no table in nowhere",
    "SELECT nam FROM shop.orders": "`nam` cannot be resolved",
    "SELECT * FROM shop.orders WHERE day = :start": "1:39: only the query of a step has parameters and changes()",
    "DROP TABLE shop.orders": "1:1: this is no query: write one SELECT, or WITH … SELECT",
    "SELECT 1;\nDELETE FROM shop.orders": "2:1: ",
    "SELECT raise_error('no') AS a FROM shop.orders": "no",
}


def test_refused_queries_end_no_worker(orders: Table, home: Path) -> None:
    answered("SELECT 1 AS a")
    before = workers(home)
    for query, reason in REFUSED.items():
        done = ask(query)
        assert (done.returncode, done.stdout) == (1, ""), query
        assert reason in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert answered("SELECT count(*) > 2 AS n FROM shop.orders")[2] == "True"
    assert workers(home) == before


def test_a_file_with_a_query_and_no_worker_that_stays(orders: Table, home: Path, tmp_path: Path) -> None:
    (tmp_path / "x.sql").write_bytes(
        b"\xef\xbb\xbf-- How many.\r\nSELECT count(DISTINCT id) AS n\r\nFROM shop.orders;\r\n"
    )
    for one in folders.alive(home / folders.WORKERS):
        one.end()
    wait_for(lambda: not workers(home))
    assert answered(str(tmp_path / "x.sql"), "--cold")[2] == "3"
    wait_for(lambda: not workers(home))
    assert not [*(home / "tmp").glob("lakehouse-sql-*")]

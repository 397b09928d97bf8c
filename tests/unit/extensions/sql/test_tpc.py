"""The queries of TPC-H and TPC-DS, as the tests of Apache Spark have them (4.1.3, Apache License 2.0): each is read,
gives the tables that it names, and nothing in it counts as a mistake. The lineage of TPC-H was compared by eye."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.table import Table
from lakehouse_assets.extensions.sql.check import Check
from lakehouse_assets.extensions.sql.lineage import column_lineage
from lakehouse_assets.extensions.sql.query import parse
from lakehouse_assets.extensions.sql.tables import tables_read
from tests.support.tables import whole

DATA: dict[str, Any] = json.loads(gzip.decompress(Path(__file__).with_name("tpc.json.gz").read_bytes()))
STEP = "tests.support.steps:whole"
OF_THE_RESULT = ("its columns are not those of", "has no name", " twice: ")


def tables(benchmark: str) -> dict[str, Table]:
    columns = DATA["columns"][benchmark].items()
    made = (Table(f"tpc.{name}", [column(one, "string") for one in of], STEP) for name, of in columns)
    return {table.identifier: table for table in made}


@pytest.fixture(scope="module")
def declared() -> dict[str, dict[str, Table]]:
    return {benchmark: tables(benchmark) for benchmark in DATA["columns"]}


def test_all_are_there() -> None:
    numbers = {name.rstrip("ab") for name in DATA["queries"]}
    assert numbers == {f"tpch/q{n}" for n in range(1, 23)} | {f"tpcds/q{n}" for n in range(1, 100)}


@pytest.mark.parametrize("name", DATA["queries"])
def test_a_query_reads_its_tables_and_is_not_refused(name: str, declared: dict[str, dict[str, Table]]) -> None:
    query = parse(DATA["queries"][name]["query"])
    assert {read.identifier for read in tables_read(query)} == {f"tpc.{one}" for one in DATA["queries"][name]["tables"]}
    problems = Check(whole(), "x.sql", query, declared[name.partition("/")[0]]).problems()
    # The table that is asked for is another one than these queries give.
    assert [one for one in problems if not any(part in one for part in OF_THE_RESULT)] == []


@pytest.mark.parametrize("name", DATA["lineage"])
def test_the_lineage_of_a_query(name: str) -> None:
    columns = {f"tpc.{table}": of for table, of in DATA["columns"]["tpch"].items()}
    found = column_lineage(parse(DATA["queries"][name]["query"]), columns)
    shown = {
        one: origins and [f"{table.removeprefix('tpc.')}.{of}" for table, of in origins]
        for one, origins in found.items()
    }
    assert {one: origins or [] for one, origins in shown.items()} == DATA["lineage"][name]

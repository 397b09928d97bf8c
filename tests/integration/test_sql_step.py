"""Steps in SQL files, run by Spark: parameters, pruning, changes, and that nothing but a query ever runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.modes import Append, Merge
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.extensions.sql.query import parse
from lakehouse_assets.extensions.sql.worker import QueryRefused, parameters_of, rows_of
from lakehouse_assets.run.domain import Domain, with_step_inputs
from lakehouse_assets.step.window import Window
from tests.conftest import failure_text
from tests.support.faults import FaultyLake, from_failure
from tests.support.tables import numbers, whole

pytestmark = pytest.mark.spark
DAYS = ("2024-01-01", "2024-01-02")
QUERY = """
SELECT CAST(day AS date) AS day, n, IF({fails} AND day = '2024-01-02', raise_error('not mended'), 'v{version}') AS text
FROM (SELECT explode(:keys) AS day) CROSS JOIN (SELECT explode(sequence(0L, 1L)) AS n)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "queries.py").write_text("")
    return tmp_path / "x.sql"


@pytest.fixture
def lake(inline: None, settings: Settings, instance: dg.DagsterInstance) -> FaultyLake:
    return FaultyLake(settings, instance)


def of(table: Table) -> Table:
    """The table with the step x.sql, and the inputs that its query names."""
    (domain,) = with_step_inputs([Domain("demo", tables=[replace(table, step="queries:x.sql")])])
    return domain.tables[0]


def test_rows_of_an_edited_file_are_not_taken_over(file: Path, lake: FaultyLake) -> None:
    file.write_text(QUERY.format(version=1, fails=True))
    first = lake.run(of(numbers(partitions_per_worker=1)), *DAYS)
    assert not first.success
    assert "not mended" in failure_text(first)
    file.write_text(QUERY.format(version=2, fails=False))
    table = of(numbers(partitions_per_worker=1))
    result = lake.run(table, *DAYS, tags=from_failure(first.run_id))
    assert result.success, failure_text(result)
    assert lake.rows(table, ["text"])["text"].to_pylist() == ["v2"] * 4


def test_an_edited_comment_changes_nothing(file: Path, lake: FaultyLake) -> None:
    file.write_text(QUERY.format(version=1, fails=False))
    table = of(numbers())
    file.write_text("-- Another comment.\n" + QUERY.format(version=1, fails=False))
    assert lake.run(table, *DAYS).success


@pytest.mark.parametrize(
    "where",
    [
        "day >= :start_date AND day < :end_date",
        "day BETWEEN :start_date AND date_sub(:end_date, 1)",
        "day IN (:keys)",
        "day >= CAST(:start AS date) AND day < CAST(:end AS date)",
    ],
)
def test_a_window_selects_its_rows_and_reads_only_their_files(file: Path, lake: FaultyLake, where: str) -> None:
    assert lake.run(numbers(), "2024-01-01", "2024-01-10").success
    file.write_text(f"SELECT * FROM lake.demo.numbers WHERE {where}")
    table = of(numbers(reads=["demo.numbers"]))
    assert lake.run(table, *DAYS).success
    assert lake.rows(table).num_rows == 30
    query = file.read_text().replace("*", "*, _file")
    rows = rows_of(parse(query), SparkSession.active(), Window(DAYS, *bounds()), "x.sql")
    assert rows.count() == 6
    assert rows.select("_file").distinct().count() == 2


def bounds() -> tuple[Any, Any]:
    window = numbers().alignment.window(DAYS)
    assert window
    return window


def test_a_merge_reads_on_and_deletes(file: Path, lake: FaultyLake) -> None:
    source = load_lake(lake.settings)
    source.create_namespace("finance")
    rows = source.create_table("finance.source", pa.schema([("n", pa.int64()), ("text", pa.string())]))
    rows.append(pa.table({"n": [1, 2], "text": ["a", "b"]}))
    file.write_text("SELECT n, upper(text) AS text, _change_type FROM changes('lake.finance.source') AS c WHERE n > 0")
    merge = Merge(["n"], delete_when="_change_type = 'DELETE'", order_by="_change_type")
    table = of(whole(identifier="demo.mirror", write_mode=merge, unique=()))
    assert [*table.reads] == ["finance.source"]
    for _ in range(2):
        assert lake.run(table).success
    rows.delete("n = 1")
    rows.append(pa.table({"n": [3], "text": ["c"]}))
    result = lake.run(table)
    assert result.success, failure_text(result)
    assert sorted(lake.rows(table, ["text"])["text"].to_pylist()) == ["B", "C"]


def test_static_partitions_and_five_thousand_keys(lake: FaultyLake) -> None:
    spark = SparkSession.active()
    spark.range(6000).selectExpr("CAST(id AS string) AS k").createOrReplaceTempView("many")
    for count, condition in ((3, "k IN (:keys)"), (3, "array_contains(:k, k)"), (5000, "k IN (:k)")):
        keys = tuple(map(str, range(count)))
        query = parse(f"SELECT * FROM many WHERE {condition}")
        assert rows_of(query, spark, Window(keys, dimensions={"k": keys}), "x.sql").count() == count


def test_nothing_but_a_query_can_run(lake: FaultyLake) -> None:
    spark = SparkSession.active()
    query = parse("SELECT 1 AS a")
    for statement in (
        *("DROP TABLE lake.demo.x", "SET a.b = 1", "CREATE TABLE lake.demo.y AS SELECT 1 AS a"),
        *("WITH a AS (SELECT 1) INSERT INTO x SELECT * FROM a", "FROM t INSERT INTO x SELECT a", "SELECT 1; SELECT 2"),
    ):
        other = replace(query, text=statement, tokens=parse_tokens(statement))
        with pytest.raises(QueryRefused):
            rows_of(other, spark, Window(), "x.sql")


def parse_tokens(statement: str) -> Any:
    import sqlglot

    return tuple(sqlglot.tokenize(statement, read="databricks"))


def test_a_mistake_that_only_spark_finds_is_told_with_its_place(file: Path, lake: FaultyLake) -> None:
    file.write_text("-- Head.\n\nSELECT 1L AS n,\n  nowhere(2) AS text")
    result = lake.run(of(whole()))
    assert not result.success
    told = failure_text(result)
    assert "x.sql: [UNRESOLVED_ROUTINE]" in told
    assert "line 4 pos 2" in told


def test_names_of_every_kind(file: Path, lake: FaultyLake) -> None:
    columns = [column("groesse", "long"), column("select", "string"), column("_x1", "string")]
    file.write_text(
        "-- Namen\nWITH `select` AS (SELECT 1L AS `größe a`, ':keys; --' AS `SELECT`, \"it's\" AS `Übel`)\n"
        "SELECT `größe a` AS GROESSE, `select`, `übel` AS _x1 FROM `select` /* ; */;\n-- Ende\n"
    )
    table = of(whole(columns=columns, write_mode=Append(), unique=()))
    result = lake.run(table)
    assert result.success, failure_text(result)
    assert lake.rows(table).to_pylist() == [{"groesse": 1, "select": ":keys; --", "_x1": "it's"}]


def test_parameters_are_values_of_the_window() -> None:
    start, end = bounds()
    values = parameters_of(Window(DAYS, start, end, {"region": ("a",)}))
    assert values == {
        "keys": [*DAYS],
        "region": ["a"],
        "start": start,
        "end": end,
        "start_date": start.date(),
        "end_date": end.date(),
    }

"""A second kind of step, a SQL file, fits behind Step: Spark runs it, and rows of an edited file are not taken over.
It is made here, for the test: tables of users have Python steps."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession

from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.errors import DeclarationError
from lakehouse_assets.step.window import Window
from lakehouse_assets.wire import code
from tests.conftest import failure_text
from tests.support.faults import FaultyLake, from_failure
from tests.support.tables import numbers

pytestmark = pytest.mark.spark
DAYS = ("2024-01-01", "2024-01-02")
QUERY = """
SELECT CAST(day AS date) AS day, n, IF({fails} AND day = '2024-01-02', raise_error('not mended'), 'v{version}') AS text
FROM (SELECT explode(:keys) AS day) CROSS JOIN (SELECT explode(sequence(0L, 1L)) AS n)
"""


class SqlStep(code.Step):
    """A file with a query, which gets the window's keys as ``:keys``."""

    form = re.compile(r".+\.sql")

    def load(self) -> Callable[[SparkSession, Window], DataFrame]:
        return lambda spark, window: spark.sql(self.source(), args={"keys": [*window.keys]})

    def source(self, imported: dict[str, str] | None = None) -> str:
        return Path(self.reference).read_text()


def declared(query: Path) -> Table:
    return replace(numbers(partitions_per_worker=1), step=str(query))


@pytest.fixture
def query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(code, "KINDS", [*code.KINDS, SqlStep])
    return tmp_path / "numbers.sql"


def test_rows_of_an_edited_file_are_not_taken_over(inline: None, query: Path, instance: dg.DagsterInstance) -> None:
    lake = FaultyLake(read_settings(), instance)
    query.write_text(QUERY.format(version=1, fails=True))
    first = lake.run(declared(query), *DAYS)
    assert not first.success
    assert "not mended" in failure_text(first)
    query.write_text(QUERY.format(version=2, fails=False))
    table = declared(query)
    result = lake.run(table, *DAYS, tags=from_failure(first.run_id))
    assert result.success, failure_text(result)
    assert lake.rows(table, ["text"])["text"].to_pylist() == ["v2"] * 4


def test_a_table_whose_file_is_missing_is_refused(query: Path) -> None:
    with pytest.raises(DeclarationError, match=r"numbers\.sql can't be read"):
        declared(query)

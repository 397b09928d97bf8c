"""Homes whose paths have characters that URLs, shells or Spark give a meaning: what is written stays in the home."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from lakehouse_assets.cli.home import prepare
from lakehouse_assets.environment.settings import read_settings
from tests.conftest import Lake, failure_text
from tests.support.tables import numbers

ODD = 'Jürgen\'s "Lake" #1: 50%+x&y=z; [\\]{$HOME}*'


@pytest.fixture
def odd_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / ODD / ".lakehouse"))
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    settings = read_settings()
    prepare(settings)
    with dg.DagsterInstance.get() as instance:
        yield Lake(settings, instance)


@pytest.mark.spark
def test_a_home_with_odd_characters(odd_lake: Lake, tmp_path: Path) -> None:
    table = numbers()
    result = odd_lake.run(table, "2024-01-01")
    assert result.success, failure_text(result)
    assert odd_lake.rows(table).num_rows == 3
    assert [path.name for path in tmp_path.iterdir()] == [ODD]
    assert {path.name for path in odd_lake.settings.home.iterdir()} >= {"catalog.db", "warehouse", "staging"}

"""A write mode is its words and its strategy: a further one needs nothing else, and nobody asks which mode it is."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from pyiceberg.table import StaticTable

import lakehouse_assets
from lakehouse_assets.commit.change import Change
from lakehouse_assets.commit.staged import StagedChunk
from lakehouse_assets.commit.strategies import WriteStrategy, strategy_of
from lakehouse_assets.declare.modes import Append, Declared, Merge, Overwrite, WriteMode
from lakehouse_assets.declare.region import Region
from lakehouse_assets.environment.settings import Settings
from tests.conftest import failure_text
from tests.support.faults import FaultyLake, rows_by_day, tiny
from tests.support.forks import Daily, daily_rows
from tests.support.manifests import sqlite_catalog

WITHIN = Append(dedup_on=["carrier"], within=timedelta(days=9))
# A mode of somebody else's package: partitions are the days on which a source was read, the table is the latest of them


@dataclass(frozen=True)
class Latest:
    owns_partitions = replaces = splits = adds_again = False
    match_on = row_texts = ()

    def problems(self, table: Declared) -> Iterator[str]:
        if table.unique:
            yield "Latest can't keep columns unique"


class KeepLatest(WriteStrategy):
    def change(self, region: Region, staged: Sequence[StagedChunk]) -> Change:
        return Change(region, staged)


strategy_of.register(Latest)(lambda mode: KeepLatest())


def test_a_further_mode_writes_tables(settings: Settings) -> None:
    settings.home.mkdir(exist_ok=True)
    table = tiny(write_mode=Latest(), unique=(), partitions_per_worker=None)
    with dg.DagsterInstance.ephemeral() as instance:
        lake = FaultyLake(settings, instance)
        for day in ("2024-01-01", "2024-01-02"):
            assert (result := lake.run(table, day)).success, failure_text(result)
        assert rows_by_day(lake, table) == {"2024-01-02": 3}


def test_a_mode_without_a_strategy_is_told_by_name() -> None:
    with pytest.raises(TypeError, match="object"):
        strategy_of(object())


@pytest.mark.parametrize("mode", [Merge(["carrier"]), WITHIN])
def test_a_merge_is_resumed_on_the_snapshot_it_was_staged_on_while_main_has_it(mode: WriteMode, tmp_path: Path) -> None:
    daily, strategy = Daily.create(sqlite_catalog(tmp_path)), strategy_of(mode)
    daily.append(daily_rows("2013-01-01"))
    now_ms = round(time.time() * 1000)
    first = strategy.fork(daily.table, "run", now_ms)
    daily.append(daily_rows("2013-01-02"))
    assert strategy.fork(daily.table, "run", now_ms, first.snapshot_id) == first
    second = strategy.fork(daily.table, "run", now_ms)
    assert second.snapshot_id == daily.table.metadata.current_snapshot_id
    daily.table.manage_snapshots().set_current_snapshot(first.snapshot_id).commit()
    assert strategy.fork(daily.table, "run", now_ms, second.snapshot_id) == first, "it was rolled back"


@pytest.mark.parametrize("mode", [Overwrite(), Append(), Merge(["carrier"]), WITHIN])
def test_a_worker_may_write_nulls_into_required_columns_for_the_audit_to_find(mode: WriteMode, tmp_path: Path) -> None:
    daily = Daily.create(sqlite_catalog(tmp_path))
    daily.append(daily_rows("2013-01-01"))
    fork = StaticTable.from_metadata(strategy_of(mode).fork(daily.table, "run", 0).location)
    assert [field.required for field in fork.schema().fields] == [False, False, False]


def test_nobody_else_asks_which_mode_a_table_has() -> None:
    words = {name for name in vars(WriteMode) if not name.startswith("_")}
    root = Path(lakehouse_assets.__file__).parent
    own = {"__init__.py", "extensions/yaml/component.py", "declare/modes.py", "commit/strategies.py"}
    found = []
    for path in root.rglob("*.py"):
        name, text = str(path.relative_to(root)), path.read_text()
        if name in own:
            continue
        found += [(name, word) for word in re.findall(r"write_mode\.(\w+)", text) if word not in words]
        if not name.startswith("domains/") and name != "declare/table.py":  # whose default is a mode
            code = re.sub(r"^ *>>> .*$", "", text, flags=re.MULTILINE)  # examples show users' code
            found += [(name, mode) for mode in re.findall(r"import .*\b(Overwrite|FullRefresh|Append|Merge)\b", code)]
    assert found == []

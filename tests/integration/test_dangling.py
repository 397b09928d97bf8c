"""Delete files that apply to nothing any more are removed; the others stay, also beside what is committed meanwhile.
Which delete file applies to which data file is in tests/unit/commit/test_deletes.py."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record

from lakehouse_assets.maintenance.rewrite.manifests import DanglingDeletes, remove_dangling_deletes
from tests.support.forks import CountingIO, Daily, daily_rows
from tests.support.outsiders import (
    commit_deletes,
    commit_file,
    equality_deletes,
    live,
    live_deletes,
    multiset,
    position_deletes,
)
from tests.support.rewrites import token

DAYS = ("2013-01-01", "2013-01-02")
FIRST = 15706


def removed(daily: Daily, text: str | None = None) -> int:
    published, count = remove_dangling_deletes(daily.catalog, daily.identifier, token(text), {})
    assert published is None or published.snapshot_id == daily.table.current_snapshot().snapshot_id
    return count


def paths(daily: Daily, at: int = FIRST) -> list[str]:
    return sorted(e.data_file.file_path for e in live(daily.table) if e.data_file.partition[0] == at)


@pytest.fixture
def two(daily: Daily) -> Daily:
    """Two files of each day, two rows each."""
    for carrier in ("AA", "BB"):
        daily.append(daily_rows(*DAYS, carrier=carrier, each=2))
    return daily


def test_what_names_only_files_that_are_gone_is_removed_and_the_rest_stays(two: Daily) -> None:
    gone = next(p for p in paths(two) if carrier_of(two, p) == "AA")
    stays = next(p for p in paths(two) if p != gone)
    for positions in ({gone: [0]}, {stays: [0]}, {gone: [1], stays: [1]}):
        commit_deletes(two.table, position_deletes(two.table, positions))
    commit_deletes(two.table, position_deletes(two.table, {gone: [1]}, partition=Record(FIRST + 1)))
    assert removed(two) == 0, "all apply"
    assert len(live_deletes(two.table)) == 4, "all apply"
    two.table.delete(EqualTo("carrier", "AA"))
    before = multiset(two.table)
    assert removed(two) == 2
    assert multiset(two.table) == before
    assert len(live_deletes(two.table)) == 2
    snapshot = two.table.current_snapshot()
    assert snapshot.summary.operation is Operation.REPLACE
    assert snapshot.summary["removed-delete-files"] == "2"
    assert removed(two) == 0


def carrier_of(daily: Daily, path: str) -> str:
    with daily.table.io.new_input(path).open() as stream:
        return pq.read_table(stream)["carrier"][0].as_py()


def test_a_delete_in_another_partition_that_names_a_live_file_stays(two: Daily) -> None:
    """As Iceberg's Java reads it, though the format wants it beside its file."""
    path = paths(two)[0]
    commit_deletes(two.table, position_deletes(two.table, {path: [0]}, partition=Record(FIRST + 40)))
    assert removed(two) == 0
    assert len(live_deletes(two.table)) == 1


def test_equality_deletes_stay_while_an_older_file_is_in_their_partition(two: Daily) -> None:
    commit_deletes(two.table, equality_deletes(two.table, "carrier", ["AA"], Record(FIRST)))
    commit_deletes(two.table, equality_deletes(two.table, "carrier", ["AA"], Record(FIRST + 40)))
    before = multiset(two.table)
    assert removed(two) == 1
    assert multiset(two.table) == before
    two.publish("run", [DAYS[0]], two.stage("run", 0, [DAYS[0]], daily_rows(DAYS[0])))
    before = multiset(two.table)
    assert removed(two) == 1
    assert multiset(two.table) == before
    assert not live_deletes(two.table)


@pytest.mark.parametrize("catalog_properties", ["sqlite"], indirect=True)
def test_days_that_pythons_calendar_lacks(two: Daily) -> None:
    rows = daily_rows(DAYS[0])
    far = 2_932_897 + 5
    commit_file(two.table, rows, Record(far))
    (path,) = paths(two, far)
    commit_deletes(two.table, position_deletes(two.table, {path: [0]}))
    commit_deletes(two.table, position_deletes(two.table, {path: [0]}, partition=Record(far)))
    commit_deletes(two.table, equality_deletes(two.table, "carrier", ["AA"], Record(far + 1)))
    assert removed(two) == 1
    assert len(live_deletes(two.table)) == 2


def test_what_others_commit_meanwhile_counts(two: Daily, monkeypatch: pytest.MonkeyPatch) -> None:
    commit_deletes(two.table, equality_deletes(two.table, "carrier", ["XX"], Record(FIRST + 40)))
    plan, planned = DanglingDeletes.plan, []

    def outrun(self: DanglingDeletes, *arguments: Any) -> Any:
        found = plan(self, *arguments)
        planned.append(len(found.removed))
        if len(planned) == 1:
            commit_deletes(two.table, equality_deletes(two.table, "carrier", ["YY"], Record(FIRST + 41)))
        return found

    monkeypatch.setattr(DanglingDeletes, "plan", outrun)
    before = multiset(two.table)
    assert removed(two) == 2
    assert planned == [1, 2]
    assert multiset(two.table) == before


def test_a_second_call_of_the_same_run_changes_nothing(two: Daily) -> None:
    commit_deletes(two.table, equality_deletes(two.table, "carrier", ["XX"], Record(FIRST + 40)))
    assert removed(two, "a") == 1
    head = two.table.metadata_location
    assert removed(two, "a") == 0
    assert two.table.metadata_location == head


def test_a_table_without_delete_files_is_not_read(catalog_properties: dict[str, str]) -> None:
    io = {"py-io-impl": "tests.support.forks.CountingIO"}
    daily = Daily.create(load_catalog("lake", **{**catalog_properties, **io}))
    daily.append(daily_rows(*DAYS))
    CountingIO.manifests_read.clear()
    assert removed(daily) == 0
    assert not CountingIO.manifests_read

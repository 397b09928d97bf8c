"""How a rewrite is cut into workers' chunks, and the plan that a resumed run finds again.
What becomes of the chunks is in test_spark_rewrite.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from lakehouse_assets.commit.manifests import Entries
from lakehouse_assets.maintenance.rewrite.plan import (
    PlannedChunk,
    PlannedPartition,
    RewritePlan,
    RewriteTask,
    cut,
    listed,
    plan_rewrites,
    planned,
)
from lakehouse_assets.wire.receipts import read_json
from tests.support.forks import Daily, daily_rows
from tests.support.manifests import sqlite_catalog
from tests.support.outsiders import commit_deletes, live, position_deletes
from tests.support.rewrites import base_of

DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")
PLAN = RewritePlan(
    False,
    ("a", "b"),
    (PlannedChunk("fork", (PlannedPartition("day=2013-01-01", 3, 900),)),),
)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return sqlite_catalog(tmp_path)


@pytest.fixture
def daily(catalog: Catalog) -> Daily:
    """Three days of a file each."""
    daily = Daily.create(catalog)
    daily.append(daily_rows(*DAYS))
    return daily


def chosen(daily: Daily, *partitions: tuple[int, Record], everything: bool = True) -> list[RewriteTask]:
    return plan_rewrites(base_of(daily), daily.table.io, Entries(), partitions or None, everything=everything)


def test_chunks_hold_so_many_bytes_or_one_partition(daily: Daily) -> None:
    tasks = chosen(daily)
    sizes = [planned(task).size for task in tasks]

    def names(limit: int) -> list[list[str]]:
        return [[task.name[-1] for task in chunk] for chunk in cut(tasks, daily.table.metadata, limit)]

    assert names(sum(sizes)) == [["1", "2", "3"]]
    assert names(sizes[0] + sizes[1]) == [["1", "2"], ["3"]]
    assert names(1) == [["1"], ["2"], ["3"]]


def test_files_of_old_specs_have_chunks_of_their_own(daily: Daily) -> None:
    with daily.table.update_spec() as update:
        update.add_field("carrier", IdentityTransform(), "carrier")
    daily.append(daily_rows(*DAYS[:2], carrier="ZZ"))
    chunks = cut(chosen(daily), daily.table.metadata, 2**30)
    assert [{task.partition[0] for task in chunk} for chunk in chunks] == [{1}, {0}]
    assert [len(chunk) for chunk in chunks] == [2, 3]


def test_partitions_are_in_the_order_of_their_paths_whenever_they_were_written(daily: Daily) -> None:
    daily.append(daily_rows("2013-02-01"))
    names = [task.name for task in chosen(daily)]
    assert names[-1] == "day=2013-02-01"
    assert names == sorted(names)


def test_only_the_partitions_that_were_asked_for_are_chosen(daily: Daily) -> None:
    days = [entry.data_file.partition for entry in live(daily.table)]
    assert [task.partition for task in chosen(daily, (0, days[1]))] == [(0, days[1])]
    assert chosen(daily, (5, days[1])) == []
    for n in range(5):
        daily.append(daily_rows(*DAYS[:2], carrier=f"A{n}"))
    assert [task.name for task in chosen(daily, everything=False)] == ["day=2013-01-01", "day=2013-01-02"]
    assert [task.partition for task in chosen(daily, (0, days[1]), everything=False)] == [(0, days[1])]


def test_deletes_come_with_the_files_that_they_may_apply_to_each_once(daily: Daily) -> None:
    file = live(daily.table)[0].data_file
    commit_deletes(daily.table, position_deletes(daily.table, {file.file_path: [0]}))
    tasks = chosen(daily)
    assert [len(task.deletes) for task in tasks] == [1, 0, 0]
    assert len(listed(tasks)) == 4 == len(listed([*tasks, *tasks]))


def test_a_plan_is_found_again_and_a_torn_one_is_not(tmp_path: Path) -> None:
    io, location = PyArrowFileIO(), str(tmp_path / "plan.json")
    assert read_json(io, location, RewritePlan.from_json) is None
    PLAN.write(io, location)
    assert read_json(io, location, RewritePlan.from_json) == PLAN
    Path(location).write_text(Path(location).read_text()[:40])
    assert read_json(io, location, RewritePlan.from_json) is None

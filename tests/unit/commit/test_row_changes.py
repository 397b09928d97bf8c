"""Whether a merge lands on what its table has become: only the part that its changes could meet must be as it was.
Forks are written by PyIceberg here; Spark's are in integration/test_merge.py."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table.snapshots import Operation

from lakehouse_assets.commit.change import RowChanges, Within, predicate
from lakehouse_assets.commit.publish import Published, publish
from lakehouse_assets.commit.staged import StagedChunk, read_all
from lakehouse_assets.commit.strategies import strategy_of
from lakehouse_assets.commit.tokens import TOKEN, RunToken
from lakehouse_assets.declare.modes import Append, Merge, WriteMode
from lakehouse_assets.errors import PublishRefused, StageAgain
from lakehouse_assets.wire.work import Bound, Merged
from tests.support.forks import Daily, daily_rows
from tests.support.light_stage import register
from tests.support.rewrites import compacted

ONE, TWO = "2013-01-01", "2013-01-02"
DAY_ONE = (date(2013, 1, 1) - date(1970, 1, 1)).days
OF_AA = (Bound("carrier", ("AA",)), Bound("day", (), ONE, ONE))
RUN = RunToken("run", datetime.now(UTC))
MERGE = Merge(["carrier"])


def staged(
    daily: Daily,
    *bounds: Bound,
    deletes: str = "",
    inserts: str = "AA",
    token: str | None = RUN.text,
    mode: WriteMode = MERGE,
) -> StagedChunk:
    """A merge that deletes the rows of a carrier, or inserts a row of another on the first day. token: its commit's.
    mode: decides what the fork begins with."""
    named = {TOKEN: token} if token else {}
    target = daily.table
    base = strategy_of(mode).fork(target, RUN.text, time.time_ns() // 1_000_000)
    fork = register(base.location, target.io.properties)
    if deletes:
        fork.delete(EqualTo("carrier", deletes), snapshot_properties=named)
    else:
        fork.append(daily_rows(ONE, carrier=inserts), snapshot_properties=named)
    chunk = daily.stage(RUN.text, 0, [ONE], None)
    receipt = replace(
        chunk.receipt,
        fork_base=base.location,
        base_snapshot_id=base.snapshot_id,
        metadata_location=fork.metadata_location,
        rows=0 if deletes else 1,
        merged=Merged(bounds, changes=1),
    )
    (found,) = read_all(target.io.properties, [receipt])
    return found


def land(daily: Daily, chunk: StagedChunk, *, only_inserts: bool = False) -> Published:
    changes = RowChanges([chunk], Operation.OVERWRITE, only_inserts=only_inserts)
    return publish(daily.catalog, daily.identifier, changes, RUN)


def carriers(daily: Daily) -> list[str]:
    return sorted(daily.table.scan().to_arrow()["carrier"].to_pylist())


@pytest.fixture
def table(tmp_path: Path) -> Daily:
    """A file of AA and one of BB on the first day, and one of AA on the second."""
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    daily = Daily.create(catalog)
    for day, carrier in ((ONE, "AA"), (ONE, "BB"), (TWO, "AA")):
        daily.append(daily_rows(day, carrier=carrier))
    return daily


def test_a_file_counts_only_if_its_bounds_may_hold_a_key(table: Daily) -> None:
    metadata = table.table.metadata
    within = Within(metadata, metadata.schema(), predicate(OF_AA, metadata.schema()))
    found = [task.file for task in table.table.scan().plan_files() if within.has(task.file)]
    assert [(file.partition[0] - DAY_ONE, file.record_count) for file in found] == [(0, 1)]
    listed = table.table.current_snapshot().manifests(table.table.io)
    assert sum(within.may_be_in(m) for m in listed) == 2


@pytest.mark.parametrize(("day", "carrier"), [(ONE, "BB"), (TWO, "AA")], ids=["another key", "another partition"])
def test_it_lands_beside_what_others_add_elsewhere(table: Daily, day: str, carrier: str) -> None:
    chunk = staged(table, *OF_AA)
    table.append(daily_rows(day, carrier=carrier))
    land(table, chunk)
    assert carriers(table) == sorted(["AA", "BB", "AA", "AA", carrier])


def test_it_does_not_land_on_rows_that_others_added(table: Daily) -> None:
    chunk = staged(table, *OF_AA)
    table.append(daily_rows(ONE, carrier="AA"))
    before = carriers(table)
    with pytest.raises(StageAgain, match="1 files that may contain the same rows were added meanwhile"):
        land(table, chunk)
    assert carriers(table) == before


@pytest.mark.parametrize("only_inserts", [False, True], ids=["merge", "append"])
@pytest.mark.parametrize("carrier", ["AA", "BB"])
def test_rows_staged_for_an_empty_table_land_unless_others_gave_it_such_rows(
    table: Daily, carrier: str, *, only_inserts: bool
) -> None:
    empty = Daily.create(table.catalog)
    chunk = staged(empty, *OF_AA)
    assert chunk.receipt.base_snapshot_id is None
    empty.append(daily_rows(ONE, carrier=carrier))
    if carrier == "AA":
        with pytest.raises(StageAgain, match="1 files that may contain the same rows were added meanwhile"):
            land(empty, chunk, only_inserts=only_inserts)
        assert carriers(empty) == ["AA"]
    else:
        land(empty, chunk, only_inserts=only_inserts)
        assert carriers(empty) == ["AA", "BB"]


def test_rows_staged_where_no_file_had_their_keys_do_not_land_on_a_new_one(table: Daily) -> None:
    chunk = staged(table, Bound("carrier", ("CC",)), inserts="CC")
    table.append(daily_rows(ONE, carrier="CC"))
    with pytest.raises(StageAgain, match="1 files that may contain the same rows were added meanwhile"):
        land(table, chunk)
    assert carriers(table) == ["AA", "AA", "BB", "CC"]


def test_it_does_not_land_on_rows_that_others_removed(table: Daily) -> None:
    chunk = staged(table, *OF_AA)
    table.table.delete(EqualTo("carrier", "AA"))
    with pytest.raises(StageAgain, match="1 files that may contain the same rows were replaced meanwhile"):
        land(table, chunk)
    assert carriers(table) == ["BB"]


def test_what_it_removed_goes_and_everything_else_stays(table: Daily) -> None:
    chunk = staged(table, Bound("carrier", ("AA",)), deletes="AA")
    table.append(daily_rows(TWO, carrier="CC"))
    land(table, chunk)
    assert carriers(table) == ["BB", "CC"]
    assert land(table, chunk).repeated


def test_a_merge_that_can_not_name_its_run_lands(table: Daily) -> None:
    """As with Iceberg before 1.11."""
    land(table, staged(table, *OF_AA, token=None))
    assert carriers(table) == ["AA", "AA", "AA", "BB"]


def test_a_merge_of_another_run_is_refused(table: Daily) -> None:
    with pytest.raises(PublishRefused, match=r"has snapshots of the runs .*other.*, expected one of run"):
        staged(table, *OF_AA, token="other")


def test_no_changes_land_whatever_others_do(table: Daily) -> None:
    chunk = staged(table, *OF_AA)
    idle = replace(chunk, files=(), receipt=replace(chunk.receipt, rows=0, merged=Merged()))
    table.append(daily_rows(ONE, carrier="AA"))
    before = carriers(table)
    land(table, idle)
    assert carriers(table) == before


def test_rows_without_a_bound_are_any_of_the_table(table: Daily) -> None:
    chunk = staged(table)
    table.append(daily_rows(TWO, carrier="CC"))
    with pytest.raises(StageAgain):
        land(table, chunk)


def test_an_append_minds_that_a_row_it_may_have_left_out_was_deleted(table: Daily) -> None:
    chunk = staged(table, *OF_AA)
    table.table.delete(EqualTo("carrier", "AA"))
    with pytest.raises(StageAgain, match="1 files that may contain the same rows were replaced meanwhile"):
        land(table, chunk, only_inserts=True)
    assert carriers(table) == ["BB"]


@pytest.mark.parametrize("within", [None, timedelta(days=1)], ids=["all rows", "recent rows"])
def test_an_append_does_not_mind_rows_deleted_elsewhere(table: Daily, within: timedelta | None) -> None:
    chunk = staged(table, *OF_AA, mode=Append(["carrier"], within))
    table.table.delete(EqualTo("carrier", "BB"))
    land(table, chunk, only_inserts=True)
    assert carriers(table) == ["AA", "AA", "AA"]


def test_an_append_minds_rows_deleted_after_a_rewrite_of_their_file(table: Daily) -> None:
    chunk = staged(table, *OF_AA)
    compacted(table, ONE)
    table.table.delete(EqualTo("carrier", "AA"))
    with pytest.raises(StageAgain, match="were replaced meanwhile"):
        land(table, chunk, only_inserts=True)


def test_an_append_does_not_mind_a_rewrite_of_the_rows_it_was_compared_with(table: Daily) -> None:
    chunk = staged(table, *OF_AA)
    compacted(table, ONE)
    land(table, chunk, only_inserts=True)
    assert carriers(table) == ["AA", "AA", "AA", "BB"]


def test_an_append_minds_a_new_row_of_the_same_key(table: Daily) -> None:
    chunk = staged(table, *OF_AA)
    table.append(daily_rows(ONE, carrier="AA"))
    with pytest.raises(StageAgain):
        land(table, chunk, only_inserts=True)


def test_an_append_minds_that_the_rows_it_was_compared_with_were_rolled_back(table: Daily) -> None:
    before = table.table.current_snapshot().parent_snapshot_id
    chunk = staged(table, *OF_AA)
    table.table.manage_snapshots().rollback_to_snapshot(before).commit()
    with pytest.raises(StageAgain, match="was rolled back meanwhile"):
        land(table, chunk, only_inserts=True)


def test_a_bound_that_python_has_no_value_for_excludes_nothing(table: Daily) -> None:
    """Spark's years go on after 9999."""
    far = Bound("day", ("+10000-01-01", ONE)), Bound("carrier", ("AA",))
    table_schema = table.table.schema()
    assert predicate(far, table_schema) == predicate(far[1:], table_schema)


def test_two_workers_that_rewrote_one_file_are_refused(table: Daily) -> None:
    chunk = staged(table, deletes="AA")
    other = replace(chunk, receipt=replace(chunk.receipt, chunk=1))
    changes = RowChanges([chunk, other], Operation.OVERWRITE)
    with pytest.raises(PublishRefused, match="rewritten by more than one worker"):
        publish(table.catalog, table.identifier, changes, RUN)

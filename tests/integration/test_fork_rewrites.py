"""What Spark's rewrite does to a private fork lands on the table as it is by then, and changes no row: deletes of all
kinds, old partition specs, layouts, writers in between, and workers that lie. The op around it is in
test_spark_rewrite.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyspark.sql import SparkSession

from lakehouse_assets.commit.land import Landing
from lakehouse_assets.commit.unit import Rule
from lakehouse_assets.errors import PublishRefused
from tests.support.fork_rewrites import Forks
from tests.support.forks import Daily, daily_rows
from tests.support.outsiders import commit_deletes, equality_deletes, live, live_deletes, multiset, position_deletes
from tests.support.rewrites import landed

pytestmark = pytest.mark.spark

DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")
FIRST, SECOND, THIRD = (f"day={day}" for day in DAYS)
Sessions = Callable[[], SparkSession]


@pytest.fixture
def forks(daily: Daily, worker: Sessions, tmp_path: Path) -> Forks:
    """Three days of three files each, of two rows each."""
    for carrier in ("AA", "BB", "CC"):
        daily.append(daily_rows(*DAYS, carrier=carrier, each=2))
    return Forks(daily, worker(), tmp_path)


def fates(landing: Landing) -> dict[str, Rule | None]:
    return {unit.name: dropped and dropped.rule for unit, dropped in landing.units}


def day_tuple(day: str) -> Record:
    return Record(15706 + DAYS.index(day))  # days since 1970


def files(daily: Daily, day: str) -> list[str]:
    entries = sorted(live(daily.table), key=lambda e: e.sequence_number)
    return [e.data_file.file_path for e in entries if e.data_file.partition == day_tuple(day)]


def test_a_fork_lands_by_partitions_as_one_replacement(forks: Forks) -> None:
    daily = forks.daily
    before, snapshots = multiset(daily.table), len(daily.table.snapshots())
    units = forks.units()
    assert multiset(daily.table) == before and len(daily.table.snapshots()) == snapshots, "nothing is visible yet"
    assert fates(landed(daily, *units)) == {FIRST: None, SECOND: None, THIRD: None}
    assert multiset(daily.table) == before and len(live(daily.table)) == 3
    assert daily.table.current_snapshot().summary.operation is Operation.REPLACE
    (receipt,) = forks.receipts
    assert receipt.said["rewritten_data_files_count"] == 9 and receipt.said["failed_data_files_count"] == 0


def test_rows_deleted_by_position_and_by_value_are_gone_and_their_delete_files_too(forks: Forks) -> None:
    daily = forks.daily
    commit_deletes(daily.table, position_deletes(daily.table, {files(daily, DAYS[0])[0]: [0]}))
    commit_deletes(daily.table, equality_deletes(daily.table, "carrier", ["BB"], day_tuple(DAYS[1])))
    daily.append(daily_rows(DAYS[1], carrier="BB"))  # younger than the delete: it stays
    before = multiset(daily.table)
    assert before.total() == 18 - 1 - 2 + 1

    assert fates(landed(daily, *forks.units())) == {FIRST: None, SECOND: None, THIRD: None}

    assert multiset(daily.table) == before
    assert len(live(daily.table)) == 3 and not live_deletes(daily.table)


def test_a_partition_without_a_row_left_needs_no_file(forks: Forks) -> None:
    daily = forks.daily
    commit_deletes(daily.table, equality_deletes(daily.table, "carrier", ["AA", "BB", "CC"], day_tuple(DAYS[0])))
    before = multiset(daily.table)
    assert fates(landed(daily, *forks.units())) == {FIRST: None, SECOND: None, THIRD: None}
    assert multiset(daily.table) == before and before.total() == 12
    assert len(live(daily.table)) == 2 and not live_deletes(daily.table)


# Writers in between


def test_a_partition_that_was_replaced_meanwhile_is_dropped_and_the_others_land(forks: Forks) -> None:
    daily, units = forks.daily, forks.units()
    daily.publish("run", [DAYS[1]], daily.stage("run", 0, [DAYS[1]], daily_rows(DAYS[1], each=5)))
    before = multiset(daily.table)
    assert fates(landed(daily, *units)) == {FIRST: None, SECOND: Rule.CHANGED, THIRD: None}
    assert multiset(daily.table) == before


def test_rows_deleted_by_position_meanwhile_stay_deleted(forks: Forks) -> None:
    daily, units = forks.daily, forks.units()
    commit_deletes(daily.table, position_deletes(daily.table, {files(daily, DAYS[0])[0]: [0]}))
    before = multiset(daily.table)
    assert fates(landed(daily, *units)) == {FIRST: Rule.DELETED, SECOND: None, THIRD: None}
    assert multiset(daily.table) == before


def test_rows_deleted_by_value_meanwhile_stay_deleted_although_their_partition_lands(forks: Forks) -> None:
    """Added files have the base's sequence number, not the fork's."""
    daily, units = forks.daily, forks.units()
    commit_deletes(daily.table, equality_deletes(daily.table, "carrier", ["BB"], day_tuple(DAYS[0])))
    before = multiset(daily.table)
    assert before.total() == 16
    assert set(fates(landed(daily, *units)).values()) == {None}
    assert multiset(daily.table) == before


def test_forks_of_several_workers_land_together(forks: Forks) -> None:
    daily, before = forks.daily, multiset(forks.daily.table)
    units = forks.units(worker_bytes=1)
    assert len(forks.receipts) == 3
    landing = landed(daily, *units)
    assert fates(landing) == {FIRST: None, SECOND: None, THIRD: None}
    assert multiset(daily.table) == before and len(daily.table.snapshots()) == 4


def test_two_forks_of_one_partition_never_land_together(forks: Forks) -> None:
    units = [*forks.units(FIRST), *forks.units(FIRST)]
    with pytest.raises(PublishRefused, match="removed or added more than once"):
        landed(forks.daily, *units)


# Old partition specs


@pytest.fixture
def evolved(forks: Forks) -> Forks:
    """The three days as they were, and two days of one file each under the newer spec (day, carrier)."""
    daily = forks.daily
    with daily.table.update_spec() as update:
        update.add_field("carrier", IdentityTransform(), "carrier")
    daily.append(daily_rows(*DAYS[:2], carrier="AA", each=2))
    return forks


def test_files_of_an_old_spec_move_to_the_new_one_as_one_unit(evolved: Forks) -> None:
    daily, before = evolved.daily, multiset(evolved.daily.table)
    units = evolved.units(FIRST, SECOND, THIRD)
    assert [unit.name for unit in units] == [f"{FIRST}, {SECOND}, {THIRD}"]
    assert set(fates(landed(daily, *units)).values()) == {None}
    assert multiset(daily.table) == before
    assert {e.data_file.spec_id for e in live(daily.table)} == {daily.table.spec().spec_id}


def test_old_and_new_specs_are_rewritten_apart(evolved: Forks) -> None:
    daily, before = evolved.daily, multiset(evolved.daily.table)
    units = evolved.units()
    assert len(evolved.receipts) == 2
    assert [len(unit.partitions) for unit in units] == [1, 1, 3 + 9]
    assert set(fates(landed(daily, *units)).values()) == {None}
    assert multiset(daily.table) == before


def test_what_moves_is_dropped_whole_if_one_of_its_partitions_changed(evolved: Forks) -> None:
    daily, units = evolved.daily, evolved.units(FIRST, SECOND, THIRD)
    commit_deletes(daily.table, position_deletes(daily.table, {oldest(daily): [0]}))
    before = multiset(daily.table)
    assert set(fates(landed(daily, *units)).values()) == {Rule.DELETED}
    assert multiset(daily.table) == before


def test_values_deleted_meanwhile_in_an_old_partition_do_not_reach_what_moved(evolved: Forks) -> None:
    """An equality delete holds for files of its own spec and partition: moved rows would come back."""
    daily, units = evolved.daily, evolved.units(FIRST, SECOND, THIRD)
    delete = equality_deletes(daily.table, "flights", [1], day_tuple(DAYS[0]))
    delete.spec_id = 0
    commit_deletes(daily.table, delete)
    before = multiset(daily.table)
    assert before.total() == 22 - 3
    assert set(fates(landed(daily, *units)).values()) == {Rule.DELETED}
    assert multiset(daily.table) == before


def test_values_deleted_in_an_old_partition_are_applied_before_its_files_move(evolved: Forks) -> None:
    daily = evolved.daily
    delete = equality_deletes(daily.table, "flights", [1], day_tuple(DAYS[0]))
    delete.spec_id = 0
    commit_deletes(daily.table, delete)
    before = multiset(daily.table)
    assert set(fates(landed(daily, *evolved.units(FIRST, SECOND, THIRD))).values()) == {None}
    assert multiset(daily.table) == before and not live_deletes(daily.table)


def test_values_deleted_in_a_new_partition_do_not_reach_rows_that_move_into_it(evolved: Forks) -> None:
    """They were deleted after the base, among rows that lay elsewhere then."""
    daily, units = evolved.daily, evolved.units(FIRST, SECOND, THIRD)
    commit_deletes(daily.table, equality_deletes(daily.table, "flights", [1], Record(15706, "AA")))
    before = multiset(daily.table)
    assert set(fates(landed(daily, *units)).values()) == {Rule.DELETED}
    assert multiset(daily.table) == before


def oldest(daily: Daily) -> str:
    return min(live(daily.table), key=lambda e: e.sequence_number).data_file.file_path

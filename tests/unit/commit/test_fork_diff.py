"""What of a fork becomes units, and which forks are refused, on forks that PyIceberg changed in one way or another.
Forks that Spark rewrote are in test_fork_rewrites.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, ManifestEntry
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from lakehouse_assets.commit.head_fork import rewritten_units, write_head_fork
from lakehouse_assets.commit.manifests import Entries, ManifestPlan, added_entry
from lakehouse_assets.commit.snapshot import ChangeSnapshot, LeanTransaction
from lakehouse_assets.errors import PublishRefused
from lakehouse_assets.maintenance.rewrite.compact import rewrite
from lakehouse_assets.maintenance.rewrite.plan import plan_rewrites
from lakehouse_assets.wire.receipts import Receipt
from lakehouse_assets.wire.work import Digest, Rewritten
from tests.support.forks import Daily, daily_rows
from tests.support.light_stage import register
from tests.support.manifests import sqlite_catalog
from tests.support.outsiders import live, position_deletes
from tests.support.rewrites import base_of

DAYS = ("2013-01-01", "2013-01-02")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return sqlite_catalog(tmp_path)


@pytest.fixture
def daily(catalog: Catalog) -> Daily:
    """Two days of two files each, of two rows each."""
    daily = Daily.create(catalog)
    for carrier in ("AA", "BB"):
        daily.append(daily_rows(*DAYS, carrier=carrier, each=2))
    return daily


@pytest.fixture
def fork(daily: Daily) -> Table:
    base = write_head_fork(daily.table, base_of(daily), "token", live(daily.table))
    return register(base.location, daily.table.io.properties)


def rewritten(daily: Daily) -> list[DataFile]:
    """A file in place of the two of each day."""
    tasks = plan_rewrites(base_of(daily), daily.table.io, Entries(), min_input_files=2)
    return [file for task in tasks for file in rewrite(base_of(daily), daily.table.io, task).added]


def replace(fork: Table, removed: Sequence[ManifestEntry], added: Sequence[DataFile]) -> None:
    transaction = LeanTransaction(fork)
    plan = ManifestPlan(added=[added_entry(file) for file in added], removed=list(removed))
    stay = [entry for entry in live(fork) if entry not in removed]
    snapshot = fork.current_snapshot()
    plan.kept = [(snapshot.manifests(fork.io)[0], stay)] if stay else []
    ChangeSnapshot(Operation.REPLACE, transaction, fork.io, plan, {}).commit()
    transaction.commit_transaction()


def receipt(daily: Daily, fork: Table, **sums: dict[str, Digest]) -> Receipt:
    (base,) = Path(daily.table.location().removeprefix("file://"), "metadata").glob("*-fork-*.metadata.json")
    return Receipt(
        table=daily.identifier,
        token="token",
        chunk=0,
        work="1",
        fork_base=base.as_uri(),
        metadata_location=fork.refresh().metadata_location,
        created_at="",
        worker="test",
        rewritten=Rewritten(sums.get("before", {}), sums.get("after", {})),
    )


def test_each_partition_is_a_unit_with_the_sums_of_its_own_files(daily: Daily, fork: Table) -> None:
    old, new = live(fork), rewritten(daily)
    replace(fork, old, new)
    before = {entry.data_file.file_path: Digest(2, n, 10 * n, 1 << n) for n, entry in enumerate(old)}
    after = {new[0].file_path: Digest(4, 7, 70, 5)}  # of the other day nothing was read back
    units = rewritten_units(daily.table.io, receipt(daily, fork, before=before, after=after))
    assert [unit.name for unit in sorted(units, key=lambda u: u.name)] == [f"day={day}" for day in DAYS]
    for unit in units:
        mine = [before[entry.data_file.file_path] for entry in unit.removed]
        assert unit.proof.before == sum((Digest(*sums) for sums in mine), Digest())
        assert len(mine) == 2
        assert {entry.data_file.partition for entry in unit.removed} == {file.partition for file in unit.added}
    assert sorted(unit.proof.after.rows for unit in units) == [0, 4]
    assert all(entry.sequence_number for unit in units for entry in unit.removed)


def test_files_that_were_left_are_refused(daily: Daily, fork: Table) -> None:
    replace(fork, live(fork)[:3], rewritten(daily))
    with pytest.raises(PublishRefused, match="still has 1 of the 4 files"):
        rewritten_units(daily.table.io, receipt(daily, fork))


def test_a_fork_that_something_else_was_done_to_is_refused(daily: Daily, fork: Table) -> None:
    fork.append(daily_rows(DAYS[0]))
    with pytest.raises(PublishRefused, match="expected a replacement of files"):
        rewritten_units(daily.table.io, receipt(daily, fork))


def test_a_fork_of_two_commits_is_refused(daily: Daily, fork: Table) -> None:
    replace(fork, live(fork), rewritten(daily))
    fork.refresh().append(daily_rows(DAYS[0]))
    with pytest.raises(PublishRefused, match="expected one commit to"):
        rewritten_units(daily.table.io, receipt(daily, fork))


def test_a_fork_that_was_not_touched_is_refused(daily: Daily, fork: Table) -> None:
    with pytest.raises(PublishRefused, match="expected one commit to"):
        rewritten_units(daily.table.io, receipt(daily, fork))


def test_a_fork_with_a_new_delete_file_is_refused(daily: Daily, fork: Table) -> None:
    path = live(fork)[0].data_file.file_path
    replace(fork, live(fork), [*rewritten(daily), position_deletes(daily.table, {path: [0]})])
    with pytest.raises(PublishRefused, match="has a new delete file"):
        rewritten_units(daily.table.io, receipt(daily, fork))

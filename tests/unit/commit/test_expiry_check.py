"""Which branches and tags a catalog lost with an expiry. Real catalogs: integration/test_expire_commit.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.expire import Expiry, lost_refs, made_on, without_snapshots
from tests.support.forks import Daily, daily_rows
from tests.support.histories import History


@pytest.fixture
def history() -> History:
    """Three snapshots; the first is tagged."""
    history = History()
    history.commits(3)
    history.tag("first", 1)
    return history


def lost(history: History, expiry: Expiry, after: TableMetadata) -> list[str]:
    return list(lost_refs("t", expiry, "before", history.metadata, after))


def without_the_tag(history: History, *gone: int) -> TableMetadata:
    return without_snapshots(history.metadata, gone).model_copy(update={"refs": {"main": history.refs["main"]}})


def test_a_catalog_that_did_what_it_should_is_not_blamed(history: History) -> None:
    kept = without_snapshots(history.metadata, [2])
    assert lost(history, Expiry.of(history.metadata, [2]), kept) == []
    assert lost(history, Expiry.of(history.metadata, [1, 2], ["first"]), without_the_tag(history, 1, 2)) == []


def test_a_tag_lost_with_its_snapshot_is_told(history: History) -> None:
    (fault,) = lost(history, Expiry.of(history.metadata, [1]), without_the_tag(history, 1))
    assert "table t: first was set to a snapshot while that snapshot expired" in fault
    assert "the earlier metadata before" in fault


def test_a_tag_that_somebody_removed_is_no_fault(history: History) -> None:
    assert lost(history, Expiry.of(history.metadata, [2]), without_the_tag(history, 2)) == []


# What it was committed on


@pytest.fixture
def daily(tmp_path: Path) -> Daily:
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=tmp_path.as_uri())
    daily = Daily.create(catalog)
    for n in (1, 2, 3):
        daily.append(daily_rows(f"2013-01-0{n}"))
    return daily


def test_what_it_was_committed_on_is_found_among_other_commits(daily: Daily) -> None:
    planned = daily.table
    expiry = Expiry.of(planned.metadata, [planned.snapshots()[0].snapshot_id])
    daily.table.manage_snapshots().create_tag(planned.snapshots()[1].snapshot_id, "before").commit()
    base = daily.table
    daily.catalog.commit_table(daily.table, (), expiry.updates())
    daily.append(daily_rows("2013-01-04"))
    assert made_on(expiry, planned, daily.table.metadata) == (base.metadata_location, base.metadata)


def test_what_the_plan_saw_stands_for_metadata_that_is_gone_or_not_in_the_log(daily: Daily) -> None:
    planned = daily.table
    expiry = Expiry.of(planned.metadata, [planned.snapshots()[0].snapshot_id])
    daily.append(daily_rows("2013-01-04"))
    between = daily.table.metadata_location
    daily.catalog.commit_table(daily.table, (), expiry.updates())
    now = daily.table.metadata
    Path(between.removeprefix("file://")).unlink()
    assert made_on(expiry, planned, now) == (planned.metadata_location, planned.metadata)
    without_log = now.model_copy(update={"metadata_log": []})
    assert made_on(expiry, planned, without_log) == (planned.metadata_location, planned.metadata)

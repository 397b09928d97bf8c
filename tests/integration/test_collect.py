"""Passes of the collector over real tables: what it finds, when it moves it, and that everything comes back.
Generated tables and orphans are in test_scenarios.py, the rules one by one in tests/unit/collect."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_assets.collect.place import place_of
from lakehouse_assets.collect.trash import Selection
from tests.support.collected import TestSite, local_site, put
from tests.support.forks import Daily, daily_rows

DAY = "2024-01-01"


@pytest.fixture
def site(tmp_path: Path) -> TestSite:
    return local_site(tmp_path)


def folder_of(daily: Daily) -> Path:
    return Path(daily.table.location().removeprefix("file://"))


def test_an_orphan_is_marked_then_due_then_in_the_trash_then_restored(site: TestSite) -> None:
    daily = Daily.create(site.catalog)
    daily.append(daily_rows(DAY, each=1000))
    orphan = put(folder_of(daily) / "data" / "day=2024-01-01" / "left by a dead worker#1.parquet")

    first = site.pass_over(daily.identifier)
    assert (first.unreachable.files, first.due.files, first.trashed.files) == (1, 0, 0)
    site.days = 2.9
    assert site.pass_over(daily.identifier).trashed.files == 0
    site.days = 3.1
    third = site.pass_over(daily.identifier)
    assert (third.trashed.files, third.trashed.size, third.refused, third.problems) == (1, 100, [], [])
    assert not orphan.exists()
    assert daily.counts() == {DAY: 1000}

    table = daily.table
    trash = site.trash(table, daily.identifier, place_of(table.location()))
    assert trash.restore(Selection()).restored == 1
    assert orphan.read_bytes() == b"x" * 100

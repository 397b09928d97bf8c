"""What expired snapshots leave without an owner, on a real table: all of it, and nothing that another one needs."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyiceberg.catalog import load_catalog

from lakehouse_assets.commit.expiry_update import Expiry, without_snapshots
from lakehouse_assets.maintenance.candidates import Candidates, candidates
from tests.support.forks import Daily, daily_rows

DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")


@pytest.fixture
def daily(tmp_path: Path) -> Daily:
    """Two days appended, the first replaced: three snapshots, the first two old."""
    daily = Daily.create(
        load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=tmp_path.as_uri())
    )
    for day in DAYS[:2]:
        daily.append(daily_rows(day))
    daily.publish("run", DAYS[:1], daily.stage("run", 0, DAYS[:1], daily_rows(DAYS[0], each=2)))
    return daily


def local(path: str) -> Path:
    return Path(urlsplit(path).path)


def expired(daily: Daily, *positions: int) -> Candidates:
    before = daily.table.metadata
    gone = [before.snapshots[n].snapshot_id for n in positions]
    return candidates(before, without_snapshots(before, gone), daily.table.io)


def needed(daily: Daily, *positions: int) -> set[str]:
    """Every file that these snapshots need."""
    io = daily.table.io
    kept = [daily.table.snapshots()[n] for n in positions]
    manifests = [m for s in kept for m in s.manifests(io)]
    files = {e.data_file.file_path for m in manifests for e in m.fetch_manifest_entry(io)}
    return {s.manifest_list for s in kept} | {m.manifest_path for m in manifests} | files


def paths(found: Candidates) -> set[str]:
    return set(found.manifest_lists | found.manifests | found.files)


@pytest.mark.parametrize("positions", [(0,), (1,), (0, 1), ()], ids=str)
def test_what_only_expired_snapshots_needed_is_found_and_nothing_else(daily: Daily, positions: tuple[int, ...]) -> None:
    kept = needed(daily, *({0, 1, 2} - set(positions)))
    assert paths(expired(daily, *positions)) == needed(daily, *positions) - kept


def test_a_file_that_was_replaced_is_found_once_no_snapshot_has_it(daily: Daily) -> None:
    assert not expired(daily, 0).files, "the second snapshot needs it"
    (replaced,) = expired(daily, 0, 1).files
    assert f"day={DAYS[0]}" in replaced


def test_a_file_that_a_kept_snapshot_has_in_another_manifest_is_none(daily: Daily) -> None:
    """A rewrite of manifests, as publish makes it for what shares one with a replaced file."""
    daily.append(daily_rows(*DAYS))  # one manifest of three days
    daily.publish("again", DAYS[:1], daily.stage("again", 0, DAYS[:1], daily_rows(DAYS[0])))
    found = expired(daily, 0, 1, 2, 3)
    assert not any(f"day={day}" in path for path in found.files for day in DAYS[1:])
    assert not paths(found) & needed(daily, 4)


def test_a_manifest_list_that_two_snapshots_share_is_needed_as_long_as_one_is_kept(daily: Daily) -> None:
    before = daily.table.metadata
    first, second, third = before.snapshots
    copy = second.model_copy(update={"manifest_list": first.manifest_list})
    before = before.model_copy(update={"snapshots": [first, copy, third]})
    assert not paths(candidates(before, without_snapshots(before, [first.snapshot_id]), daily.table.io))


def test_what_is_gone_already_is_told_and_what_is_needed_must_be_there(daily: Daily) -> None:
    first, second, third = daily.table.snapshots()
    local(first.manifest_list).unlink()
    found = expired(daily, 0, 1)
    assert found.unread == {first.manifest_list} and found.manifest_lists == {first.manifest_list, second.manifest_list}
    local(third.manifest_list).unlink()
    with pytest.raises(FileNotFoundError):
        expired(daily, 0, 1)


def test_statistics_are_candidates_too() -> None:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    from tests.support.histories import History

    history = History()
    history.analyze(1)
    before = history.metadata
    assert Expiry.of(before, [1]).statistics
    assert candidates(before, without_snapshots(before, [1]), PyArrowFileIO()).statistics == {
        "file:///t/metadata/1.stats",
        "file:///t/metadata/1.parquet",
    }

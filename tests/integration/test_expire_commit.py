"""Snapshots expire in one commit on real catalogs, whatever others do meanwhile: no row is lost, time travel is right.
Which snapshots expire is tested in unit/maintenance/test_expiry.py."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.statistics import PartitionStatisticsFile, StatisticsFile
from pyiceberg.table.update import RemoveSnapshotsUpdate, SetPartitionStatisticsUpdate, SetStatisticsUpdate

from lakehouse_assets.commit.expire import Expired, Expiry, ExpiryPolicy, expire, plan_expiry, without_snapshots
from lakehouse_assets.errors import MaintenanceContended, MaintenanceRefused, RolledBack
from tests.support.forks import Daily, daily_rows
from tests.support.histories import NOW, History
from tests.support.proxy import Fault, Proxy
from tests.support.servers import SeaweedFS

DAYS = tuple(f"2013-01-{n:02}" for n in range(1, 10))
FAR = 10**14
"""A time at which all snapshots are old."""
HEAD_ONLY = ExpiryPolicy(minimum=1)


@pytest.fixture
def sqlite(tmp_path: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": tmp_path.as_uri()}


def history(catalog: Catalog, commits: int = 4) -> Daily:
    """A table of so many commits, each a day more."""
    daily = Daily.create(catalog)
    for day in DAYS[:commits]:
        daily.append(daily_rows(day))
    return daily


def plan(policy: ExpiryPolicy = HEAD_ONLY, now_ms: int = FAR) -> Callable[[TableMetadata], Expiry]:
    return lambda metadata: plan_expiry("t", metadata, policy, now_ms).expiry


def expire_old(daily: Daily, policy: ExpiryPolicy = HEAD_ONLY) -> Expired:
    return expire(daily.catalog, daily.identifier, plan(policy))


def ids(daily: Daily) -> list[int]:
    return [snapshot.snapshot_id for snapshot in daily.table.snapshots()]


def files(daily: Daily) -> set[str]:
    io = daily.table.io
    manifests = [m for s in daily.table.snapshots() for m in s.manifests(io)]
    data = {e.data_file.file_path for m in manifests for e in m.fetch_manifest_entry(io)}
    return data | {m.manifest_path for m in manifests} | {s.manifest_list for s in daily.table.snapshots()}


def before_each_commit(monkeypatch: pytest.MonkeyPatch, catalog: Catalog, *meanwhile: Callable[[], None]) -> list[int]:
    """What others do between the plan and the commit, once for each commit that is tried; returns how many were."""
    commit, queue, tried = catalog.commit_table, list(meanwhile), [0]

    def late(*arguments: Any) -> Any:
        tried[0] += 1
        if queue:
            queue.pop(0)()
        return commit(*arguments)

    monkeypatch.setattr(catalog, "commit_table", late)
    return tried


# One commit, and what it leaves


def test_one_commit_expires_all_that_may_go_and_no_row_and_no_file(daily: Daily) -> None:
    for day in DAYS[:5]:
        daily.append(daily_rows(day))
    all_ids, all_files, rows = ids(daily), files(daily), daily.counts()
    base, before = daily.table.metadata_location, daily.table.metadata

    done = expire_old(daily, ExpiryPolicy(minimum=2))

    assert ids(daily) == all_ids[3:]
    assert done.expiry.snapshot_ids == tuple(all_ids[:3])
    assert daily.counts() == rows
    assert (len(done.before.snapshots), len(done.after.snapshots)) == (5, 2)
    assert not done.faults
    after, expected = daily.table.metadata, without_snapshots(before, done.expiry.snapshot_ids)
    assert after.snapshots == expected.snapshots
    assert after.snapshot_log == expected.snapshot_log
    assert after.refs == before.refs
    assert after.properties == before.properties
    io = daily.table.io
    assert all(io.new_input(path).exists() for path in all_files), "the files are the collector's"
    assert io.new_input(base).exists()


def test_a_repetition_commits_nothing(daily: Daily) -> None:
    for day in DAYS[:3]:
        daily.append(daily_rows(day))
    expire_old(daily)
    location = daily.table.metadata_location
    again = expire_old(daily)
    assert again.expiry.is_empty
    assert again.before == again.after
    assert daily.table.metadata_location == location


def test_time_travel_finds_the_right_snapshot_or_none(daily: Daily) -> None:
    for day in DAYS[:4]:
        daily.append(daily_rows(day))
    log = daily.table.history()
    daily.table.manage_snapshots().create_tag(log[0].snapshot_id, "first").commit()

    done = expire_old(daily, ExpiryPolicy(minimum=2))

    assert not done.faults
    now = daily.table
    assert [s.snapshot_id for s in now.snapshots()] == [log[n].snapshot_id for n in (0, 2, 3)]
    found = [now.snapshot_as_of_timestamp(entry.timestamp_ms) for entry in log]
    assert [s and s.snapshot_id for s in found] == [None, None, log[2].snapshot_id, log[3].snapshot_id]
    assert now.scan(snapshot_id=log[0].snapshot_id).count() == 1, "by its tag or id"


def test_statistics_of_expired_snapshots_are_forgotten(daily: Daily) -> None:
    for day in DAYS[:2]:
        daily.append(daily_rows(day))
    table = daily.table
    for snapshot_id in ids(daily):
        path = f"{table.location()}/metadata/{snapshot_id}"
        common = {"snapshot_id": snapshot_id, "file_size_in_bytes": 1}
        full = StatisticsFile(statistics_path=f"{path}.stats", file_footer_size_in_bytes=1, blob_metadata=[], **common)
        daily.catalog.commit_table(table, (), (SetStatisticsUpdate(statistics=full),))
        part = PartitionStatisticsFile(statistics_path=f"{path}.parquet", **common)
        daily.catalog.commit_table(table, (), (SetPartitionStatisticsUpdate(partition_statistics=part),))
    expire_old(daily)
    left = daily.table.metadata
    assert [s.snapshot_id for s in left.statistics] == ids(daily)
    assert [s.snapshot_id for s in left.partition_statistics] == ids(daily)


def test_branches_and_tags_are_kept_by_their_own_ages(daily: Daily) -> None:
    for day in DAYS[:6]:
        daily.append(daily_rows(day))
    first, second, third, fourth, fifth, sixth = ids(daily)
    with daily.table.manage_snapshots() as refs:
        refs.create_tag(first, "for ever")
        refs.create_tag(second, "outlived", max_ref_age_ms=1)
        refs.create_branch(fourth, "audit", min_snapshots_to_keep=2)
    done = expire_old(daily)
    assert not done.faults
    assert done.expiry.refs == ("outlived",)
    assert ids(daily) == [first, third, fourth, sixth]
    assert set(daily.table.refs()) == {"main", "for ever", "audit"}
    assert daily.table.scan(snapshot_id=fourth).count() == 4
    assert fifth not in ids(daily)


def test_metadata_files_stay_even_where_the_table_asks_for_their_deletion(sqlite: dict[str, str]) -> None:
    cleaning = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    daily = Daily.create(load_catalog("lake", **sqlite), cleaning)
    for day in DAYS[:3]:
        daily.append(daily_rows(day))
    metadata = Path(daily.table.location().removeprefix("file://"), "metadata")
    before = set(metadata.iterdir())
    expire_old(daily)
    assert before < set(metadata.iterdir())


# Rolled-back runs


def test_a_rolled_back_run_stays_so_when_its_snapshot_expires(daily: Daily) -> None:
    daily.append(daily_rows(DAYS[0]))
    staged = daily.stage("run", 0, DAYS[1:2], daily_rows(DAYS[1]))
    published = daily.publish("run", DAYS[1:2], staged)
    daily.table.manage_snapshots().set_current_snapshot(snapshot_id=ids(daily)[0]).commit()
    daily.append(daily_rows(DAYS[2]))
    with pytest.raises(RolledBack):
        daily.publish("run", DAYS[1:2], staged)

    done = expire_old(daily)

    assert published.snapshot_id in done.expiry.snapshot_ids
    assert len(ids(daily)) == 1
    with pytest.raises(RolledBack):
        daily.publish("run", DAYS[1:2], staged)
    assert daily.counts() == {DAYS[0]: 1, DAYS[2]: 1}


def test_a_published_run_stays_so_when_its_snapshot_expires(daily: Daily) -> None:
    staged = daily.stage("run", 0, DAYS[:1], daily_rows(DAYS[0]))
    published = daily.publish("run", DAYS[:1], staged)
    daily.append(daily_rows(DAYS[1]))
    expire_old(daily)
    again = daily.publish("run", DAYS[:1], staged)
    assert again.repeated
    assert again.snapshot_id == published.snapshot_id


# What others do between the plan and the commit


def test_a_table_rolled_back_meanwhile_to_what_would_expire_keeps_its_rows(
    daily: Daily, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in DAYS[:3]:
        daily.append(daily_rows(day))
    first, second, third = ids(daily)

    def roll_back() -> None:
        daily.table.manage_snapshots().set_current_snapshot(snapshot_id=second).commit()

    tried = before_each_commit(monkeypatch, daily.catalog, roll_back)
    # The rollback's own commit is the second that is tried.
    done = expire_old(daily)
    assert tried[0] == 3
    assert daily.table.current_snapshot().snapshot_id == second
    assert daily.counts() == dict.fromkeys(DAYS[:2], 1)
    assert ids(daily) == [second]
    assert not done.faults
    assert done.expiry.snapshot_ids == (first, third)


def test_the_naive_way_empties_a_table_that_is_rolled_back_meanwhile(sqlite: dict[str, str]) -> None:
    daily = history(load_catalog("lake", **sqlite), 3)
    table, (first, second, _) = daily.table, ids(daily)
    daily.table.manage_snapshots().set_current_snapshot(snapshot_id=second).commit()
    daily.catalog.commit_table(table, (), (RemoveSnapshotsUpdate(snapshot_ids=[first, second]),))
    assert daily.counts() == {}


@pytest.fixture(params=["sqlite", "glue"])
def client_writes(
    request: pytest.FixtureRequest, sqlite: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Catalog]:
    """The catalogs whose clients write the metadata."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        glue = {"type": "glue", "glue.region": "us-east-1", "warehouse": tmp_path.as_uri()}
        yield load_catalog("lake", **(sqlite if request.param == "sqlite" else glue))


def test_a_snapshot_that_got_a_tag_meanwhile_is_kept_with_it(
    client_writes: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    daily = history(client_writes, 3)
    first, _, third = ids(daily)

    def tag() -> None:
        daily.table.manage_snapshots().create_tag(first, "meanwhile").commit()

    tried = before_each_commit(monkeypatch, daily.catalog, tag)
    done = expire_old(daily)
    assert tried[0] == 3, "with the tag's own"
    assert not done.faults
    assert ids(daily) == [first, third]
    assert daily.table.refs()["meanwhile"].snapshot_id == first


@pytest.mark.server
def test_a_tag_that_a_rest_catalog_loses_is_a_fault(weed: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> None:
    """No requirement of the protocol can say that no ref is new."""
    daily = history(load_catalog("lake", **weed.properties()), 3)
    first, tagged = ids(daily)[0], []

    def tag() -> None:
        daily.table.manage_snapshots().create_tag(first, "meanwhile").commit()
        tagged.append(daily.table.metadata_location)

    before_each_commit(monkeypatch, daily.catalog, tag)
    done = expire_old(daily)
    (fault,) = done.faults
    assert "meanwhile" not in daily.table.refs(), "else the fault must go"
    assert "meanwhile was set to a snapshot while that snapshot expired" in fault
    assert f"earlier metadata {tagged[0]}" in fault
    assert daily.table.io.new_input(tagged[0]).exists()


def test_writers_that_commit_meanwhile_lose_nothing(daily: Daily, catalog_properties: dict[str, str]) -> None:
    days = [f"2013-03-{n:02}" for n in range(1, 5)]
    daily.append(daily_rows(*DAYS))
    staged = {day: daily.stage(f"run-{day}", 0, [day], daily_rows(day, each=2)) for day in days}

    def own() -> Daily:
        return Daily(load_catalog("lake", **catalog_properties), daily.identifier)

    def write(day: str) -> None:
        own().publish(f"run-{day}", [day], staged[day])

    with ThreadPoolExecutor(len(days) + 2) as pool:
        written = [pool.submit(write, day) for day in days]
        expired = [pool.submit(expire_old, own()) for _ in range(2)]
        for future in written:
            future.result()
        faults = [future.result().faults for future in expired]

    assert faults == [(), ()]
    assert daily.counts() == dict.fromkeys(DAYS, 1) | dict.fromkeys(days, 2)
    assert all(daily.publish(f"run-{day}", [day], staged[day]).repeated for day in days)


def test_a_table_that_is_gone_is_refused(sqlite: dict[str, str]) -> None:
    with pytest.raises(MaintenanceRefused, match=r"table nyc\.flights: .* not in the catalog"):
        expire(load_catalog("lake", **sqlite), "nyc.flights", plan())


# Answers that get lost, processes that die


@pytest.mark.server
@pytest.mark.parametrize("fault", Fault)
def test_a_lost_or_forged_answer_is_looked_up(weed: SeaweedFS, wire: Proxy, fault: Fault) -> None:
    daily = history(load_catalog("lake", **weed.properties(wire.uri)), 3)
    first, second, third = ids(daily)
    wire.faults, wire.commits = [fault], 0

    done = expire_old(daily)

    assert wire.commits == (2 if fault is Fault.REFUSED else 1), "a commit that landed is not sent again"
    assert done.expiry.snapshot_ids == (first, second)
    assert ids(daily) == [third]
    assert not done.faults
    assert (len(done.before.snapshots), len(done.after.snapshots)) == (3, 1)


class LosesAnswers(SqlCatalog):
    """Commits, and then others commit, and then it raises an error."""

    meanwhile: Callable[[], None] | None = None

    def commit_table(self, *arguments: Any) -> Any:
        response, meanwhile = super().commit_table(*arguments), self.meanwhile
        if meanwhile:
            self.meanwhile = None
            meanwhile()
            raise ConnectionResetError("no answer")
        return response


def test_a_commit_whose_answer_is_lost_is_found_behind_others(sqlite: dict[str, str]) -> None:
    catalog = LosesAnswers("lake", **sqlite)
    daily = history(catalog, 3)
    first, second, _ = ids(daily)

    def commits() -> None:
        for day in DAYS[3:5]:
            daily.append(daily_rows(day))

    catalog.meanwhile = commits
    done = expire_old(daily)
    assert done.expiry.snapshot_ids == (first, second), "found, not planned anew"
    assert not done.faults
    assert (len(done.before.snapshots), len(done.after.snapshots)) == (3, 3), "with the others' two"
    assert len(ids(daily)) == 3
    assert daily.counts() == dict.fromkeys(DAYS[:5], 1)


class AlwaysConflicts(SqlCatalog):
    def commit_table(self, *arguments: Any) -> Any:
        raise CommitFailedException("somebody else was faster")


def test_attempts_that_run_out_leave_the_table_as_it_was(
    sqlite: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakehouse_assets.commit.publish.ATTEMPTS", 3)
    daily = history(load_catalog("lake", **sqlite), 3)
    location = daily.table.metadata_location
    with pytest.raises(MaintenanceContended, match=r"3 attempts.*somebody else was faster.*next maintenance"):
        expire_old(Daily(AlwaysConflicts("lake", **sqlite), daily.identifier))
    assert daily.table.metadata_location == location


class Dies(SqlCatalog):
    """SIGKILLs its process at the commit, before or after it lands."""

    landed: bool

    def commit_table(self, *arguments: Any) -> Any:
        if self.landed:
            super().commit_table(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)


def expire_and_die(sqlite: dict[str, str], identifier: str, landed: bool) -> None:
    catalog = Dies("lake", **sqlite)
    catalog.landed = landed
    expire_old(Daily(catalog, identifier))


@pytest.mark.parametrize("landed", [False, True], ids=["before the commit", "after the commit"])
def test_after_a_death_around_the_commit_a_repetition_converges(sqlite: dict[str, str], landed: bool) -> None:
    daily = history(load_catalog("lake", **sqlite), 3)
    head = ids(daily)[-1]
    process = multiprocessing.get_context("spawn").Process(
        target=expire_and_die, args=(sqlite, daily.identifier, landed)
    )
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL
    done = expire_old(daily)
    assert done.expiry.is_empty is landed
    assert ids(daily) == [head]
    assert daily.counts() == dict.fromkeys(DAYS[:3], 1)


# Size


def test_most_of_2000_snapshots_expire_in_one_commit_and_one_look(
    sqlite: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = History((tmp_path / "t").as_uri())
    made.commits(2000, apart=0.01)
    (tmp_path / "t.metadata.json").write_text(made.metadata.model_dump_json())
    catalog = load_catalog("lake", **sqlite)
    catalog.create_namespace("nyc")
    catalog.register_table("nyc.flights", (tmp_path / "t.metadata.json").as_uri())
    calls: list[str] = []
    for name in ("load_table", "commit_table"):
        monkeypatch.setattr(catalog, name, _counted(getattr(catalog, name), name, calls))

    policy = ExpiryPolicy(minimum=10, maximum=200, age=timedelta(days=30))
    done = expire(catalog, "nyc.flights", plan(policy, NOW))

    assert (len(done.before.snapshots), len(done.after.snapshots)) == (2000, 200)
    assert calls == ["load_table", "commit_table", "load_table"], "the second look is PyIceberg's, in the commit"


def _counted(call: Callable[..., Any], name: str, calls: list[str]) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        calls.append(name)
        return call(*arguments)

    return counted

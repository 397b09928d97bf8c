"""Passes of the collector over real tables: what it finds, when it moves it, what stops it, and that everything comes
back. Generated tables and orphans are in test_collect_scenarios.py, the rules in tests/unit/maintenance/collect."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from shutil import rmtree
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lakehouse_assets.commit.change import Change
from lakehouse_assets.commit.commit_part import SummaryEntries
from lakehouse_assets.commit.publish import publish
from lakehouse_assets.commit.staged import read_all
from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.environment.aws import s3_client
from lakehouse_assets.errors import StorageRefused
from lakehouse_assets.maintenance.collect.judge import Keep, WhyUnneeded
from lakehouse_assets.maintenance.collect.ledger import Entry
from lakehouse_assets.maintenance.collect.missing import DROP_MISSING, RESTORE
from lakehouse_assets.maintenance.collect.needed import Chain
from lakehouse_assets.maintenance.collect.report import LastLook, Report
from lakehouse_assets.maintenance.collect.trash import Trash, TrashSelection
from lakehouse_assets.storage.place import place_of
from lakehouse_assets.wire.receipts import Receipt
from tests.support.collected import AT_ONCE, DAY_MS, TestSite, aged, local_site, put
from tests.support.faults import read_only, small_disk
from tests.support.forks import SCHEMA, Daily, daily_rows, region
from tests.support.lakes import DAYS, live_files, live_locations, name_file, path_of, write_file
from tests.support.servers import SeaweedFS

DAY, OTHER = "2024-01-01", "2024-01-02"


@pytest.fixture
def site(tmp_path: Path) -> TestSite:
    return local_site(tmp_path / "Lake")  # a name with a capital has another one, its twin


@pytest.fixture
def table(site: TestSite) -> Daily:
    """2,000 rows; whatever belongs to it is old."""
    daily = Daily.create(site.catalog)
    daily.append(daily_rows(DAY, OTHER, each=1000))
    for path in live_files(daily.table):
        aged(path, 60)
    return daily


def folder_of(table: Daily) -> Path:
    return path_of(table.table.location())


def orphan(table: Daily, name: str = "orphan.parquet", size: int = 100, days_old: float = 60) -> Path:
    return put(folder_of(table) / "data" / name, b"x" * size, days_old=days_old)


def passes(site: TestSite, table: Daily, *days: float, **options: Any) -> list[Report]:
    reports = []
    for at in days:
        site.days = at
        reports.append(site.pass_over(table.identifier, **options))
    return reports


def restore_all(site: TestSite, table: Daily) -> int:
    trash = site.trash(table.table, table.identifier, place_of(table.table.location()))
    return trash.restore(TrashSelection()).restored


def leave(site: TestSite, table: Daily, token: str) -> tuple[Path, set[Path]]:
    """A staged chunk with its receipt: the receipt, and everything else that the run left."""
    before = {path for path in folder_of(table).rglob("*") if path.is_file()}
    receipt = table.receipt(token, 0, [DAY], daily_rows(DAY))
    path = put(path_of(site.staging) / table.identifier / token / "00000.json", receipt.to_json().encode(), days_old=1)
    return path, {path for path in folder_of(table).rglob("*") if path.is_file()} - before


def test_an_orphan_is_marked_then_due_then_in_the_trash_then_restored(site: TestSite, table: Daily) -> None:
    path = orphan(table, "left by a dead worker#1.parquet")
    first, early, third = passes(site, table, 0, 2.9, 3.1)
    assert (first.unreachable.files, first.due.files, first.trashed.files) == (1, 0, 0)
    assert (early.unreachable.files, early.due.files, early.trashed.files) == (1, 0, 0)
    assert (third.trashed.files, third.trashed.size, third.refused, third.problems) == (1, 100, [], [])
    assert not path.exists()
    assert table.counts() == {DAY: 1000, OTHER: 1000}
    assert restore_all(site, table) == 1
    assert path.read_bytes() == b"x" * 100
    (again,) = passes(site, table, 6.5)
    assert (again.unreachable.files, again.due.files) == (1, 0), "the grace begins anew"


def test_live_files_that_somebody_deleted_are_told_by_partition_and_run(site: TestSite, table: Daily) -> None:
    change = Change(region(DAY), [table.stage("run-7", 0, [DAY], daily_rows(DAY, each=3))])
    token = RunToken("run-7", datetime.now(UTC))
    publish(table.catalog, table.identifier, change, token, [SummaryEntries({"lakehouse.run-id": "run-7"})])
    tasks = table.table.scan().plan_files()
    by_day = {task.file.file_path.rpartition("day=")[2][: len(DAY)]: task.file.file_path for task in tasks}
    gone, elsewhere = path_of(by_day[DAY]), path_of(by_day[OTHER])
    gone.unlink()
    (told,) = passes(site, table, 0)[0].problems
    assert told.startswith(f"table {table.identifier}: 1 of its live files are not in storage")
    assert f"day={DAY} ({by_day[DAY]}, written by run run-7)" in told
    assert f"day={OTHER}" not in told
    assert "Materialize these partitions again" in told
    assert DROP_MISSING in told
    (dry,) = passes(site, table, 0, dry_run=True)
    assert dry.problems == [told]
    table.publish("run-8", [DAY], table.stage("run-8", 0, [DAY], daily_rows(DAY, each=4)))
    assert passes(site, table, 0)[0].problems == []

    trash = site.trash(table.table, table.identifier, place_of(table.table.location()))
    (file,) = (file for file in site.list_table(table.table, trash.place) if path_of(file.place.location) == elsewhere)
    trash.put([Entry.of(file, "by mistake", 0)], "run-9")
    (told,) = passes(site, table, 0)[0].problems
    assert f"The trash has 1 of them: bring them back with the job {RESTORE}. Otherwise, materialize these" in told
    assert restore_all(site, table) == 1
    assert passes(site, table, 0)[0].problems == []


def test_what_comes_back_after_a_pass_that_failed_midway_waits_for_another_grace(
    site: TestSite, table: Daily, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(trash: Trash, *arguments: Any) -> Any:
        put_away(trash, *arguments)
        raise StorageRefused("503 Slow Down")

    orphan(table)
    passes(site, table, 0)
    put_away = Trash.put
    monkeypatch.setattr(Trash, "put", failing)
    with pytest.raises(StorageRefused):
        passes(site, table, 3.1)
    monkeypatch.undo()
    assert restore_all(site, table) == 1
    later, due = passes(site, table, 3.2, 6.3)
    assert (later.due.files, due.trashed.files) == (0, 1)


def test_a_home_behind_a_link_is_collected_and_no_file_has_two_names(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    site = local_site(tmp_path / "link" / "home")
    table = Daily.create(site.catalog)
    table.append(daily_rows(DAY, OTHER, each=1000))
    by_real_path = (
        tmp_path / "disk/home" / folder_of(table).relative_to(tmp_path / "link/home") / f"data/day={DAYS[2]}/x.parquet"
    )
    table.append(daily_rows(DAYS[2]))
    name_file(table, write_file(table, str(by_real_path)), "")
    for path in live_files(table.table):
        aged(path, 60)
    path = orphan(table)
    reports = passes(site, table, 0, 3.1)
    assert [(report.problems, report.trashed.files) for report in reports] == [([], 0), ([], 1)]
    assert reports[0].unreachable.files == 1
    assert not path.exists()
    assert by_real_path.exists()
    trash = site.trash(table.table, table.identifier, place_of(table.table.location()))
    assert trash.restore(TrashSelection(places=frozenset([place_of(str(path))]))).restored == 1
    assert path.exists()


def test_after_its_time_in_the_trash_it_is_gone_for_good(site: TestSite, table: Daily) -> None:
    orphan(table)
    reports = passes(site, table, 0, 3.1, 6, 7.1)
    assert [report.purged.files for report in reports] == [0, 0, 0, 1]
    assert restore_all(site, table) == 0


def test_what_a_dropped_table_left_in_the_trash_goes_in_its_time(site: TestSite, table: Daily) -> None:
    orphan(table)
    passes(site, table, 0, 3.1)
    other = Daily.create(site.catalog)
    site.catalog.drop_table(table.identifier)
    site.catalog.create_table(table.identifier, SCHEMA)
    late = [passes(site, at, 7.2)[0].purged.files for at in (other, table)]
    assert late == [0, 1]


@pytest.mark.parametrize("broken", [small_disk, read_only])
def test_what_a_dropped_table_left_in_a_broken_storage_stops_no_pass_over_another_of_its_name(
    site: TestSite, table: Daily, broken: Callable[[Path], AbstractContextManager[object]]
) -> None:
    """Its folder is on another disk by now, or its trash is read-only."""
    orphan(table)
    passes(site, table, 0, 3.1)
    uuid, folder = table.table.metadata.table_uuid, folder_of(table)
    site.catalog.drop_table(table.identifier)
    made = site.catalog.create_table(table.identifier, SCHEMA, location=f"{folder.as_uri()}-2")
    path = orphan(table)
    trash = path_of(site.staging) / "collect" / str(uuid) / "trash"
    rmtree(folder)
    with broken(folder if broken is small_disk else trash):
        reports = passes(site, table, 11, 14.1)
        assert not path.exists()
        assert [report.purged.files for report in reports] == ([1, 0] if broken is small_disk else [0, 0])
        for report in reports:
            assert len(report.problems) == (broken is read_only)
            assert all(f"{uuid}" in problem and "mounted read-only" in problem for problem in report.problems)
    assert made.metadata.table_uuid != uuid
    assert passes(site, table, 15)[0].problems == []
    assert not any(trash.rglob("*"))


def test_of_a_table_that_is_not_there_the_trash_has_nothing_before_anything_was_collected(site: TestSite) -> None:
    path_of(site.staging).mkdir()
    assert site.trashes("nyc.nowhere", None) == []


def test_what_cannot_be_taken_keeps_nothing_from_being_purged(
    site: TestSite, table: Daily, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan(table)
    passes(site, table, 0, 3.1)
    orphan(table, "other.parquet")
    passes(site, table, 4)

    def failing(*_: Any) -> None:
        raise StorageRefused("it can't be moved")

    monkeypatch.setattr(Trash, "put", failing)
    with pytest.raises(StorageRefused):
        passes(site, table, 7.2)
    assert not [path for path in path_of(site.staging).glob("collect/*/trash/*/*") if path.is_file()]


def test_a_dry_run_changes_nothing(site: TestSite, table: Daily) -> None:
    path = orphan(table)
    passes(site, table, 0)
    marks = next(path_of(site.staging).rglob("marks")).read_bytes()
    (report,) = passes(site, table, 3.1, dry_run=True)
    assert (report.due.files, report.trashed.files) == (1, 0)
    assert next(path_of(site.staging).rglob("marks")).read_bytes() == marks
    assert path.exists()


def test_a_large_share_is_taken_only_when_it_is_allowed(site: TestSite, table: Daily) -> None:
    path = orphan(table, size=100_000)
    _, refused = passes(site, table, 0, 3.1, allow_large=False)
    (problem,) = refused.problems
    assert refused.is_large
    assert f"table {table.identifier}: 1 files with 8" in problem
    assert "allow_large" in problem
    assert path.exists()
    assert refused.due.files == 1
    assert refused.trashed.files == 0
    (allowed,) = passes(site, table, 3.2)
    assert allowed.trashed.files == 1
    assert (allowed.is_large, allowed.problems) == (False, [])


def test_a_small_share_needs_no_leave(site: TestSite, table: Daily) -> None:
    path = orphan(table, size=100)
    assert passes(site, table, 0, 3.1, allow_large=False)[1].trashed.files == 1
    assert not path.exists()


@pytest.mark.parametrize("state", ["dead", "finished"])
def test_receipts_go_first_and_what_they_name_a_cycle_later(site: TestSite, table: Daily, state: str) -> None:
    token = uuid4().hex
    site.runs[token] = Chain(site.now_ms() - 20 * DAY_MS, unfinished=False, succeeded=state == "finished")
    receipt, staged = leave(site, table, token)
    marked, first, second = passes(site, table, 0, 3.1, 6.2)
    assert {why: tally.files for why, tally in marked.unneeded.items()} == {
        WhyUnneeded.STAGED: 4,
        WhyUnneeded.FORK: 1,
        WhyUnneeded.RECEIPT: 1,
    }
    assert first.trashed.files == 1
    assert not receipt.exists()
    assert second.trashed.files == len(staged) == 5
    assert not any(path.exists() for path in staged)


def test_a_receipt_that_names_a_storage_nobody_knows_stops_no_pass(site: TestSite, table: Daily) -> None:
    text = '{"metadata_location": "strange://bucket/1.metadata.json"}'
    put(path_of(site.staging) / table.identifier / uuid4().hex / "00000.json", text.encode(), days_old=1)
    path = orphan(table)
    assert [report.problems for report in passes(site, table, 0, 3.1)] == [[], []]
    assert not path.exists()


def test_a_run_that_is_resumed_between_the_cycles_keeps_its_files(site: TestSite, table: Daily) -> None:
    token = uuid4().hex
    site.runs[token] = Chain(site.now_ms() - 20 * DAY_MS, unfinished=False, succeeded=False)
    receipt, staged = leave(site, table, token)
    passes(site, table, 0, 3.1)
    assert not receipt.exists()
    site.runs[token] = Chain(site.runs[token].created_ms, unfinished=True, succeeded=False)
    (held,) = passes(site, table, 6.2)
    assert held.kept[Keep.HELD].files == len(staged)
    assert all(path.exists() for path in staged)


def test_a_run_that_is_resumed_during_the_pass_keeps_its_receipts(site: TestSite, table: Daily) -> None:
    token = uuid4().hex
    dead = Chain(site.now_ms() - 20 * DAY_MS, unfinished=False, succeeded=False)
    site.runs[token] = dead
    receipt, _ = leave(site, table, token)
    passes(site, table, 0)
    answers = iter([dead, Chain(dead.created_ms, unfinished=True, succeeded=False)])
    site.chains = lambda tokens: {token: next(answers)}
    (report,) = passes(site, table, 3.1)
    assert receipt.exists()
    assert report.trashed.files == 0
    assert report.refused[0].reason == f"the run {token} was resumed since it was listed"


@pytest.mark.parametrize(
    "name", ["x-fork-abc-12345678.metadata.json.bak", ".00000-fork-abc-12345678.metadata.json.crc"]
)
def test_a_stray_name_like_a_fork_bases_stops_no_pass(site: TestSite, table: Daily, name: str) -> None:
    path = put(folder_of(table) / "metadata" / name)
    passes(site, table, 0, 3.1)
    assert not path.exists()


@pytest.mark.parametrize("torn", ["receipt", "fork", "manifest"])
def test_what_a_held_run_cannot_use_is_no_problem(site: TestSite, table: Daily, torn: str) -> None:
    token = uuid4().hex
    site.runs[token] = Chain(site.now_ms(), unfinished=False, succeeded=False)
    receipt, staged = leave(site, table, token)
    fork = path_of(json.loads(receipt.read_text())["metadata_location"])
    broken = {"receipt": receipt, "fork": fork, "manifest": next(p for p in staged if p.name.endswith("-m0.avro"))}
    broken[torn].write_text("{")
    (report,) = passes(site, table, 0)
    assert not report.problems
    assert report.unreachable.files == 0, "young as it is, it stays"


def test_a_commit_during_the_pass_saves_what_it_names(site: TestSite, table: Daily) -> None:
    path = folder_of(table) / "data" / "day=2024-01-01" / "late.parquet"
    table.append(daily_rows(DAYS[2]))
    aged(Path(write_file(table, str(path))), 60)
    passes(site, table, 0)
    real, calls = site.chains, []

    def commit_before_trash(tokens: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:  # asked once more right before anything is moved
            name_file(table, str(path), "file://")
        return real(tokens)

    site.chains = commit_before_trash
    (report,) = passes(site, table, 3.1)
    assert len(calls) == 2
    assert path.exists()
    assert report.refused[0].reason == "became live since it was listed"


def test_what_became_live_loses_its_mark(site: TestSite, table: Daily) -> None:
    path = folder_of(table) / "data" / "day=2024-01-01" / "back.parquet"
    table.append(daily_rows(DAYS[2]))
    aged(Path(write_file(table, str(path))), 60)
    before = table.table.metadata_location
    passes(site, table, 0)
    name_file(table, str(path), "file://")
    passes(site, table, 1)
    site.catalog.drop_table(table.identifier)
    site.catalog.register_table(table.identifier, before)
    (report,) = passes(site, table, 3.1)
    assert report.due.files == 0
    assert path.exists()


def test_a_file_that_changed_since_it_was_marked_is_marked_anew(site: TestSite, table: Daily) -> None:
    path = orphan(table)
    passes(site, table, 0)
    put(path, b"y" * 100)
    assert passes(site, table, 3.1)[0].due.files == 0


def test_files_that_another_table_names_are_live(site: TestSite, table: Daily) -> None:
    """Spark's add_files and snapshot procedures leave files where they are."""
    other = Daily.create(site.catalog)
    other.append(daily_rows(DAY))
    (file,) = [path for path in live_files(table.table) if path.suffix == ".parquet" and DAY in str(path)]
    other.append(daily_rows(DAYS[2]))
    name_file(other, str(file), "file://")
    site.catalog.drop_table(table.identifier)
    site.catalog.create_table(table.identifier, SCHEMA, location=file.parents[2].as_uri())
    for path in folder_of(table).glob("metadata/*"):
        if path.name not in {p.name for p in live_files(table.table)}:
            path.unlink()  # so that nothing else says that the file was the dropped table's
    _, report = passes(site, table, 0, 3.1)
    assert not report.problems
    assert file.exists()
    assert report.trashed.files > 0, "the dropped table's other file"


def test_what_a_dropped_table_had_published_stays_though_its_receipts_are_there(site: TestSite, table: Daily) -> None:
    token = uuid4().hex
    site.runs[token] = Chain(site.now_ms() - DAY_MS, unfinished=False, succeeded=True)
    receipt = Receipt.from_json(leave(site, table, token)[0].read_text())
    table.publish(token, [DAY], *read_all(table.table.io.properties, [receipt]))
    old, needed = table.table, live_files(table.table)
    site.catalog.drop_table(table.identifier)
    site.catalog.create_table(table.identifier, SCHEMA, location=old.location())
    passes(site, table, 0, 3.1, 6.2)
    assert all(path.exists() for path in needed)
    site.catalog.drop_table(table.identifier)
    site.catalog.register_table(table.identifier, old.metadata_location)
    assert table.counts() == {DAY: 1, OTHER: 1000}


@pytest.mark.parametrize("what", ["manifest", "list"])
@pytest.mark.parametrize("how", ["missing", "torn"])
def test_nothing_is_judged_while_metadata_cannot_be_read(site: TestSite, table: Daily, what: str, how: str) -> None:
    path = orphan(table)
    passes(site, table, 0)
    name = "snap-*.avro" if what == "list" else "*-m0.avro"
    (broken,) = (folder_of(table) / "metadata").glob(name)
    whole = broken.read_bytes()
    broken.unlink() if how == "missing" else broken.write_bytes(whole[:-20])
    (report,) = passes(site, table, 3.1)
    (problem,) = report.problems
    assert problem.startswith(f"table {table.identifier}: ")
    assert broken.name in problem
    assert path.exists()
    assert report.unreachable.files == 0
    broken.write_bytes(whole)
    assert passes(site, table, 3.2)[0].trashed.files == 1


def test_a_table_that_vanishes_or_is_recreated_during_the_pass(site: TestSite, table: Daily) -> None:
    path = orphan(table)
    location = table.table.location()
    passes(site, table, 0)
    site.listed = lambda: site.catalog.drop_table(table.identifier)
    (gone,) = passes(site, table, 3.1)
    (problem,) = gone.problems
    assert problem.startswith(f"table {table.identifier}: it is not in the catalog, so none")
    site.catalog.create_table(table.identifier, SCHEMA, location=location)

    def recreate() -> None:
        site.catalog.drop_table(table.identifier)
        site.catalog.create_table(table.identifier, SCHEMA, location=location)

    site.listed = recreate
    (other,) = passes(site, table, 3.2)
    (problem,) = other.problems
    assert "when its files were listed" in problem
    assert path.exists()


def test_a_table_that_is_not_there_is_a_clear_state(site: TestSite) -> None:
    (problem,) = site.pass_over("nyc.nowhere").problems
    assert problem.startswith("table nyc.nowhere: it is not in the catalog, so none")


def test_the_last_look_is_kept_for_the_health_of_the_table(site: TestSite, table: Daily) -> None:
    orphan(table)
    passes(site, table, 0)
    location = site.notes(table.table.metadata.table_uuid, "look")
    found = LastLook.read(site.staging_io, location)
    assert found
    assert (found.files, found.size, found.due, found.problems) == (1, 100, 0, ())
    path_of(location).write_text('{"version": 1, "at_ms"')
    assert LastLook.read(site.staging_io, location) is None
    path_of(location).unlink()
    assert LastLook.read(site.staging_io, location) is None


@pytest.mark.parametrize("why", ["torn", "overlap", "elsewhere"])
def test_a_pass_that_judges_nothing_keeps_the_numbers_and_tells_its_problem(
    site: TestSite, table: Daily, why: str
) -> None:
    orphan(table)
    (before,) = passes(site, table, 0)
    if why == "torn":
        (manifest,) = (folder_of(table) / "metadata").glob("*-m0.avro")
        manifest.write_bytes(manifest.read_bytes()[:-20])
    if why == "overlap":
        site.catalog.create_table("nyc.within", SCHEMA, location=f"{table.table.location()}/within")
    if why == "elsewhere":
        with table.table.transaction() as transaction:
            transaction.set_properties({"write.data.path": "abfs://container@account/data"})
    location = site.notes(table.table.metadata.table_uuid, "look")
    for dry_run in (True, False):
        (report,) = passes(site, table, 1, dry_run=dry_run)
        found = LastLook.read(site.staging_io, location)
        problems = () if dry_run else tuple(report.problems)
        assert report.problems
        assert found == LastLook(at_ms=before.judged_ms, files=1, size=100, due=0, problems=problems)
    path_of(location).unlink()
    passes(site, table, 2)
    assert LastLook.read(site.staging_io, location) == LastLook(problems=problems), "no pass has judged anything"


def test_marks_are_kept_for_the_files_that_were_written_first(
    site: TestSite, table: Daily, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakehouse_assets.maintenance.collect.collect.MOST", 3)
    paths = [orphan(table, f"{n}.parquet", days_old=50 + n) for n in range(5)]
    first, second, third = passes(site, table, 0, 3.1, 6.2)
    assert [report.unreachable.files for report in (first, second, third)] == [5, 5, 2]
    assert [report.trashed.files for report in (first, second, third)] == [0, 3, 0]
    assert [path.exists() for path in paths] == [True, True, False, False, False]


class OnServer:
    """A table of the REST catalog on S3."""

    def __init__(self, weed: SeaweedFS, catalog: Catalog) -> None:
        self.site = TestSite(catalog, f"{weed.plain}/collect-{uuid4().hex[:8]}")
        self.daily = Daily.create(catalog)
        self.daily.append(daily_rows(DAY, OTHER, each=500))
        self.s3 = s3_client(weed.s3_properties())

    @property
    def place(self) -> Any:
        return place_of(self.daily.table.location())

    def put(self, name: str) -> str:
        key = self.place.child(f"data/{name}").key
        self.s3.put_object(Bucket=self.place.bucket, Key=key, Body=b"x" * 100)
        return key

    def keys(self) -> set[str]:
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.place.bucket, Prefix=self.place.key + "/")
        return {found["Key"] for page in pages for found in page.get("Contents", ())}


@pytest.fixture
def served(weed: SeaweedFS) -> Iterator[OnServer]:
    from pyiceberg.catalog import load_catalog

    served = OnServer(weed, load_catalog("lake", **weed.properties()))
    yield served
    served.site.catalog.drop_table(served.daily.identifier)


def rows(table: Table) -> pa.Table:
    return table.scan().to_arrow().sort_by([("day", "ascending"), ("flights", "ascending")])


@pytest.mark.server
def test_on_s3_everything_reachable_is_there_after_a_pass_and_the_rows_are_the_same(served: OnServer) -> None:
    daily, site = served.daily, served.site
    before, names = rows(daily.table), ["a b.parquet", "hash#1.parquet", "a%2Fb.parquet", "q?x=1.parquet", "é.parquet"]
    orphans = {served.put(name) for name in names}
    reports = passes(site, daily, 0, 0, periods=AT_ONCE)
    assert not [problem for report in reports for problem in report.problems]
    assert reports[1].trashed.files == len(orphans), reports[1].refused
    assert not orphans & served.keys()
    assert {place_of(location).key for location in live_locations(daily.table)} <= served.keys()
    assert rows(daily.table).equals(before)
    assert restore_all(site, daily) == len(orphans)
    assert orphans <= served.keys()

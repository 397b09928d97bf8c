"""Passes of the collector beside tables of other people: how often these are read, and what keeps it from looking.
How tables lie in each other's way is in tests/unit/maintenance/collect/test_neighbours.py."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError, ServerError
from pyiceberg.table import Table

from lakehouse_assets.errors import StorageRefused
from lakehouse_assets.maintenance.collect.collect import collect
from lakehouse_assets.maintenance.collect.neighbours import Neighbours
from lakehouse_assets.maintenance.collect.report import LastLook
from tests.support.collected import TestSite, aged, local_site, put
from tests.support.forks import SCHEMA, Daily, daily_rows
from tests.support.lakes import DAYS, live_files, name_file, path_of, write_file

DAY = "2024-01-01"
OURS, THEIRS = 3, 20


@pytest.fixture
def site(tmp_path: Path) -> TestSite:
    return local_site(tmp_path)


@pytest.fixture
def ours(site: TestSite) -> Daily:
    return old_table(site)


def old_table(site: TestSite) -> Daily:
    """A table with rows, and one file that nobody needs."""
    table = Daily.create(site.catalog)
    table.append(daily_rows(DAY, each=1000))
    for path in live_files(table.table):
        aged(path, 60)
    put(orphan(table))
    return table


def orphan(table: Daily) -> Path:
    return path_of(table.table.location()) / "data" / "orphan.parquet"


def look_of(site: TestSite, table: Daily) -> LastLook | None:
    return LastLook.read(site.staging_io, site.notes(table.table.metadata.table_uuid, "look"))


def loading(
    monkeypatch: pytest.MonkeyPatch, site: TestSite, load: Callable[[Callable[..., Table], Any], Table]
) -> None:
    """Every load of a table goes through ``load``, which gets the catalog's own way and the identifier."""
    monkeypatch.setattr(site.catalog, "load_table", lambda name, real=site.catalog.load_table: load(real, name))


def fails(monkeypatch: pytest.MonkeyPatch, site: TestSite, table: str, error: Exception, times: int = 99) -> None:
    """The catalog fails so many times for the table with that name."""
    failed = []

    def load(real: Callable[..., Table], name: Any) -> Table:
        if name[-1] == table and len(failed) < times:
            failed.append(name)
            raise error
        return real(name)

    loading(monkeypatch, site, load)


def test_other_tables_are_loaded_once_however_many_are_collected(
    site: TestSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = [old_table(site) for _ in range(OURS)]
    for n in range(THEIRS):
        site.catalog.create_table(f"nyc.theirs_{n}", SCHEMA)
    loads = []

    def load(real: Callable[..., Table], name: Any) -> Table:
        loads.append(name)
        return real(name)

    loading(monkeypatch, site, load)
    for table in ours:
        report = collect(site, table.identifier, "run-1", dry_run=True)
        assert not report.problems
        assert report.unreachable.files == 1
    assert len(loads) == OURS + THEIRS + 2 * OURS, "all of them once, and each collected one before and after its files"


def test_what_others_name_is_read_again_before_anything_goes_once_it_is_old(
    site: TestSite, ours: Daily, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakehouse_assets.maintenance.collect.neighbours.FRESH_SECONDS", 0)
    path = orphan(ours)
    path.unlink()
    other = Daily.create(site.catalog)
    other.append(daily_rows(DAYS[2]))
    aged(Path(write_file(ours, str(path))), 60)
    site.pass_over(ours.identifier)
    chains, calls = site.chains, []

    def name_before_trash(tokens: Any) -> Any:
        calls.append(tokens)
        if len(calls) == 2:  # runs are asked for once more right before anything is moved
            name_file(other, str(path), "file://")
        return chains(tokens)  # type: ignore[operator]

    site.chains, site.days = name_before_trash, 3.1
    report = site.pass_over(ours.identifier)
    assert len(calls) == 2
    assert path.exists()
    assert not report.trashed.files
    assert report.refused[0].reason == "became live since it was listed"


def lost(site: TestSite, content: bytes | None) -> None:
    site.catalog.create_table("nyc.theirs", SCHEMA)
    metadata = path_of(site.catalog.load_table("nyc.theirs").metadata_location)
    metadata.unlink()
    if content is not None:
        metadata.write_bytes(content)


def moved(site: TestSite, location: str) -> None:
    """The catalog names a metadata file in another storage."""
    site.catalog.create_table("nyc.theirs", SCHEMA)
    with sqlite3.connect(site.catalog.properties["uri"].removeprefix("sqlite:///")) as database:
        database.execute(
            "UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = 'theirs'",
            (f"{location}/theirs/metadata/00000-0b8b3c1e-0000-0000-0000-000000000000.metadata.json",),
        )


def without_manifest(site: TestSite, location: Path | None = None) -> Path:
    site.catalog.create_table("nyc.theirs", SCHEMA, location=location.as_uri() if location else None)
    other = Daily(site.catalog, "nyc.theirs")
    other.append(daily_rows(DAY))
    manifest = next(path for path in live_files(other.table) if path.name.endswith("-m0.avro"))
    manifest.unlink()
    return manifest


def folder_for_manifest(site: TestSite) -> None:
    without_manifest(site).mkdir()


UNREADABLE: dict[str, Callable[[TestSite], None]] = {
    "missing": lambda site: lost(site, None),
    "torn": lambda site: lost(site, b"torn {"),
    "manifest": without_manifest,
    "folder": folder_for_manifest,
    "azure": lambda site: moved(site, "abfss://container@account.invalid/warehouse"),
    "out of reach": lambda site: moved(site, "s3://somebodys/warehouse"),
    "unknown storage": lambda site: moved(site, "strange://somebodys/warehouse"),
}


@pytest.mark.parametrize("how", UNREADABLE)
def test_a_table_that_cannot_be_read_is_noted_and_stops_only_tables_whose_folders_others_may_share(
    site: TestSite, ours: Daily, how: str
) -> None:
    site.catalog.properties |= {"s3.endpoint": "http://127.0.0.1:1", "s3.region": "us-east-1"}
    UNREADABLE[how](site)
    refused(site, ours)
    site.exclusive_prefix = path_of(ours.table.location()).parent.as_uri()
    assert collected(site, ours)


@pytest.mark.parametrize("error", [ForbiddenError("may not be read"), ServerError("500"), NoSuchTableError("404")])
def test_so_is_one_that_the_catalog_does_not_load(
    site: TestSite, ours: Daily, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    site.catalog.create_table("nyc.theirs", SCHEMA)
    fails(monkeypatch, site, "theirs", error)
    refused(site, ours)
    site.exclusive_prefix = path_of(ours.table.location()).as_uri()
    assert collected(site, ours)


def refused(site: TestSite, table: Daily) -> None:
    report = site.pass_over(table.identifier)
    (problem,) = report.problems
    assert "nyc.theirs can't be read" in problem
    assert "LAKEHOUSE_EXCLUSIVE_PREFIX" in problem
    assert problem.endswith("None of its files is judged until that is fixed")
    assert report.judged_ms is None
    assert look_of(site, table) == LastLook(problems=(problem,))


def collected(site: TestSite, table: Daily) -> bool:
    for site.days in (0, 3.1):
        report = site.pass_over(table.identifier)
        assert not report.problems
    return report.trashed.files == 1 and not orphan(table).exists()


def test_a_prefix_frees_no_table_outside_of_it_and_none_that_lies_in_the_way(site: TestSite, ours: Daily) -> None:
    where = path_of(ours.table.location())
    without_manifest(site, where / "data" / "within")
    for exclusive_prefix in (f"{where}x", f"{where}/data"):
        site.exclusive_prefix = exclusive_prefix
        messages = site.pass_over(ours.identifier).problems
        assert len(messages) == 2
        assert "can't be read" in messages[0]
        assert "is inside" in messages[1]
    site.exclusive_prefix = str(where)
    (problem,) = site.pass_over(ours.identifier).problems
    assert "is inside" in problem, "where the table lies is known, though not what it names"


def test_what_a_table_that_can_be_read_names_stays_whatever_is_declared(site: TestSite, ours: Daily) -> None:
    other = Daily.create(site.catalog)
    other.append(daily_rows(DAYS[2]))
    name_file(other, str(orphan(ours)), "file://")
    site.exclusive_prefix = str(path_of(ours.table.location()).parent)
    assert not collected(site, ours)
    assert orphan(ours).exists()


def test_what_lay_in_a_tables_own_folders_is_named_once_these_are_others(
    site: TestSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakehouse_assets.maintenance.collect.neighbours.FRESH_SECONDS", 0)
    table, folder = Daily.create(site.catalog), tmp_path / "elsewhere"
    with table.table.transaction() as transaction:
        transaction.set_properties({"write.data.path": f"file://{folder}"})
    table.append(daily_rows(DAY))
    neighbours = Neighbours(site.catalog)
    neighbours.look()
    assert not neighbours.named_by_others("another table")
    with table.table.transaction() as transaction:
        transaction.remove_properties("write.data.path")
    neighbours.look()
    named = {path_of(location) for location in neighbours.named_by_others("another table")}
    assert named == {path for path in live_files(table.table) if path.is_relative_to(folder)} != set()


def test_files_in_storage_that_is_no_place_of_ours_keep_nothing_from_being_collected(
    site: TestSite, ours: Daily
) -> None:
    other = Daily.create(site.catalog)
    path = write_file(other, f"{path_of(other.table.location())}/data/elsewhere.parquet")
    other.append(daily_rows(DAYS[2]))
    name_file(other, path, "hdfs://namenode")
    with other.table.transaction() as transaction:
        transaction.set_properties({"write.data.path": "abfss://container@account/data"})
    assert collected(site, ours)


def test_an_error_that_passes_keeps_nothing_from_being_collected(
    site: TestSite, ours: Daily, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.catalog.create_table("nyc.theirs", SCHEMA)
    fails(monkeypatch, site, "theirs", ServerError("500"), times=1)
    assert collected(site, ours)


def test_a_table_that_was_dropped_since_it_was_listed_keeps_nothing_from_being_collected(
    site: TestSite, ours: Daily, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.catalog.create_table("nyc.theirs", SCHEMA)

    def load(real: Callable[..., Table], name: Any) -> Table:
        if name[-1] == "theirs":
            site.catalog.drop_table("nyc.theirs")
        return real(name)

    loading(monkeypatch, site, load)
    assert collected(site, ours)


@pytest.mark.parametrize("step", ["list_table", "list_receipts", "now_ms", "trash", "neighbours"])
def test_what_ends_a_pass_is_noted(site: TestSite, ours: Daily, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    site.pass_over(ours.identifier)
    before = look_of(site, ours)

    def refuse(*_: object) -> None:
        raise StorageRefused("503 Slow Down")

    where = (Neighbours, "look") if step == "neighbours" else (TestSite, step)
    site.days = 3.1
    monkeypatch.setattr(*where, refuse)
    with pytest.raises(StorageRefused):
        site.pass_over(ours.identifier)
    found = look_of(site, ours)
    assert found
    assert before
    assert ours.identifier in found.problems[0]
    assert "503 Slow Down" in found.problems[0]
    assert found.files == before.files == 1
    monkeypatch.undo()
    site.pass_over(ours.identifier)
    after = look_of(site, ours)
    assert after
    assert after.problems == ()
    assert after.files == 0

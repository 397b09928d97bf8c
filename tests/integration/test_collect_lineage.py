"""Tables that more than one catalog has: what a pass does beside copies, restored backups and catalogs that moved on.
The decision alone is in tests/unit/maintenance/collect/test_lineage.py."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import StaticTable, Table

from lakehouse_assets.commit.fork import FORK_PROPERTIES
from lakehouse_assets.commit.owner import TAKE_OVER, OwnerMark, mark_location, read_mark, write_mark
from lakehouse_assets.maintenance.collect.judge import Keep
from lakehouse_assets.maintenance.collect.report import Report
from tests.support.collected import aged, local_site, put
from tests.support.forks import SCHEMA, Daily, daily_rows
from tests.support.lakes import live_files, path_of

DAYS = ["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04", "2024-01-05", "2024-01-06"]


class Home:
    """A catalog with a staging prefix; table: of its catalog."""

    def __init__(self, folder: Path, identifier: str | None = None) -> None:
        self.folder = folder
        self.site = local_site(folder)
        self.table = Daily(self.site.catalog, identifier) if identifier else Daily.create(self.site.catalog)

    def copied(self) -> Home:
        """``cp -r`` of the home: its catalog names the places of the original's files."""
        folder = self.folder.with_name("copy")
        shutil.copytree(self.folder, folder)
        return Home(folder, self.table.identifier)

    def goes_on(self, commits: int = 3) -> None:
        for day in DAYS[:commits]:
            self.table.append(daily_rows(day, each=10))

    def collects(self) -> list[Report]:
        """Three passes, long after everything was written: enough for all that a pass would take."""
        for path in path_of(self.table.table.location()).rglob("*"):
            aged(path, 60)
        reports = []
        for days in (0, 3.1, 6.2):
            self.site.days = days
            reports.append(self.site.pass_over(self.table.identifier))
        return reports


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Five commits; the first table of a lake."""
    home = Home(tmp_path / "home")
    home.goes_on(5)
    return home


def assert_refused(reports: list[Report], table: Table, *readers: Table) -> None:
    """Nothing went, readers have their rows, and the first problem names the other's newest metadata. table: theirs."""
    for reader in readers:
        assert all(path.exists() for path in live_files(reader))
        assert reader.scan().to_arrow().num_rows == int(reader.current_snapshot().summary["total-records"])
    for report in reports:
        (problem,) = report.problems
        assert str(path_of(table.metadata_location)) in problem
        assert f"table {report.identifier}: " in problem
        assert "another catalog has the table" in problem
        assert (report.judged_ms, report.trashed.files) == (None, 0)


def test_a_copy_takes_nothing_of_the_original_that_goes_on(home: Home) -> None:
    copy = home.copied()
    home.goes_on()
    assert_refused(copy.collects(), home.table.table, home.table.table, copy.table.table)


def test_the_original_takes_nothing_of_a_copy_that_goes_on(home: Home) -> None:
    copy = home.copied()
    copy.goes_on()
    assert_refused(home.collects(), copy.table.table, home.table.table, copy.table.table)


@pytest.mark.parametrize("log", ["100", "1"], ids=["long log", "log shorter than what they did apart"])
def test_where_both_go_on_neither_takes_anything(home: Home, log: str) -> None:
    with home.table.table.transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": log})
    copy = home.copied()
    for one in (home, copy, home, copy):
        one.goes_on()
    assert_refused(home.collects(), copy.table.table, home.table.table, copy.table.table)
    assert_refused(copy.collects(), home.table.table, home.table.table, copy.table.table)


def test_a_catalog_that_was_restored_from_a_backup_takes_nothing_that_it_has_forgotten(home: Home) -> None:
    shutil.copy(home.folder / "catalog.db", home.folder / "backup.db")
    home.goes_on()
    lost = StaticTable.from_metadata(home.table.table.metadata_location)
    home.site.catalog.close()
    shutil.copy(home.folder / "backup.db", home.folder / "catalog.db")
    restored = Home(home.folder, home.table.identifier)
    assert restored.table.table.metadata_location != lost.metadata_location
    assert_refused(restored.collects(), lost, lost, restored.table.table)


def test_an_old_schedule_takes_nothing_of_a_table_that_moved_to_a_new_catalog(home: Home, tmp_path: Path) -> None:
    new = load_catalog("new", type="sql", uri=f"sqlite:///{tmp_path}/new.db", warehouse=(tmp_path / "new").as_uri())
    new.create_namespace("nyc")
    new.register_table(home.table.identifier, home.table.table.metadata_location)
    moved = Daily(new, home.table.identifier)
    for day in DAYS[:3]:
        moved.append(daily_rows(day))
    assert_refused(home.collects(), moved.table, moved.table, home.table.table)


def test_a_single_commit_that_the_catalog_lacks_keeps_what_it_names_and_stops_nothing(home: Home) -> None:
    """It may be one that failed: the line shows no more of it."""
    copy = home.copied()
    copy.goes_on(1)
    orphan = put(path_of(home.table.table.location()) / "data" / "orphan.parquet")
    reports = home.collects()
    assert not [problem for report in reports for problem in report.problems]
    assert reports[0].kept[Keep.FOREIGN].files >= 4, "metadata, its list, its manifest, its rows"
    assert all(path.exists() for path in live_files(copy.table.table))
    assert not orphan.exists()


def test_commits_that_failed_stop_no_pass(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that came second, between their metadata and their turn in the catalog."""
    catalog, others = home.site.catalog, iter(DAYS[:1])
    write = catalog._write_metadata

    def write_and_be_overtaken(**arguments: Any) -> None:
        write(**arguments)
        if day := next(others, None):
            home.table.append(daily_rows(day))

    monkeypatch.setattr(catalog, "_write_metadata", write_and_be_overtaken)
    for day in DAYS[3:5]:
        others = iter([day])
        with pytest.raises(CommitFailedException):
            home.table.table.transaction().set_properties({"late": "1"}).commit_transaction()
    monkeypatch.undo()
    named = {path_of(entry.metadata_file) for entry in home.table.table.metadata.metadata_log}
    left = set(_metadata_files(home)) - named - {path_of(home.table.table.metadata_location)}
    assert len(left) == 2
    orphan = put(path_of(home.table.table.location()) / "data" / "orphan.parquet")
    assert not [problem for report in home.collects() for problem in report.problems]
    assert not orphan.exists()
    assert all(path.exists() for path in left)


def test_commits_that_fail_again_and_again_are_not_kept_for_ever(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in fewer commits than the log remembers: what one keeps must not have the one before it kept."""
    with home.table.table.transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "4", "commit.retry.num-retries": "0"})
    catalog, counts = home.site.catalog, []
    write = catalog._write_metadata

    def write_and_be_overtaken(**arguments: Any) -> None:
        write(**arguments)
        monkeypatch.undo()
        home.goes_on(3)

    for _ in range(7):
        monkeypatch.setattr(catalog, "_write_metadata", write_and_be_overtaken)
        with pytest.raises(CommitFailedException):
            home.table.append(daily_rows(DAYS[5]))
        assert not [problem for report in home.collects() for problem in report.problems]
        counts.append(len(_metadata_files(home)))
    assert max(counts[3:]) <= max(counts[:4]), counts


def test_a_fork_of_other_code_is_no_other_catalogs(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had other properties, and its worker died before it told of it."""
    with monkeypatch.context() as patch:
        patch.delitem(FORK_PROPERTIES, "write.wap.enabled")
        home.table.receipt("token", 0, DAYS[:1], daily_rows(DAYS[0]))
    orphan = put(path_of(home.table.table.location()) / "data" / "orphan.parquet")
    assert not [problem for report in home.collects() for problem in report.problems]
    assert not orphan.exists()


def _metadata_files(home: Home) -> list[Path]:
    return list(path_of(home.table.table.location()).glob("metadata/*.metadata.json"))


def test_what_the_log_has_forgotten_goes_as_before(home: Home) -> None:
    with home.table.table.transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "2"})
    home.goes_on(4)
    reports = home.collects()
    assert not [problem for report in reports for problem in report.problems]
    assert len(_metadata_files(home)) == 3, "the table's own and the two of its log"


def test_the_first_catalog_that_collects_marks_the_table_and_no_other_one_collects_it(home: Home) -> None:
    """Where both forget the time before they parted, and the one has been still for long, only the mark tells."""
    home.collects()
    mark = read_mark(home.table.table)
    assert mark
    assert mark.catalog == f"lake in {home.folder}/catalog.db"
    assert mark.settled_ms == 0
    copy = home.copied()
    for report in copy.collects():
        (problem,) = report.problems
        assert mark.catalog in problem
        assert TAKE_OVER in problem
        assert problem.endswith("None of its files is judged until then")
        assert report.trashed.files == 0
    assert not [problem for report in home.collects() for problem in report.problems]
    assert read_mark(home.table.table) == mark, "it is written once"


def test_a_mark_is_seen_where_the_home_lies_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    home = Home(tmp_path / "link" / "home")
    home.goes_on(2)
    write_mark(home.table.table, replace(OwnerMark.of(home.table.table), catalog="another catalog"))
    (problem,) = home.collects()[0].problems
    assert "says that the table belongs to another catalog, another catalog; " in problem


def test_who_takes_a_table_over_collects_what_the_other_one_did_until_then(home: Home) -> None:
    copy = home.copied()
    copy.goes_on()
    home.goes_on()
    assert home.collects()[0].problems
    theirs, left = live_files(copy.table.table), live_files(home.table.table)
    write_mark(home.table.table, OwnerMark.of(home.table.table, home.site.now_ms()))
    for path in theirs:
        aged(path, 60)
    assert not [problem for report in home.collects() for problem in report.problems]
    assert {path for path in theirs | left if path.exists()} == left
    with pytest.raises(FileNotFoundError):
        copy.table.table.scan().to_arrow()


def test_a_take_over_settles_nothing_of_what_comes_later(home: Home) -> None:
    write_mark(home.table.table, OwnerMark.of(home.table.table, 1))
    copy = home.copied()
    copy.goes_on()
    for path in path_of(home.table.table.location()).rglob("*"):
        assert path.stat().st_mtime > 1
    assert_refused(home.collects(), copy.table.table, copy.table.table)


@pytest.mark.parametrize("torn", ["", "{", '{"version": 1}', '{"version": 2, "catalog": "x"}', "[]"])
def test_a_mark_that_is_torn_or_of_a_table_before_counts_as_none(home: Home, torn: str) -> None:
    path = put(path_of(mark_location(home.table.table.location())), torn.encode())
    assert not home.collects()[-1].problems
    assert OwnerMark.of(home.table.table) == read_mark(home.table.table), "it is written anew"
    location = home.table.table.location()
    home.site.catalog.drop_table(home.table.identifier)
    home.site.catalog.create_table(home.table.identifier, SCHEMA, location=location)
    assert path.exists()
    assert read_mark(home.table.table) is None


def test_a_dry_run_leaves_no_mark(home: Home) -> None:
    home.site.pass_over(home.table.identifier, dry_run=True)
    assert read_mark(home.table.table) is None

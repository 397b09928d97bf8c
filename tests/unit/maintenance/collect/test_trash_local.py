"""Files of a local table go into the trash and come back, whatever their names are, whenever the process is killed."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lakehouse_assets.errors import ForeignVersion, StorageRefused
from lakehouse_assets.maintenance.collect import bins, listing
from lakehouse_assets.maintenance.collect.bins import CHANGED, GONE, LOST, OTHER
from lakehouse_assets.storage.place import place_of
from tests.support.faults import fill, read_only, small_disk
from tests.support.trash import NAMES, RUN, Shelf


def shelf_in(folder: Path, names: tuple[str, ...] = NAMES) -> Shelf:
    root = folder / "wh" / "t"
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return Shelf({}, (folder / "staging").as_uri(), str(root))


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return shelf_in(tmp_path)


def contents(shelf: Shelf) -> dict[str, bytes]:
    root = Path(shelf.root)
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def held(tmp_path: Path) -> list[bytes]:
    return sorted(p.read_bytes() for p in (tmp_path / "staging").glob("collect/*/trash/*/*") if p.is_file())


def everything() -> dict[str, bytes]:
    return {name: name.encode() for name in NAMES}


def test_files_of_any_name_go_and_come_back_with_their_times(shelf: Shelf, tmp_path: Path) -> None:
    before = shelf.listed()
    report = shelf.put()
    assert (report.files, report.size) == (len(NAMES), sum(len(name.encode()) for name in NAMES))
    assert contents(shelf) == {}
    assert held(tmp_path) == sorted(everything().values())
    back = shelf.restore()
    assert (back.restored, back.size, back.there, back.lost) == (len(NAMES), report.size, 0, ())
    assert contents(shelf) == everything()
    assert shelf.listed() == before


def test_only_what_is_due_goes(shelf: Shelf) -> None:
    name = "data/keep#1.parquet"
    report = shelf.put([found for found in shelf.listed() if found.place.key.endswith(name)])
    assert report.files == 1
    assert shelf.names() == set(NAMES) - {name}


def test_names_that_are_no_text_go_and_come_back(tmp_path: Path) -> None:
    name = os.fsdecode(b"data/\xff\xfe")
    shelf = shelf_in(tmp_path, ())
    path = Path(shelf.root) / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"1")
    assert shelf.put().files == 1
    assert not path.exists()
    assert shelf.restore().restored == 1
    assert path.read_bytes() == b"1"


@pytest.mark.parametrize("change", ["rewritten", "grown", "gone", "a folder", "a link"])
def test_what_changed_since_it_was_listed_stays(shelf: Shelf, change: str) -> None:
    due, path = shelf.listed(), Path(shelf.root) / "data/keep"
    modified = path.stat().st_mtime_ns
    match change:
        case "rewritten":  # same size, same time
            path.rename(path.with_name("aside"))
            path.write_bytes(b"DATA/KEEP")
            os.utime(path, ns=(modified, modified))
        case "grown":
            path.write_bytes(b"data/keep, longer")
        case _:
            path.unlink()
    if change == "a folder":
        path.mkdir()
    if change == "a link":
        path.symlink_to("a b")
    report = shelf.put(due)
    (kept,) = report.kept
    assert (kept.place.key, kept.reason) == (str(path), GONE if change == "gone" else CHANGED)
    assert report.files == len(NAMES) - 1
    assert os.path.lexists(path) == (change != "gone")
    assert shelf.restore().restored == len(NAMES) - 1


def test_what_changed_is_not_moved_for_a_moment(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    due, moved, rename = shelf.listed(), [], os.rename

    def told(source: str, target: str) -> None:
        moved.append(source)
        rename(source, target)

    (Path(shelf.root) / "data/keep").write_bytes(b"new")
    monkeypatch.setattr(bins.os, "rename", told)
    shelf.put(due)
    assert len(moved) == len(NAMES) - 1
    assert f"{shelf.root}/data/keep" not in moved


def test_a_file_written_between_the_comparison_and_the_move_goes_back(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def late(source: str, target: str) -> None:
        if source.endswith("data/keep"):
            Path(source).unlink()
            Path(source).write_bytes(b"new")
        rename(source, target)

    due = shelf.listed()
    monkeypatch.setattr(bins.os, "rename", late)
    assert [kept.reason for kept in shelf.put(due).kept] == [CHANGED]
    assert contents(shelf) == {"data/keep": b"new"}


def test_a_file_of_another_content_is_never_overwritten(shelf: Shelf, tmp_path: Path) -> None:
    path = Path(shelf.root) / "data/keep"
    modified = path.stat().st_mtime_ns
    shelf.put()
    path.write_bytes(b"DATA/KEEP")
    os.utime(path, ns=(modified, modified))  # same size, same time
    report = shelf.restore()
    assert [(lost.place.key, lost.reason) for lost in report.lost] == [(str(path), OTHER)]
    assert path.read_bytes() == b"DATA/KEEP"
    assert held(tmp_path) == [b"data/keep"]
    path.unlink()
    assert shelf.restore().restored == 1
    assert contents(shelf) == everything()


def test_an_identical_file_that_is_there_is_enough(shelf: Shelf) -> None:
    shelf.put()
    path = Path(shelf.root) / "data/keep"
    path.write_bytes(b"data/keep")
    report = shelf.restore()
    assert (report.restored, report.there, report.lost) == (len(NAMES) - 1, 1, ())


def test_a_file_that_appears_while_it_is_brought_back_stays(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def late(source: str, target: str, **more: Any) -> None:
        if target.endswith("data/keep"):
            Path(target).write_bytes(b"new")
        link(source, target, **more)

    shelf.put()
    monkeypatch.setattr(bins.os, "link", late)
    assert [lost.reason for lost in shelf.restore().lost] == [OTHER]
    assert (Path(shelf.root) / "data/keep").read_bytes() == b"new"


def test_without_hard_links_files_come_back_as_well(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    shelf.put()
    (Path(shelf.root) / "data/keep").write_bytes(b"new")
    monkeypatch.setattr(bins.os, "link", refused)
    report = shelf.restore()
    assert (report.restored, [lost.reason for lost in report.lost]) == (len(NAMES) - 1, [OTHER])
    assert contents(shelf) == everything() | {"data/keep": b"new"}


def test_restoring_twice_changes_nothing(shelf: Shelf) -> None:
    shelf.put()
    shelf.restore()
    again = shelf.restore()
    assert (again.restored, again.there, again.lost) == (0, 0, ())
    assert contents(shelf) == everything()


def test_what_is_brought_back_may_go_again(shelf: Shelf) -> None:
    shelf.put()
    shelf.restore()
    assert shelf.put().files == len(NAMES)
    assert shelf.restore().restored == len(NAMES)
    assert contents(shelf) == everything()


def test_a_run_a_folder_or_a_file_comes_back_alone(shelf: Shelf) -> None:
    days, others = ([f for f in shelf.listed() if ("day=" in f.place.key) == chosen] for chosen in (True, False))
    shelf.put(days, "run-2")
    shelf.put(others)
    assert shelf.restore(run="run-2").restored == 1
    assert shelf.names() == {"data/day=2013-01-01/1.parquet"}
    assert shelf.restore(places=frozenset({shelf.place.child("data/p")})).restored == 1, "no p%2Fq"
    assert shelf.restore(places=frozenset({shelf.place.child("data/keep")})).restored == 1
    assert shelf.names() == {"data/day=2013-01-01/1.parquet", "data/p/q", "data/keep"}
    assert shelf.restore(run="run-2", places=frozenset({shelf.place.child("metadata")})).restored == 0
    assert shelf.restore(run=RUN).restored == len(NAMES) - 3


def test_purge_takes_what_is_past_its_time_and_nothing_else(shelf: Shelf, tmp_path: Path) -> None:
    until = shelf.put().until_ms
    assert shelf.purge(until - 1).files == 0
    assert held(tmp_path) == sorted(everything().values())
    purged = shelf.purge(until)
    assert (purged.files, purged.size, purged.kept) == (len(NAMES), sum(len(n.encode()) for n in NAMES), ())
    assert held(tmp_path) == []
    assert shelf.purge(until).files == 0
    report = shelf.restore()
    assert (report.restored, report.lost) == (0, ())


def test_purge_leaves_what_was_brought_back(shelf: Shelf) -> None:
    until = shelf.put().until_ms
    shelf.restore(places=frozenset({shelf.place.child("metadata")}))
    assert shelf.purge(until).files == len(NAMES) - 1
    assert contents(shelf) == {"metadata/1.json": b"metadata/1.json"}


def test_a_file_missing_in_the_trash_is_told(shelf: Shelf, tmp_path: Path) -> None:
    shelf.put([found for found in shelf.listed() if "metadata" in found.place.key])
    for path in (tmp_path / "staging").glob("collect/*/trash/*/*"):
        path.unlink()
    assert [lost.reason for lost in shelf.restore().lost] == [LOST]


def test_the_ledger_is_forgotten_long_after(shelf: Shelf, tmp_path: Path) -> None:
    until = shelf.put().until_ms
    shelf.purge(until)
    shelf.purge(until + 89 * 86_400_000)
    assert list((tmp_path / "staging").glob("collect/*/ledger/*"))
    shelf.purge(until + 91 * 86_400_000)
    assert not list((tmp_path / "staging").glob("collect/*/ledger/*"))


def test_a_person_can_read_the_ledger(shelf: Shelf, tmp_path: Path) -> None:
    shelf.put()
    (intent,) = (tmp_path / "staging").glob("collect/*/ledger/*/intent.jsonl")
    head, *lines = map(json.loads, intent.read_text().splitlines())
    assert head["owner"]["identifier"] == "demo.numbers"
    assert head["run"] == RUN
    assert head["until"].startswith("20")
    assert {line["location"] for line in lines} == {f"{shelf.root}/{name}" for name in NAMES}
    assert {line["why"] for line in lines} == {"no snapshot has it"}


def test_a_ledger_that_cannot_be_read_stops_everything(shelf: Shelf, tmp_path: Path) -> None:
    shelf.put([])
    shelf.put(shelf.listed()[:1])
    (intent,) = (tmp_path / "staging").glob("collect/*/ledger/*/intent.jsonl")
    intent.write_text(intent.read_text().replace('"version": 1', '"version": 99', 1))
    with pytest.raises(ForeignVersion, match=r"intent\.jsonl, which can't be read"):
        shelf.restore()


def test_a_ledger_that_says_more_is_read(shelf: Shelf, tmp_path: Path) -> None:
    shelf.put()
    for path in (tmp_path / "staging").glob("collect/*/ledger/*/*.json*"):
        path.write_text(path.read_text().replace('"version": 1', '"version": 1, "besides": "a text"', 1))
    assert shelf.restore().restored == len(NAMES)


def test_a_file_outside_of_the_place_is_refused(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "wh" / "t2").mkdir()
    (tmp_path / "wh" / "t2" / "live").write_bytes(b"1")
    (other,) = listing.list_files({}, place_of(str(tmp_path / "wh" / "t2")))
    with pytest.raises(ValueError, match="is not inside"):
        shelf.put([other])
    assert (tmp_path / "wh" / "t2" / "live").exists()


def test_a_trash_inside_the_table_is_refused(shelf: Shelf) -> None:
    inside = Shelf({}, f"{shelf.root}/staging", shelf.root)
    with pytest.raises(StorageRefused, match="would be inside the table's own location"):
        inside.trash()


def test_a_trash_of_another_storage_is_refused(shelf: Shelf) -> None:
    with pytest.raises(StorageRefused, match="LAKEHOUSE_STAGING to a prefix on the table's kind of storage"):
        Shelf({}, "s3://plain/staging", shelf.root).trash()


def test_a_trash_on_another_file_system_is_refused(tmp_path: Path) -> None:
    with small_disk(tmp_path / "staging"):
        shelf = shelf_in(tmp_path)
        with pytest.raises(StorageRefused, match=r"demo\.numbers.*must be on the same file system as the table"):
            shelf.put()
    assert contents(shelf) == everything()


def test_a_full_disk_stops_before_anything_moves(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        shelf = shelf_in(disk)
        shelf.trash()
        fill(disk)
        due = shelf.listed()
        with pytest.raises(StorageRefused, match=r"demo\.numbers|LAKEHOUSE_STAGING.*the disk is full: free up space"):
            shelf.put(due)
        assert contents(shelf) == everything()
        (disk / "filler").unlink()
        assert shelf.put(due).files == len(NAMES)
        fill(disk)
        with pytest.raises(StorageRefused, match="the disk is full"):
            while shelf.restore().lost == ():
                shelf.put()
        (disk / "filler").unlink()
        shelf.restore()
        assert contents(shelf) == everything()


def test_a_read_only_table_keeps_its_files(tmp_path: Path) -> None:
    shelf = shelf_in(tmp_path)
    trash, due = shelf.trash(), shelf.due()
    told = r"table demo\.numbers: .*(mounted read-only|must be on the same file system)"
    with read_only(Path(shelf.root)), pytest.raises(StorageRefused, match=told):
        trash.put(due, RUN)
    assert contents(shelf) == everything()
    assert shelf.put().files == len(NAMES)


@pytest.mark.parametrize("some", [True, False])
def test_a_file_that_may_not_be_moved_stays_and_the_others_go(
    shelf: Shelf, some: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If none may be moved, it is no single file's fault."""
    rename, due = os.rename, shelf.listed()

    def denied(source: str, target: str) -> None:
        if source.endswith("data/keep") or not some:
            raise PermissionError(13, "Permission denied", source)
        rename(source, target)

    monkeypatch.setattr(bins.os, "rename", denied)
    if some:
        assert [kept.reason for kept in shelf.put(due).kept] == ["the storage refused it: Permission denied"]
        assert contents(shelf) == {"data/keep": b"data/keep"}
    else:
        with pytest.raises(StorageRefused, match=r"Permission denied.*give this process's user the right"):
            shelf.put(due)
        assert contents(shelf) == everything()


def test_a_folder_that_cannot_be_listed_is_no_listing(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def denied(path: str) -> Any:
        if path.endswith("day=2013-01-01"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    with monkeypatch.context() as patched:
        patched.setattr(listing.os, "scandir", denied)
        with pytest.raises(StorageRefused, match=r"/wh/t.*can't be listed.*give this process's user the right"):
            shelf.listed()


@pytest.mark.parametrize("action", ["put", "restore", "purge"])
def test_killed_at_any_step_nothing_is_lost(tmp_path: Path, action: str) -> None:
    names = ("data/keep#1.parquet", "data/n\nl", "metadata/1.json")
    whole = {name: name.encode() for name in names}
    for effect in range(100):
        folder = tmp_path / str(effect)
        shelf = shelf_in(folder, names)
        due = shelf.listed()
        until = 0 if action == "put" else shelf.put().until_ms
        actions = {"put": partial(shelf.put, due), "restore": shelf.restore, "purge": partial(shelf.purge, until)}
        killed = shelf.kill(actions[action], effect)
        if action == "purge":
            assert contents(shelf) == {}
            shelf.purge(until)
            assert held(folder) == []
            assert shelf.restore().lost == ()
        elif action == "put" and effect % 2:
            shelf.put()  # the next run: it finds the rest
            assert contents(shelf) == {}
        shelf.restore()
        assert contents(shelf) == ({} if action == "purge" else whole), f"killed before effect {effect}"
        assert shelf.restore().lost == ()
        if not killed:
            assert effect > 5, "else nothing was tried"
            return
    raise AssertionError("it never came to its end")

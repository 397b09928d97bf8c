"""A local listing has every file once, with what identifies it, and follows no link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lakehouse_assets.errors import StorageRefused
from lakehouse_assets.maintenance.collect import listing
from lakehouse_assets.maintenance.collect.listing import Listed, Spool, list_files, storage_now
from lakehouse_assets.storage.place import place_of

KEYS = ("a", "a b/c#1", "a b/%2F", "deep/er/n\nl", "deep/er/\udcff")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for key in KEYS:
        (tmp_path / "t" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "t" / key).write_bytes(b"12345")
    (tmp_path / "t2").mkdir()
    (tmp_path / "t2" / "other").touch()
    return tmp_path / "t"


def test_it_has_every_file_and_no_link(folder: Path) -> None:
    (folder / "to a file").symlink_to(folder / "a")
    (folder / "to a folder").symlink_to(folder.parent / "t2")
    (folder / "nowhere").symlink_to(folder / "missing")
    os.mkfifo(folder / "pipe")
    found = {listed.place.key: listed for listed in list_files({}, place_of(f"{folder}/"))}
    assert set(found) == {f"{folder}/{key}" for key in KEYS}
    status = (folder / "a").stat()
    listed = found[f"{folder}/a"]
    assert (listed.size, listed.modified_ms) == (5, status.st_mtime_ns // 1_000_000)


def test_a_file_written_anew_is_another_one(folder: Path) -> None:
    path = folder / "a"
    times = path.stat().st_mtime_ns
    before = {listed.etag for listed in list_files({}, place_of(str(folder)))}
    path.rename(folder / "aside")  # keeps the inode in use
    path.write_bytes(b"54321")
    os.utime(path, ns=(times, times))
    (again,) = [listed for listed in list_files({}, place_of(str(folder))) if listed.place.key == str(path)]
    assert again.etag not in before
    os.utime(path, ns=(times, times + 1))
    (later,) = [listed for listed in list_files({}, place_of(str(folder))) if listed.place.key == str(path)]
    assert later.etag != again.etag


def test_a_folder_that_is_not_there_has_no_files(tmp_path: Path) -> None:
    assert list(list_files({}, place_of(str(tmp_path / "missing")))) == []


def test_what_vanishes_meanwhile_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list_files({}, place_of(str(folder)))
    first = next(found)
    for key in KEYS:
        (folder / key).unlink()
    (folder / "a b").rmdir()
    assert {listed.place.key for listed in found} < {f"{folder}/{key}" for key in KEYS} - {first.place.key}


def test_a_file_where_a_folder_should_be_is_no_listing(folder: Path) -> None:
    with pytest.raises(StorageRefused, match=r"can't be listed: .*Not a directory"):
        list(list_files({}, place_of(str(folder / "a"))))


def test_folders_do_not_stay_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(50):
        (folder / "many" / str(n)).mkdir(parents=True)
        (folder / "many" / str(n) / "1").touch()
    most, scandir = [0], listing.os.scandir

    def counted(path: str) -> os.ScandirIterator[str]:  # type: ignore[name-defined]
        most[0] = max(most[0], len(os.listdir("/proc/self/fd")))
        return scandir(path)

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(listing.os, "scandir", counted)
    assert sum(1 for _ in list_files({}, place_of(str(folder)))) == 50 + len(KEYS)
    assert most[0] <= before + 2


def test_the_clock_is_the_file_systems(tmp_path: Path) -> None:
    before = storage_now({}, str(tmp_path / "staging"))
    (tmp_path / "later").touch()
    now = storage_now({}, (tmp_path / "staging").as_uri())
    assert before <= (tmp_path / "later").stat().st_mtime_ns // 1_000_000 <= now
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "later"], "it leaves nothing"


LOCATIONS = ["s3://lake/a b#1", "/lake/a?b", "s3://lake/line\nend", "/lake/caf\u00e9", "/lake/not utf-8 \udcff"]


@pytest.mark.parametrize("limit", [2**20, 10])
def test_a_spool_gives_back_what_was_added_from_memory_and_from_disk(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakehouse_assets.maintenance.collect.listing.IN_MEMORY", limit)
    files = [Listed(place_of(location), n, 10, "e") for location in LOCATIONS for n in range(2)]
    spool = Spool()
    for file in files:
        spool.add(*file.row)
    for _ in range(2):
        assert [Listed.of(*row) for row in spool] == files
    spool.close()


def test_a_spool_loses_nothing_when_a_reader_stopped_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse_assets.maintenance.collect.listing.ROWS", 2)
    spool = Spool()
    for number in range(7):
        spool.add(number, "x" * number)
    assert next(iter(spool)) == (0, "")
    spool.add(7, "more")
    assert [number for number, _ in spool] == list(range(8))
    spool.close()

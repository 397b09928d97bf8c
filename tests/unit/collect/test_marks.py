"""Marks: what is remembered of files that nobody needs, and that losing them loses time only.
When they are made is in tests/integration/test_collect.py."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehouse_assets.collect.listing import Listed
from lakehouse_assets.collect.marks import MarkStore
from lakehouse_assets.collect.spool import Mark, Spool
from lakehouse_assets.storage.place import Place, StorageKind, place_of

UUID = uuid4()
NAMES = ["a.parquet", "a b#1?%2F", "line\nend", "caf\u00e9", "cafe\u0301", "not utf-8 \udcff"]


def listed(name: str, size: int = 5, modified_ms: int = 10, etag: str = "e") -> Listed:
    return Listed(Place(StorageKind.FILE, "", f"/lake/{name}"), size, modified_ms, etag)


@pytest.fixture
def store(tmp_path: Path) -> MarkStore:
    return MarkStore(PyArrowFileIO(), f"file://{tmp_path}/collect/marks")


def path(store: MarkStore) -> Path:
    return Path(store.location.removeprefix("file://"))


def test_marks_of_any_name_are_found_again(store: MarkStore) -> None:
    marks = [Mark(listed(name), 100 + n, "nobody", "token" if n % 2 else None) for n, name in enumerate(NAMES)]
    store.write(UUID, marks, {"token": 7})
    found = store.read(UUID)
    assert len(found) == len(NAMES)
    assert [found.first_seen(mark.file) for mark in marks] == [mark.first_seen_ms for mark in marks]
    assert [found.token_of(mark.file) for mark in marks] == [mark.token for mark in marks]
    assert found.newest_ms == {"token": 7}
    assert found.first_seen(listed("another")) is None


@pytest.mark.parametrize("change", [{"size": 6}, {"modified_ms": 11}, {"etag": "f"}])
def test_a_file_that_changed_was_not_seen_before(store: MarkStore, change: dict[str, object]) -> None:
    store.write(UUID, [Mark(listed("a"), 1, "nobody", None)], {})
    assert store.read(UUID).first_seen(replace(listed("a"), **change)) is None


def test_marks_are_readable_by_a_person(store: MarkStore) -> None:
    store.write(UUID, [Mark(listed("a"), 1, "nobody", None)], {})
    header, mark = gzip.decompress(path(store).read_bytes()).decode().splitlines()
    assert str(UUID) in header
    assert mark == '["/lake/a", 5, 10, "e", 1, "nobody", null]'


def test_lost_torn_and_foreign_marks_count_as_none(store: MarkStore, caplog: pytest.LogCaptureFixture) -> None:
    assert len(store.read(UUID)) == 0
    assert not caplog.records, "the first pass over a table is nothing to warn of"
    store.write(UUID, [Mark(listed(str(n)), 1, "nobody", None) for n in range(9)], {})
    assert len(store.read(uuid4())) == 0
    whole = path(store).read_bytes()
    for end in range(0, len(whole), 7):
        path(store).write_bytes(whole[:end])
        assert len(store.read(UUID)) == 0
    path(store).write_bytes(whole[:-4] + b"torn")
    assert len(store.read(UUID)) == 0
    path(store).write_bytes(gzip.compress(b'{"version": 2}\n'))
    assert len(store.read(UUID)) == 0
    assert "the grace of the table's files begins anew" in caplog.text
    path(store).write_bytes(whole)
    assert len(store.read(UUID)) == 9


def test_a_storage_that_cannot_be_read_is_no_lost_mark(store: MarkStore) -> None:
    path(store).mkdir(parents=True)
    with pytest.raises(OSError):
        store.read(UUID)


def test_a_spool_gives_back_what_was_added_from_memory_and_from_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (2**20, 10):
        monkeypatch.setattr("lakehouse_assets.collect.spool.IN_MEMORY", limit)
        spool = Spool()
        marks = [Mark(listed(name), n, "nobody", None) for n, name in enumerate(NAMES)]
        for mark in marks:
            spool.add(True, *mark.fields)
        for _ in range(2):
            assert [Mark.of(fields) for _, *fields in spool] == marks
        spool.close()


def test_a_spool_loses_nothing_when_a_reader_stopped_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse_assets.collect.spool.ROWS", 2)
    spool = Spool()
    for number in range(7):
        spool.add(number, "x" * number)
    assert next(iter(spool)) == (0, "")
    spool.add(7, "more")
    assert [number for number, _ in spool] == list(range(8))
    assert list(spool.column(0)) == list(range(8))
    spool.close()


def test_places_come_back_as_they_were() -> None:
    for location in ("s3://lake/a b#1", "/lake/a?b", "s3://lake/line\nend"):
        assert place_of(place_of(location).location) == place_of(location)

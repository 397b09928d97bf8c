"""Marks: what is remembered of files that nobody needs, and that losing them loses time only.
When they are made is in tests/integration/test_collect.py."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehouse_assets.maintenance.collect.judge import Mark, Marks, MarkStore
from lakehouse_assets.maintenance.collect.listing import Listed
from lakehouse_assets.storage.place import Place, StorageKind

NAMES = ["a.parquet", "a b#1?%2F", "line\nend", "caf\u00e9", "cafe\u0301", "not utf-8 \udcff"]


def listed(name: str, size: int = 5, modified_ms: int = 10, etag: str = "e") -> Listed:
    return Listed(Place(StorageKind.FILE, "", f"/lake/{name}"), size, modified_ms, etag)


@pytest.fixture
def store(tmp_path: Path) -> MarkStore:
    return MarkStore(PyArrowFileIO(), f"file://{tmp_path}/collect/marks")


def path(store: MarkStore) -> Path:
    return Path(store.location.removeprefix("file://"))


def test_marks_of_any_name_are_found_again(store: MarkStore) -> None:
    token = os.fsdecode(b"token \xff")
    marks = {listed(name): Mark(100 + n // 4, token if n % 2 else None) for n, name in enumerate(NAMES)}
    store.write(marks.items(), {token: 7})
    found = store.read()
    assert {file: found.of(file) for file in marks} == marks
    assert found.newest_ms == {token: 7}
    assert found.of(listed("another")) is None


@pytest.mark.parametrize("change", [{"size": 6}, {"modified_ms": 11}, {"etag": "f"}])
def test_a_file_that_changed_was_not_seen_before(store: MarkStore, change: dict[str, object]) -> None:
    store.write([(listed("a"), Mark(1))], {})
    assert store.read().of(replace(listed("a"), **change)) is None


def test_lost_torn_and_foreign_marks_count_as_none(store: MarkStore, caplog: pytest.LogCaptureFixture) -> None:
    assert store.read() == Marks()
    assert not caplog.records, "the first pass over a table is nothing to warn of"
    files = [listed(str(n)) for n in range(9)]
    store.write([(file, Mark(1)) for file in files], {"token": 1})
    whole = path(store).read_bytes()
    for torn in (*(whole[:end] for end in range(0, len(whole), 7)), whole[:-4] + b"torn", b"\x1f\x8b\xff", b"null"):
        path(store).write_bytes(torn)
        assert store.read() == Marks()
    path(store).write_bytes(whole.replace(b'"version": 1', b'"version": 2'))
    assert store.read() == Marks()
    assert "counts as missing" in caplog.text
    path(store).write_bytes(whole)
    assert all(map(store.read().of, files))


def test_a_storage_that_cannot_be_read_is_no_lost_mark(store: MarkStore) -> None:
    path(store).mkdir(parents=True)
    with pytest.raises(OSError):
        store.read()

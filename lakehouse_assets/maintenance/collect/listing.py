"""Lists files in storage, and reads its clock."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lakehouse_assets.maintenance.collect.report import refusals
from lakehouse_assets.storage.objects import bare, milliseconds, pages, raw_client
from lakehouse_assets.storage.place import Place, StorageKind, place_of

CLOCK = "collect/clock"
"""The object below the staging prefix that storage_now() writes."""
IN_MEMORY = 16 * 2**20
"""A larger spool goes to disk."""
ROWS = 500
PAGE = 1000
"""The most objects in one answer of S3 (https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html)."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A file as the storage lists it."""

    place: Place
    size: int
    modified_ms: int
    """S3 has whole seconds only."""
    etag: str
    """S3's etag without quotes, or an inode and exact time."""

    @property
    def row(self) -> tuple[str, int, int, str]:
        """The file as a row of a spool."""
        return self.place.location, self.size, self.modified_ms, self.etag

    @classmethod
    def of(cls, location: str, size: int, modified_ms: int, etag: str) -> Listed:
        """Does the inverse of ``row``."""
        return cls(place_of(location), size, modified_ms, etag)


@dataclass
class Spool:
    """Rows that can be read repeatedly, by one reader at a time, once all are added."""

    _file: tempfile.SpooledTemporaryFile[bytes] = field(
        default_factory=lambda: tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 (see close())
    )
    _rows: list[tuple[Any, ...]] = field(default_factory=list)

    def add(self, *row: Any) -> None:
        """Adds a row."""
        self._rows.append(row)
        if len(self._rows) == ROWS:
            self._write()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        self._write()
        self._file.seek(0)
        # pickle raises EOFError at the end of the file.
        with suppress(EOFError):
            while True:
                yield from pickle.load(self._file)

    def _write(self) -> None:
        self._file.seek(0, os.SEEK_END)  # a reader may have stopped in the middle
        pickle.dump(self._rows, self._file, pickle.HIGHEST_PROTOCOL)
        self._rows.clear()

    def close(self) -> None:
        """Frees the rows' memory or disk space."""
        self._file.close()


def list_files(properties: Mapping[str, str], root: Place) -> Iterator[Listed]:
    """Yields every file below the root; neither follows nor lists links.

    Raises StorageRefused if a part can't be listed; the files before it are no valid listing.
    """
    with refusals(f"table at {root.location}", "be listed", root):
        yield from _list_local(root) if root.kind is StorageKind.FILE else _list_s3(raw_client(properties), root)


def local_listed(place: Place, status: os.stat_result) -> Listed:
    """Describes a local file."""
    modified = status.st_mtime_ns
    return Listed(place, status.st_size, modified // 1_000_000, f"{status.st_ino:x}-{modified:x}")


def _list_local(root: Place) -> Iterator[Listed]:
    folders = [root.key]
    while folders:
        try:
            found = os.scandir(folders.pop())
        except FileNotFoundError:  # never existed, or was removed meanwhile
            continue
        with found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):  # removed meanwhile
                        yield local_listed(Place(StorageKind.FILE, "", entry.path), entry.stat(follow_symlinks=False))


def _list_s3(client: Any, root: Place) -> Iterator[Listed]:
    for page in pages(client, "list_objects_v2", root.child(""), MaxKeys=PAGE):
        for found in page.get("Contents", ()):
            place = Place(root.kind, root.bucket, found["Key"])
            yield Listed(place, found["Size"], milliseconds(found["LastModified"]), bare(found["ETag"]))


def storage_now(properties: Mapping[str, str], staging: str) -> int:
    """Returns the storage's time: when a file written now was modified. Raises StorageRefused."""
    probe = place_of(staging).child(CLOCK)
    with refusals("LAKEHOUSE_STAGING", "be written", probe):
        if probe.kind is StorageKind.S3:
            client = raw_client(properties)
            client.put_object(Bucket=probe.bucket, Key=probe.key, Body=b"")
            return milliseconds(client.head_object(Bucket=probe.bucket, Key=probe.key)["LastModified"])
        folder = os.path.dirname(probe.key)
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
            file.flush()
            return os.fstat(file.fileno()).st_mtime_ns // 1_000_000

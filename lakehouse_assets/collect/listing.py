"""What lies in storage: files with their size, age and identity, listed as a stream; and the storage's own clock.
A listing is whole or raises; whether a file is needed is no question here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lakehouse_assets.collect.refusals import refusals
from lakehouse_assets.storage.place import Kind, Place, place_of
from lakehouse_assets.storage.raw_s3 import bare, milliseconds, pages, raw_client

CLOCK = "collect/clock"
PAGE = 1000
"""Objects an answer (https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html: at most that)."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A file as the storage described it. size: bytes. modified_ms: since the epoch, by the storage's clock; S3 knows
    whole seconds. etag: changes with the file; S3's without quotes, of a local file its inode and exact time."""

    place: Place
    size: int
    modified_ms: int
    etag: str


def list_files(properties: Mapping[str, str], root: Place) -> Iterator[Listed]:
    """Every file below the root, in no order, held in memory a page at a time.

    properties: PyIceberg's, of the FileIO. Links are neither followed nor listed. A root that is not there has no
    files. Raises StorageRefused where any part of it can't be listed: what came before is then no listing.
    """
    with refusals(f"table at {root.location}", "be listed", root):
        yield from _list_local(root) if root.kind is Kind.FILE else _list_s3(raw_client(properties), root)


def local_listed(place: Place, status: os.stat_result) -> Listed:
    """A local file as its status describes it."""
    modified = status.st_mtime_ns
    return Listed(place, status.st_size, modified // 1_000_000, f"{status.st_ino:x}-{modified:x}")


def _list_local(root: Place) -> Iterator[Listed]:
    folders = [root.key]
    while folders:
        try:
            found = os.scandir(folders.pop())
        except FileNotFoundError:  # never there, or removed meanwhile with what was in it
            continue
        with found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    yield from _listed(entry)


def _listed(entry: os.DirEntry[str]) -> Iterator[Listed]:
    try:
        yield local_listed(Place(Kind.FILE, "", entry.path), entry.stat(follow_symlinks=False))
    except FileNotFoundError:  # removed meanwhile
        return


def _list_s3(client: Any, root: Place) -> Iterator[Listed]:
    folder = root.key.rstrip("/")
    below = Place(root.kind, root.bucket, f"{folder}/" if folder else "")
    for page in pages(client, "list_objects_v2", below, MaxKeys=PAGE):
        for found in page.get("Contents", ()):
            place = Place(root.kind, root.bucket, found["Key"])
            yield Listed(place, found["Size"], milliseconds(found["LastModified"]), bare(found["ETag"]))


def storage_now(properties: Mapping[str, str], staging: str) -> int:
    """Milliseconds since the epoch by the clock of the storage: the age of an object just written below the prefix.

    Raises StorageRefused.
    """
    probe = place_of(staging).child(CLOCK)
    with refusals("LAKEHOUSE_STAGING", "be written", probe):
        if probe.kind is Kind.S3:
            client = raw_client(properties)
            client.put_object(Bucket=probe.bucket, Key=probe.key, Body=b"")
            return milliseconds(client.head_object(Bucket=probe.bucket, Key=probe.key)["LastModified"])
        folder = os.path.dirname(probe.key)
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
            file.flush()
            return os.fstat(file.fileno()).st_mtime_ns // 1_000_000

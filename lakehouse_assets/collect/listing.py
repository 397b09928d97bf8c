"""What lies in storage: files with their size, age and identity, listed as a stream; and the storage's own clock.
A listing is whole or raises; whether a file is needed is no question here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lakehouse_assets.collect.place import Place


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
    raise NotImplementedError


def storage_now(properties: Mapping[str, str], staging: str) -> int:
    """Milliseconds since the epoch by the clock of the storage: the age of an object just written below the prefix.

    Raises StorageRefused.
    """
    raise NotImplementedError

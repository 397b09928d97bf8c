"""Normalises and compares locations of files, about which clients differ."""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlparse

from lakehouse_assets.environment.local_paths import FILE_URL
from lakehouse_assets.errors import UnknownStorage


class StorageKind(StrEnum):
    """Storages whose files can be collected (removed if nobody needs them)."""

    FILE = "file"
    S3 = "s3"


S3_URL = re.compile(r"(?i:s3[an]?)://([^/]+)(?:/(.*))?", re.DOTALL)
"""S3's scheme and its aliases (org.apache.iceberg.aws.s3.S3URI, Hadoop's S3A)."""
APART = re.compile(r"(?i:abfss?|wasbs?|adl|hdfs):")
"""Schemes of Azure's and Hadoop's storages, which are neither S3-compatible nor local."""
# What urlparse cuts off or drops when PyIceberg opens a URL (pyiceberg.io.pyarrow.PyArrowFileIO.parse_location).
# Plain paths stay as they are.
PARSED_AWAY = re.compile(r"[#?;\t\r\n]")


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A file or folder in storage."""

    kind: StorageKind
    bucket: str
    """"" for local files."""
    key: str
    """An object's raw key, without the slash after the bucket; or an absolute path, with surrogates for bytes that are
    not UTF-8 (os.fsdecode)."""

    @property
    def location(self) -> str:
        """``s3://bucket/key``, or the plain path; place_of() inverts it."""
        return self.key if self.kind is StorageKind.FILE else f"s3://{self.bucket}/{self.key}"

    @property
    def raw(self) -> bytes:
        """Bytes that identify the place, the same in every process: hashes are made of them."""
        return os.fsencode(f"{self.kind}\0{self.bucket}\0{self.key}")

    @property
    def is_ambiguous(self) -> bool:
        """Whether clients differ about which file this is.

        Some (Hadoop, SeaweedFS) resolve ``//``, ``.`` and ``..``; a trailing slash marks a folder.
        """
        parts = self.key.removeprefix("/").split("/") if self.kind is StorageKind.FILE else self.key.split("/")
        return any(part in ("", ".", "..") for part in parts)

    def is_within(self, folder: Place) -> bool:
        """Whether the place is the folder or below it; ``a/bc`` is not in ``a/b``."""
        if (self.kind, self.bucket) != (folder.kind, folder.bucket):
            return False
        # It is empty for a whole bucket, and for the root of a file system.
        inside = folder.key.rstrip("/")
        return self.key == inside or self.key.startswith(f"{inside}/") or not inside

    def child(self, name: str) -> Place:
        """Returns the place of a relative path below."""
        folder = self.key if not self.key or self.key.endswith("/") else f"{self.key}/"
        return Place(self.kind, self.bucket, f"{folder}{name}")


def place_of(location: str) -> Place:
    """Returns the place of a location: a URL with a known scheme or alias, or an absolute path.

    Decodes nothing: ``%2F``, ``#``, ``?``, spaces and line ends stay. Raises UnknownStorage.
    """
    if found := S3_URL.fullmatch(location):
        return Place(StorageKind.S3, found[1], found[2] or "")
    if found := FILE_URL.fullmatch(location):
        return Place(StorageKind.FILE, "", found[1])
    raise UnknownStorage(
        f"{location!r} is no place whose files can be collected: expected s3://bucket/key (or s3a, s3n), file:///path "
        "of this machine, or an absolute path. Nothing near it is collected; correct the location, or leave the table "
        "out of maintenance"
    )


def is_elsewhere(location: str) -> bool:
    """Whether the location is in a storage that Place can't describe, such as Azure's or HDFS."""
    return APART.match(location) is not None


def aliases(location: str) -> frozenset[Place]:
    """Returns all places that some client may take the location for.

    Besides the place itself: the place without empty and dotted parts (Hadoop, local file systems), and as
    urllib.parse.urlparse cuts it (PyIceberg). Files reachable under any of them must be kept. Raises UnknownStorage.
    """
    place = place_of(location)
    found = {place}
    if PARSED_AWAY.search(location) and not location.startswith("/"):
        parsed = urlparse(location)
        found.add(Place(place.kind, place.bucket, parsed.path if place.kind is StorageKind.FILE else parsed.path[1:]))
    for other in tuple(found):
        if other.is_ambiguous:
            found.add(_normal(other))
    return frozenset(found)


def _normal(place: Place) -> Place:
    # lstrip(): normpath() keeps two leading slashes.
    path = "/" + posixpath.normpath(f"/{place.key}").lstrip("/")
    return Place(place.kind, place.bucket, path if place.kind is StorageKind.FILE else path[1:])


def crc_owner(place: Place) -> Place:
    """Returns the file whose Hadoop checksum this is (``.<name>.crc``): both live or go together. Else itself."""
    folder, slash, name = place.key.rpartition("/")
    # A file named ..crc would be the checksum of nothing.
    if name.startswith(".") and name.endswith(".crc") and len(name) > len("..crc"):
        return Place(place.kind, place.bucket, f"{folder}{slash}{name[1:-4]}")
    return place


def case_folded(place: Place) -> Place:
    """Returns one place for all keys that a file system may confuse by case or normalisation."""
    if place.key.isascii():
        return Place(place.kind, place.bucket, place.key.lower())
    caseless = unicodedata.normalize("NFD", place.key).casefold()
    return Place(place.kind, place.bucket, unicodedata.normalize("NFC", caseless))

"""One key for each place in storage: which texts mean one file, what lies inside a folder, which files may be twins."""

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
    """The kinds of storage whose files can be collected."""

    FILE = "file"
    S3 = "s3"


S3_URL = re.compile(r"(?i:s3[an]?)://([^/]+)(?:/(.*))?", re.DOTALL)
"""S3's scheme and those that mean the same storage (org.apache.iceberg.aws.s3.S3URI, and Hadoop's S3A)."""
APART = re.compile(r"(?i:abfss?|wasbs?|adl|hdfs):")
"""The schemes of storages that neither S3's interface nor a path of this machine leads to: Azure's and Hadoop's."""
# What urlparse, by which PyIceberg opens a URL, cuts off or drops (pyiceberg.io.pyarrow.PyArrowFileIO.parse_location).
# A plain path it takes as it is.
PARSED_AWAY = re.compile(r"[#?;\t\r\n]")


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """The place of a file or folder in storage."""

    kind: StorageKind
    bucket: str
    """The bucket; "" for local files."""
    key: str
    """An object's raw key, without the slash behind the bucket; or a local file's absolute path, in which bytes that
    are no UTF-8 are surrogates (os.fsdecode)."""

    @property
    def location(self) -> str:
        """The place as text: ``s3://bucket/key``, or the plain path. place_of() makes the same place of it."""
        return self.key if self.kind is StorageKind.FILE else f"s3://{self.bucket}/{self.key}"

    @property
    def raw(self) -> bytes:
        """Bytes that differ for different places, and are the same in every process."""
        return os.fsencode(f"{self.kind}\0{self.bucket}\0{self.key}")

    @property
    def is_ambiguous(self) -> bool:
        """Whether clients differ about which file this is.

        ``//``, ``.`` and ``..`` are other names for some clients (Hadoop and SeaweedFS drop empty parts), and a slash
        at the end is a folder's marker.
        """
        parts = self.key.removeprefix("/").split("/") if self.kind is StorageKind.FILE else self.key.split("/")
        return any(part in ("", ".", "..") for part in parts)

    def is_within(self, folder: Place) -> bool:
        """Tells whether the place is the folder or lies below it, by whole parts of the path.

        So ``a/bc`` is not in ``a/b``.
        """
        if (self.kind, self.bucket) != (folder.kind, folder.bucket):
            return False
        inside = folder.key.rstrip("/")
        return self.key == inside or self.key.startswith(f"{inside}/") or not inside

    def child(self, name: str) -> Place:
        """Returns the place of that relative path below this folder."""
        folder = self.key if not self.key or self.key.endswith("/") else f"{self.key}/"
        return Place(self.kind, self.bucket, f"{folder}{name}")


def place_of(location: str) -> Place:
    """Returns the place that a location means: a URL of a known scheme or one of its aliases, or an absolute path.

    Nothing is decoded: ``%2F``, ``#``, ``?``, spaces and line ends stay as they are. Raises UnknownStorage.
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
    """Tells whether the location is in a storage where no Place lies, such as Azure's or HDFS."""
    return APART.match(location) is not None


def aliases(location: str) -> frozenset[Place]:
    """Returns all places that some client takes the location for.

    They are the place itself, the place without empty and dotted parts (Hadoop, local file systems), and the place
    without what urllib.parse.urlparse cuts off, as PyIceberg opens files by it. What is reachable by the location under
    any of them must be kept. Raises UnknownStorage.
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
    """Returns the place without empty and dotted parts."""
    path = "/" + posixpath.normpath(f"/{place.key}").lstrip("/")
    return Place(place.kind, place.bucket, path if place.kind is StorageKind.FILE else path[1:])


def crc_owner(place: Place) -> Place:
    """Returns the file whose checksum Hadoop keeps in this one, ``.<name>.crc`` beside it: both live or go together.

    Any other file is its own owner.
    """
    folder, slash, name = place.key.rpartition("/")
    if name.startswith(".") and name.endswith(".crc") and len(name) > len("..crc"):
        return Place(place.kind, place.bucket, f"{folder}{slash}{name[1:-4]}")
    return place


def case_folded(place: Place) -> Place:
    """Returns one place for all whose keys differ by case or Unicode normalisation only.

    A file system may take one of these for the other.
    """
    if place.key.isascii():
        return Place(place.kind, place.bucket, place.key.lower())
    caseless = unicodedata.normalize("NFD", place.key).casefold()
    return Place(place.kind, place.bucket, unicodedata.normalize("NFC", caseless))

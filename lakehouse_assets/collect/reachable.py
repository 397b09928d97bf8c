"""Finds the files that a table needs: all that its metadata names, directly or by manifests, for any kept snapshot.

Files of metadata are read, nothing is listed. A file has as many paths as links lead to it: sets of places know it by
all. What is done with the other files is judge.py's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import chain

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.manifests import read_manifest_lists, read_manifests
from lakehouse_assets.commit.owner import mark_location
from lakehouse_assets.errors import UnreadableMetadata
from lakehouse_assets.storage.place import Place, StorageKind, folded, meanings

DIGEST_BYTES = 16
"""The bytes of a digest. Of 10^9 places, two have one digest with a probability of 10^-21; then one more file would be
kept, and none taken."""
# Tables of Hadoop catalogs, and readers without a catalog, find the current metadata by this file.
HINT = "version-hint.text"


def without_links(place: Place) -> Place:
    """Returns the file's place with no links in the path to its folder; objects of S3 have none."""
    if place.kind is not StorageKind.FILE or "\0" in place.key:
        return place
    folder, _, name = place.key.rpartition("/")
    return Place(place.kind, place.bucket, f"{_real(folder or '/').rstrip('/')}/{name}")


def folder_without_links(folder: Place) -> Place:
    """Returns the folder's place with no links in its path, whether the folder exists or not."""
    return Place(folder.kind, folder.bucket, _real(folder.key)) if folder.kind is StorageKind.FILE else folder


@lru_cache(maxsize=4096)
def _real(folder: str) -> str:
    return os.path.realpath(folder)


def all_meanings(location: str) -> frozenset[Place]:
    """Returns all places that some client takes the location for, and the same without links. Raises UnknownStorage."""
    found = meanings(location)
    return found | frozenset(map(without_links, found))


def digest(place: Place) -> bytes:
    """Returns a hash that stands for a place, the same in every process."""
    return blake2b(place.raw, digest_size=DIGEST_BYTES).digest()


@dataclass
class PlaceSet:
    """A set of places that takes about 100 bytes for each."""

    _exact: set[bytes] = field(default_factory=set)
    _names: set[bytes] = field(default_factory=set)

    def add(self, location: str) -> None:
        """Adds all places that some client takes the location for. Raises UnknownStorage."""
        for place in all_meanings(location):
            self._exact.add(digest(place))
            if (name := folded(place)) != place:
                self._names.add(digest(name))

    def __contains__(self, place: Place) -> bool:
        return digest(place) in self._exact

    def has(self, of_place: bytes) -> bool:
        """Tells whether the place with this digest is in the set: a pass asks many sets for each place."""
        return of_place in self._exact

    def has_twin(self, place: Place) -> bool:
        """Tells whether another place in the set differs only by case or by Unicode normalisation."""
        name = folded(place)
        if name == place and not self._names:
            return False
        of_name = digest(name)
        return of_name in self._names or (name != place and of_name in self._exact)


@dataclass
class Reader:
    """Finds what metadata names. Manifests and their lists never change, so each is read once."""

    io: FileIO
    found: Callable[[str], None]
    """Called with every location, with some more than once."""
    _known: set[str] = field(default_factory=set)

    def read(self, location: str, metadata: TableMetadata) -> None:
        """Finds what the metadata file at ``location`` names.

        Its snapshots are those of every ref and of history, as far as they are kept; the metadata log and statistics
        are a part of it. Raises UnreadableMetadata where a file is missing, torn or foreign: what it named is not known
        then, so nothing of the table may be judged. Raises OSError where the storage can't be read, and UnknownStorage.
        """
        try:
            for name in chain(_named_by(location, metadata), self._manifests(metadata)):
                self.found(name)
        except FileNotFoundError as error:
            raise UnreadableMetadata(
                f"a file that the table's metadata names is not there: {error}. Restore it, or expire the snapshots "
                "that name it; until then nobody knows which files the table needs"
            ) from error

    def beside(self, found: Callable[[str], None]) -> Reader:
        """Returns a reader that reads nothing again that this one has read."""
        return Reader(self.io, found, set(self._known))

    def _manifests(self, metadata: TableMetadata) -> Iterator[str]:
        lists = self._new(snapshot.manifest_list for snapshot in metadata.snapshots)
        yield from lists
        listed: dict[str, ManifestFile] = {}
        for manifests in read_manifest_lists(self.io, lists):
            listed |= {manifest.manifest_path: manifest for manifest in manifests}
        new = self._new(listed)
        yield from new
        for _, entries in read_manifests(self.io, [listed[path] for path in new]):
            yield from (entry.data_file.file_path for entry in entries)
        self._known |= {*lists, *new}  # only now: after an error they are read again

    def _new(self, paths: Iterable[str]) -> list[str]:
        return [path for path in dict.fromkeys(paths) if path not in self._known]


def _named_by(location: str, metadata: TableMetadata) -> Iterator[str]:
    """Finds what the metadata file itself names, without reading manifests."""
    yield location
    yield f"{location.rpartition('/')[0]}/{HINT}"
    yield mark_location(metadata.location)
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (file.statistics_path for file in metadata.statistics)
    yield from (file.statistics_path for file in metadata.partition_statistics)

"""Reads what the runs of a table left, receipts and forks, and finds the files that each run names by them.

Receipts are read, and the forks that they name; whether a run may still need them is leases.py's question.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.serializers import FromInputFile

from lakehouse_assets.collect.leases import HELD, RunState
from lakehouse_assets.collect.links import all_meanings
from lakehouse_assets.collect.listing import Listed
from lakehouse_assets.collect.reachable import PlaceSet, Reader, digest
from lakehouse_assets.commit.fork import FORK_NAME
from lakehouse_assets.errors import UnreadableMetadata
from lakehouse_assets.storage.place import Place, crc_owner

FORK_BASE = re.compile(rf"{FORK_NAME}(?P<token>.+)-[0-9a-f]{{8}}\.metadata\.json(\.gz)?$")
"""The name of a fork base has its run's token."""
METADATA = ".metadata.json"


@dataclass
class Leavings:
    """The files that the runs of one table left in storage, as they were listed."""

    receipts: dict[str, list[Listed]] = field(default_factory=lambda: defaultdict(list))
    """The files in the run's folder, by token."""
    bases: dict[str, list[Listed]] = field(default_factory=lambda: defaultdict(list))
    """The fork bases in the table's folder, and their checksums, by token."""

    @classmethod
    def of(cls, folder: Place, listed: Iterable[Listed]) -> Leavings:
        """Sorts the files in the folder of a table's receipts by their run.

        folder: ``<staging>/<identifier>``; in it is a folder for each token.
        """
        found = cls()
        for file in listed:
            token, slash, _ = file.place.key.removeprefix(folder.key).strip("/").partition("/")
            if slash:
                found.receipts[token].append(file)
        return found

    def note(self, file: Listed) -> None:
        """Keeps the file if it is a fork base, or the checksum of one."""
        if FORK_NAME in file.place.key and (token := token_of_base(crc_owner(file.place))):
            self.bases[token].append(file)

    @property
    def newest_ms(self) -> dict[str, int]:
        """The time when the last file was written that belongs to a run by its path, by token."""
        return {
            token: max(file.modified_ms for file in [*self.receipts.get(token, ()), *self.bases.get(token, ())])
            for token in {**self.receipts, **self.bases}
        }


@dataclass
class StagedFiles:
    """The files that runs name."""

    held: PlaceSet = field(default_factory=PlaceSet)
    """The files of runs that may still need them."""
    free: dict[bytes, str] = field(default_factory=dict)
    """The token of a file whose run is finished or dead, by the digest of the file's place."""

    def token_of(self, place: Place) -> str | None:
        """Returns the run, finished or dead, that names the file; None if none does."""
        return self.free.get(digest(place))

    def set_free(self, token: str, location: str) -> None:
        """Remembers that a finished or dead run names the location."""
        for place in all_meanings(location):
            self.free[digest(place)] = token


def token_of_base(place: Place) -> str | None:
    """Returns the token in the name of a fork base; None for any other file."""
    found = FORK_BASE.search(place.key.rpartition("/")[2]) if FORK_NAME in place.key else None
    return found["token"] if found else None


def read_staged(io: FileIO, staging_io: FileIO, leavings: Leavings, states: Mapping[str, RunState]) -> StagedFiles:
    """Reads which files the runs name.

    These are the forks in their receipts, the fork bases of runs that may still need them, and all manifests and files
    of these.

    What can't be read is left out, as no run can use it either: its files go by their age. io: of the table. Raises
    OSError where the storage can't be read.
    """
    found = StagedFiles()
    for token in {**leavings.receipts, **leavings.bases}:
        held = states[token] in HELD
        reader = Reader(io, found.held.add if held else partial(found.set_free, token))
        forks = {fork for receipt in leavings.receipts.get(token, ()) for fork in _forks(staging_io, receipt)}
        # A fork base of a rewrite names the head snapshot, which its worker reads; no receipt says so until it is done.
        forks |= {crc_owner(base.place).location for base in leavings.bases.get(token, ())} if held else set()
        for fork in sorted(forks):
            _read_fork(reader, fork)
    return found


def _forks(io: FileIO, receipt: Listed) -> set[str]:
    """Returns the metadata files that a receipt names, of whatever kind of work it is; none where it is torn."""
    try:
        with io.new_input(receipt.place.location).open() as stream:
            document = json.loads(stream.read())
    except (FileNotFoundError, ValueError):
        return set()
    return {text for text in _texts(document) if text.endswith(METADATA)}


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for item in value.values():
                yield from _texts(item)
        case list():
            for item in value:
                yield from _texts(item)


def _read_fork(reader: Reader, location: str) -> None:
    try:
        reader.found(location)
        reader.read(location, FromInputFile.table_metadata(reader.io.new_input(location)))
    except (FileNotFoundError, ValueError, ValidationError, UnreadableMetadata):
        return

"""Keeps a table's marks, by its UUID: files that nobody needed at an earlier pass, since when, and of which run.

Losing them costs a grace's time only, so whatever is wrong with them, they count as none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from pyiceberg.io import FileIO

from lakehouse_assets.collect.listing import Listed
from lakehouse_assets.wire.receipts import read_json
from lakehouse_assets.wire.work import Durable

MOST = 250_000
"""The number of marks that one pass keeps, of the files that were modified first; each takes 150 bytes of memory."""
DIGEST_BYTES = 16


class Mark(NamedTuple):
    """Remembers of a file that nobody needs since when, and whose it is."""

    first_seen_ms: int
    """The time when it was first seen without need, by the storage's clock."""
    token: str | None = None
    """The run that named the file while the run's receipts were there."""


@dataclass(frozen=True)
class MarkedFiles:
    """The files that have one mark."""

    mark: Mark
    files: str
    """A digest of each file, in hexadecimal digits, one behind the other."""


@dataclass(frozen=True)
class MarksOfTable(Durable):
    """The marks of one table, as they are written down."""

    newest_ms: tuple[tuple[str, int], ...]
    """The time when the last file of a run was written, by token."""
    groups: tuple[MarkedFiles, ...]


@dataclass(frozen=True)
class Marks:
    """The marks of an earlier pass."""

    newest_ms: Mapping[str, int] = field(default_factory=dict)
    """The time when the last file of a run was written, by token."""
    by_digest: Mapping[bytes, Mark] = field(default_factory=dict)

    def of(self, file: Listed) -> Mark | None:
        """Returns the file's mark; None if it was not marked, or is another file by now."""
        return self.by_digest.get(_digest(file))


@dataclass(frozen=True)
class MarkStore:
    """The place of a table's marks."""

    io: FileIO
    location: str

    def read(self) -> Marks:
        """Reads the marks; there are none where the file is missing, torn or another version's.

        Raises OSError where the storage can't be read: without marks, everything would wait for another grace.
        """
        found = read_json(self.io, self.location, MarksOfTable.from_json)
        if found is None:
            return Marks()
        return Marks(
            dict(found.newest_ms), {digest: group.mark for group in found.groups for digest in _split(group.files)}
        )

    def write(self, marks: Iterable[tuple[Listed, Mark]], newest_ms: Mapping[str, int]) -> None:
        """Replaces the marks. Raises OSError."""
        files: dict[Mark, bytearray] = defaultdict(bytearray)
        for file, mark in marks:
            files[mark] += _digest(file)
        groups = tuple(MarkedFiles(mark, digests.hex()) for mark, digests in files.items())
        MarksOfTable(tuple(newest_ms.items()), groups).write(self.io, self.location)


def _split(digests: str) -> Iterator[bytes]:
    together = bytes.fromhex(digests)
    return (together[start : start + DIGEST_BYTES] for start in range(0, len(together), DIGEST_BYTES))


def _digest(file: Listed) -> bytes:
    """Returns a hash of a file's place, and of what must be the same when it is seen again."""
    like = f"\0{file.size}\0{file.modified_ms}\0{file.etag}".encode()
    return blake2b(file.place.raw + like, digest_size=DIGEST_BYTES).digest()

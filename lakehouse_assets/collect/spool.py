"""Holds the files of a listing on their way through a pass: as they are many, in order, and on disk beyond some MiB.

What becomes of them is decided in judge.py and marks.py.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import SEEK_END
from struct import Struct
from tempfile import SpooledTemporaryFile
from typing import Any, NamedTuple

from lakehouse_assets.collect.listing import Listed
from lakehouse_assets.storage.place import place_of

IN_MEMORY = 16 * 2**20
"""The bytes of a spool beyond which it goes to disk."""
ROWS = 500
"""The number of rows that are written together."""
SIZE = Struct("<Q")


@dataclass
class Spool:
    """Rows of numbers and texts, read once all are added.

    They are written by marshal, which takes any text and a fifth of JSON's time: a pass writes and reads each file
    several times.
    """

    _file: SpooledTemporaryFile[bytes] = field(default_factory=partial(SpooledTemporaryFile, IN_MEMORY))
    _rows: list[tuple[Any, ...]] = field(default_factory=list)

    def add(self, *row: Any) -> None:
        """Adds a row; ROWS of them are written together."""
        self._rows.append(row)
        if len(self._rows) == ROWS:
            self._write()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        self._write()
        self._file.seek(0)
        while size := self._file.read(SIZE.size):
            yield from marshal.loads(self._file.read(*SIZE.unpack(size)))

    def _write(self) -> None:
        if not self._rows:
            return
        data = marshal.dumps(self._rows)
        self._file.seek(0, SEEK_END)  # a reader may have stopped in the middle
        self._file.write(SIZE.pack(len(data)) + data)
        self._rows.clear()

    def column(self, number: int) -> Iterator[Any]:
        """Gives one value of each row."""
        return (row[number] for row in self)

    def close(self) -> None:
        """Closes the temporary file of the rows, which frees its memory or disk."""
        self._file.close()


def listed_fields(file: Listed) -> tuple[str, int, int, str]:
    """Returns a listed file as JSON values."""
    return file.place.location, file.size, file.modified_ms, file.etag


def listed_of(location: str, size: int, modified_ms: int, etag: str) -> Listed:
    """Does the inverse of listed_fields(). Raises ValueError."""
    return Listed(place_of(location), size, modified_ms, etag)


class Mark(NamedTuple):
    """A file that nobody needs."""

    file: Listed
    first_seen_ms: int
    """The time when it was first seen without need, by the storage's clock."""
    why: str
    """The reason, for a person."""
    token: str | None
    """The run that named the file while the run's receipts were there."""

    @property
    def fields(self) -> tuple[str | int | None, ...]:
        """The mark as JSON values."""
        return (*listed_fields(self.file), self.first_seen_ms, self.why, self.token)

    @classmethod
    def of(cls, fields: Sequence[Any]) -> Mark:
        """Does the inverse of ``fields``. Raises ValueError or TypeError for anything else."""
        *file, first_seen_ms, why, token = fields
        return cls(listed_of(*file), first_seen_ms, why, token)

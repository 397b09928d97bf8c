"""Files on their way through a pass: as many as a listing has, so in order, and on disk beyond some megabytes.
What becomes of them is decided in judge.py and marks.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import Any, NamedTuple

from lakehouse_assets.collect.listing import Listed
from lakehouse_assets.collect.place import place_of

IN_MEMORY = 16 * 2**20
"""Bytes of a spool beyond which it goes to disk."""


@dataclass
class Spool:
    """Rows of JSON values, read once all are added. Names that are no UTF-8 have surrogates, which JSON escapes."""

    _file: SpooledTemporaryFile[bytes] = field(default_factory=partial(SpooledTemporaryFile, IN_MEMORY))

    def add(self, *row: Any) -> None:
        self._file.write(json.dumps(row).encode() + b"\n")

    def __iter__(self) -> Iterator[list[Any]]:
        self._file.seek(0)
        yield from map(json.loads, self._file)

    def close(self) -> None:
        self._file.close()


def listed_fields(file: Listed) -> tuple[str, int, int, str]:
    """A listed file as JSON values."""
    return file.place.location, file.size, file.modified_ms, file.etag


def listed_of(location: str, size: int, modified_ms: int, etag: str) -> Listed:
    """The inverse of listed_fields(). Raises ValueError."""
    return Listed(place_of(location), size, modified_ms, etag)


class Mark(NamedTuple):
    """A file that nobody needs. first_seen_ms: by the storage's clock. why: for a person. token: the run that named it
    while its receipts were there."""

    file: Listed
    first_seen_ms: int
    why: str
    token: str | None

    @property
    def fields(self) -> tuple[str | int | None, ...]:
        """As JSON values."""
        return (*listed_fields(self.file), self.first_seen_ms, self.why, self.token)

    @classmethod
    def of(cls, fields: list[Any]) -> Mark:
        """The inverse of ``fields``. Raises ValueError or TypeError for anything else."""
        *file, first_seen_ms, why, token = fields
        return cls(listed_of(*file), first_seen_ms, why, token)

"""Keeps a table's marks, by its UUID: files that nobody needed at an earlier pass, since when, and what they were like.

Losing them costs a grace's time only, so whatever is wrong with them, they count as none.
"""

from __future__ import annotations

import gzip
import json
import logging
import shutil
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from struct import Struct
from tempfile import SpooledTemporaryFile
from uuid import UUID

from pyiceberg.io import FileIO

from lakehouse_assets.collect.listing import Listed
from lakehouse_assets.collect.reachable import digest
from lakehouse_assets.collect.spool import IN_MEMORY, Mark
from lakehouse_assets.protocol.versions import with_version, without_version

logger = logging.getLogger(__name__)

MOST = 250_000
"""The number of marks that one pass keeps, of the files that were modified first; each takes 100 bytes of memory."""
# First seen (ms), the token's number or -1, and a hash of what the file was like.
PACKED = Struct("<qi12s")


@dataclass
class Marks:
    """The marks of an earlier pass, without names."""

    newest_ms: dict[str, int] = field(default_factory=dict)
    """The time when the last file of a run was written, by token."""
    _tokens: list[str] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)
    _packed: dict[bytes, bytes] = field(default_factory=dict)

    def token_of(self, file: Listed) -> str | None:
        """Returns the run that named the file when it was marked; None if no run did."""
        packed = self._packed.get(digest(file.place))
        number = PACKED.unpack(packed)[1] if packed else -1
        return self._tokens[number] if number >= 0 else None

    def first_seen(self, file: Listed) -> int | None:
        """Returns the time when the file was first seen without need.

        It is None if the file was not marked, or is another file by now.
        """
        packed = self._packed.get(digest(file.place))
        if packed is None:
            return None
        first_seen_ms, _, likeness = PACKED.unpack(packed)
        return int(first_seen_ms) if likeness == _likeness(file) else None

    def __contains__(self, file: Listed) -> bool:
        return self.first_seen(file) is not None

    def __len__(self) -> int:
        return len(self._packed)

    def add(self, mark: Mark) -> None:
        """Keeps a mark without the name of its file, in place of an earlier mark of the same place."""
        number = -1 if mark.token is None else self._number(mark.token)
        self._packed[digest(mark.file.place)] = PACKED.pack(mark.first_seen_ms, number, _likeness(mark.file))

    def _number(self, token: str) -> int:
        if token not in self._numbers:
            self._numbers[token] = len(self._tokens)
            self._tokens.append(token)
        return self._numbers[token]


@dataclass(frozen=True)
class MarkStore:
    """The place of a table's marks: one gzip file, whose checksum shows a torn one."""

    io: FileIO
    location: str

    def read(self, uuid: UUID) -> Marks:
        """Reads the marks; there are none where the file is missing, torn, another version's or another table's.

        Raises OSError where the storage can't be read: without marks, everything would wait for another grace.
        """
        found = Marks()
        try:
            with self.io.new_input(self.location).open() as stream, gzip.open(stream, "rt", encoding="utf-8") as lines:
                header = without_version(json.loads(next(lines)))
                if header["table"] != str(uuid):
                    raise ValueError(f"they are of the table {header['table']}")
                found.newest_ms.update(header["newest_ms"])
                for line in lines:
                    found.add(Mark.of(json.loads(line)))
        except FileNotFoundError:
            return Marks()
        except (EOFError, gzip.BadGzipFile, zlib.error, StopIteration, ValueError, LookupError, TypeError) as error:
            logger.warning("%s can't be used, the grace of the table's files begins anew: %s", self.location, error)
            return Marks()
        return found

    def write(self, uuid: UUID, marks: Iterable[Mark], newest_ms: Mapping[str, int]) -> None:
        """Replaces the marks. Raises OSError."""
        header = with_version({"table": str(uuid), "newest_ms": dict(newest_ms)})
        with SpooledTemporaryFile(IN_MEMORY) as spool:
            with gzip.open(spool, "wt", compresslevel=1, encoding="utf-8") as lines:
                lines.write(json.dumps(header) + "\n")
                lines.writelines(json.dumps(mark.fields) + "\n" for mark in marks)
            spool.seek(0)
            with self.io.new_output(self.location).create(overwrite=True) as stream:
                shutil.copyfileobj(spool, stream, 2**20)


def _likeness(file: Listed) -> bytes:
    """Returns a hash of what must be the same when a file is seen again."""
    return blake2b(f"{file.size}\0{file.modified_ms}\0{file.etag}".encode(), digest_size=12).digest()

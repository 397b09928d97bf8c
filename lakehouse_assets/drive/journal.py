"""The journal of a run's work: of each chunk the last attempt, its worker, and the receipt of what it has staged.

Durable, below LAKEHOUSE_STAGING, so that another process can go on. A worker writes its receipt itself
(protocol/receipts.py); what is done about what is found here is drive.py's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from pyiceberg.io import FileIO

from lakehouse_assets.environment.launchers.base import Attempt
from lakehouse_assets.errors import ForeignVersion
from lakehouse_assets.protocol.receipts import Receipt, read_json
from lakehouse_assets.protocol.versions import VERSION, Durable
from lakehouse_assets.storage.raw_s3 import at_once

Found = TypeVar("Found")


@dataclass(frozen=True)
class AttemptRecord(Durable):
    """The last attempt at a chunk."""

    number: int
    launcher: str
    """The name of the launcher's class."""
    work: str
    """The attempt's Attempt.work."""
    at: str
    """When the attempt was made (ISO 8601, with its offset)."""
    id: str | None = None
    """The worker's id. None if it is not known whether there is a worker, because the process died between the request
    and the answer."""


@dataclass(frozen=True)
class Journal:
    """The journal of one run token: files in one folder, by the ordinals of the chunks."""

    io: FileIO
    folder: str
    """Never under the table: there its files would count as the table's orphans, and table buckets such as those of S3
    Tables refuse them."""

    def receipt_location(self, chunk: int) -> str:
        """Returns the path that the worker of a chunk (from 0) writes its receipt to."""
        return f"{self.folder}/{chunk:05d}.json"

    def receipts(self, chunks: Iterable[int]) -> list[Receipt]:
        """Reads the receipts of these chunks, of whatever work, in their order, without those that are missing.

        Torn or foreign files, and those of another version, are left out with a warning: their chunk is staged again.
        FileIO has no listing, so each location is tried. Raises OSError when the storage can't be read: the receipts
        may be there.
        """
        return [receipt for receipt in self._map(self._receipt, chunks).values() if receipt]

    def find(self, attempts: Iterable[Attempt]) -> dict[int, Receipt]:
        """Finds the receipts that prove that the work of these attempts is done, by chunk.

        A receipt of other work proves nothing. Raises as receipts().
        """
        work = {attempt.ordinal: attempt.work for attempt in attempts}
        found = self._map(self._receipt, work)
        return {chunk: receipt for chunk, receipt in found.items() if receipt and receipt.work == work[chunk]}

    @staticmethod
    def parse(reported: object, attempt: Attempt) -> Receipt | None:
        """Parses the receipt that a worker reported, as JSON text; None for anything else, and for other work.

        The worker's own code may report what it likes.
        """
        if not isinstance(reported, str):
            return None
        with suppress(ValueError):
            receipt = Receipt.from_json(reported)
            return receipt if receipt.work == attempt.work else None
        return None

    def last(self, chunks: Iterable[int]) -> dict[int, AttemptRecord]:
        """Returns the last attempt at each of the chunks that had one.

        Raises OSError when the storage can't be read, and ForeignVersion for a record in another version: such an
        attempt may have a running worker.
        """
        return {chunk: record for chunk, record in self._map(self._last, chunks).items() if record}

    def record(self, chunk: int, attempt: AttemptRecord) -> None:
        """Writes an attempt down: before its worker is requested, and again once the worker's id is known.

        The second goes to a file of its own: a process that is interrupted while it writes may leave half a file, and
        must not lose what was recorded before.
        """
        attempt.write(self.io, self.record_location(chunk, with_id=attempt.id is not None))

    def record_location(self, chunk: int, *, with_id: bool) -> str:
        """Returns the path of an attempt's record: of the one with the worker's id, or of the one written before."""
        return f"{self.folder}/{chunk:05d}.{'worker' if with_id else 'attempt'}.json"

    def _map(self, read: Callable[[int], Found], chunks: Iterable[int]) -> dict[int, Found]:
        chunks = list(chunks)
        return dict(zip(chunks, at_once(read, chunks), strict=True))

    def _receipt(self, chunk: int) -> Receipt | None:
        return read_json(self.io, self.receipt_location(chunk), Receipt.from_json)

    def _last(self, chunk: int) -> AttemptRecord | None:
        record = self._read(self.record_location(chunk, with_id=False))
        started = self._read(self.record_location(chunk, with_id=True)) if record else None
        return started if record and started and started.number == record.number else record

    def _read(self, location: str) -> AttemptRecord | None:
        """Reads a record; None where it is missing or torn.

        It is safe to leave that out: the first file is complete before a worker is requested, and without the second
        one the worker is found by its attempt's key.
        """

        def parse(text: str) -> AttemptRecord:
            fields = json.loads(text)
            if (version := fields["version"]) != VERSION:
                raise ForeignVersion(
                    f"{location} records an attempt in version {version}, this code reads version {VERSION}. A worker "
                    "may run, so no second one is started, and nothing was published. Materialize the partitions anew "
                    "(a new run, not a re-execution from failure), or resume the run with the code that wrote the file"
                )
            return AttemptRecord.from_json(fields)

        return read_json(self.io, location, parse)

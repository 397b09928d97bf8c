"""Durable records of attempts: which attempt at a chunk was the last, and its worker's id.

Needed only where workers outlive the process that started them. Who uses a record is starting.py.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from pyiceberg.io import FileIO

from lakehouse_assets.errors import ForeignVersion
from lakehouse_assets.protocol.versions import VERSION, with_version
from resources.aws import READERS

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AttemptRecord:
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
class AttemptRecords:
    """The recorded attempts of one run token."""

    io: FileIO
    prefix: str
    """The folder that holds the records."""

    def last(self, chunks: Iterable[int]) -> dict[int, AttemptRecord]:
        """Returns the last attempt at each of the chunks (ordinals) that had one.

        Raises OSError when the storage can't be read, and ForeignVersion for a record in another version: such an
        attempt may have a running worker.
        """
        chunks = list(chunks)
        with ThreadPoolExecutor(READERS, thread_name_prefix="attempts") as pool:
            records = zip(chunks, pool.map(self._last, chunks), strict=True)
            return {chunk: record for chunk, record in records if record}

    def write(self, chunk: int, record: AttemptRecord) -> None:
        """Writes the record: before its worker is requested, and again once the worker's id is known.

        The second goes to a file of its own: a process that is interrupted while it writes may leave half a file, and
        must not lose what was recorded before.
        """
        location = self.location(chunk, with_id=record.id is not None)
        with self.io.new_output(location).create(overwrite=True) as stream:
            stream.write(json.dumps(with_version(asdict(record))).encode())

    def location(self, chunk: int, *, with_id: bool) -> str:
        """Returns the path of an attempt's record: of the one with the worker's id, or of the one written before."""
        return f"{self.prefix}/{chunk:05d}.{'worker' if with_id else 'attempt'}.json"

    def _last(self, chunk: int) -> AttemptRecord | None:
        record = self._read(self.location(chunk, with_id=False))
        started = self._read(self.location(chunk, with_id=True)) if record else None
        return started if record and started and started.number == record.number else record

    def _read(self, location: str) -> AttemptRecord | None:
        try:
            with self.io.new_input(location).open() as stream:
                fields = json.loads(stream.read())
            # Before there were versions, records had the fields of version 1.
            if (version := fields.pop("version", VERSION)) != VERSION:
                raise ForeignVersion(
                    f"{location} records an attempt in version {version}, this code reads version {VERSION}. A worker "
                    "may run, so no second one is started, and nothing was published. Materialize the partitions anew "
                    "(a new run, not a re-execution from failure), or resume the run with the code that wrote the file"
                )
            return AttemptRecord(**fields)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, AttributeError) as error:
            # Safe to leave out: the first file is complete before a worker is requested, and without the second one
            # the worker is found by its attempt's key.
            logger.warning("%s is an incomplete record of an attempt and is left out: %s", location, error)
            return None

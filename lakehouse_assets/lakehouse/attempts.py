"""Which attempt at a chunk was made last, and as what it runs: durable beside the receipts, for a later process.
Only for launchers whose workers outlive this one; what becomes of an attempt is drive.py's."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from pyiceberg.io import FileIO

from lakehouse_assets.lakehouse.receipts import READERS

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Made:
    """The last attempt at a chunk. launcher: who made it. work: its assignment's. id: the worker's; None while nobody
    knows whether there is one (the process died between asking for a worker and hearing of it)."""

    number: int
    launcher: str
    work: str
    id: str | None = None


@dataclass(frozen=True)
class Attempts:
    """The attempts of one run token. prefix: where its receipts lie. io: a FileIO for the prefix."""

    io: FileIO
    prefix: str

    def last(self, chunks: Iterable[int]) -> dict[int, Made]:
        """The last attempt at each of the chunks (ordinals) that had one.

        Raises OSError when the storage can't be read: an attempt unread may be a worker that runs.
        """
        with ThreadPoolExecutor(READERS, thread_name_prefix="attempts") as pool:
            chunks = list(chunks)
            return {chunk: made for chunk, made in zip(chunks, pool.map(self._read, chunks), strict=True) if made}

    def note(self, chunk: int, made: Made) -> None:
        """Write the attempt down, over the one before."""
        with self.io.new_output(self._location(chunk)).create(overwrite=True) as stream:
            stream.write(json.dumps(asdict(made)).encode())

    def _location(self, chunk: int) -> str:
        return f"{self.prefix}/{chunk:05d}.attempt.json"

    def _read(self, chunk: int) -> Made | None:
        try:
            with self.io.new_input(self._location(chunk)).open() as stream:
                return Made(**json.loads(stream.read()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:  # torn: the process died while writing, so nothing was started yet
            logger.warning("%s is no whole note of an attempt: %s", self._location(chunk), error)
            return None

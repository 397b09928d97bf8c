"""Which attempt at a chunk was made last, and as what it runs: durable beside the receipts, for a later process.
Only for launchers whose workers outlive this one; what becomes of an attempt is drive.py's."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from pyiceberg.io import FileIO

from resources.object_store import READERS

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Made:
    """The last attempt at a chunk. launcher: who made it. work: its assignment's. at: when (ISO 8601, with its offset).
    id: the worker's; None while nobody knows whether there is one (the process died between asking for a worker and
    hearing of it)."""

    number: int
    launcher: str
    work: str
    at: str
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
            return {chunk: made for chunk, made in zip(chunks, pool.map(self._last, chunks), strict=True) if made}

    def note(self, chunk: int, made: Made) -> None:
        """Write the attempt down: before its worker is asked for, and with the worker's id when that is known.

        Two objects: who is interrupted while writing closes half of one, which must not cost what was known before.
        """
        with self.io.new_output(self.location(chunk, heard=made.id is not None)).create(overwrite=True) as stream:
            stream.write(json.dumps(asdict(made)).encode())

    def location(self, chunk: int, *, heard: bool) -> str:
        """Where an attempt is noted. heard: with the worker's id."""
        return f"{self.prefix}/{chunk:05d}.{'worker' if heard else 'attempt'}.json"

    def _last(self, chunk: int) -> Made | None:
        if not (made := self._read(self.location(chunk, heard=False))):
            return None
        heard = self._read(self.location(chunk, heard=True))
        return heard if heard and heard.number == made.number else made

    def _read(self, location: str) -> Made | None:
        try:
            with self.io.new_input(location).open() as stream:
                return Made(**json.loads(stream.read()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:  # torn: of an attempt nothing was asked for yet, of an id it is found
            logger.warning("%s is no whole note of an attempt: %s", location, error)
            return None

"""Receipts: where they lie, how a worker writes one, how a run finds those that are there.
No Dagster and no Spark: both sides import this. What a receipt says is protocol/assignment.py's."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyiceberg.io import FileIO

from lakehouse_assets.protocol.assignment import Receipt

logger = logging.getLogger(__name__)

# Round trips to an object store overlap; more threads than this only queue for the connection pool.
READERS = 16


@dataclass(frozen=True)
class Receipts:
    """The receipts of one table. prefix: beside the table, never under it, where they would pass for its orphans; a
    table bucket in S3 Tables' manner refuses them altogether. io: a FileIO for the prefix."""

    io: FileIO
    prefix: str

    def location(self, token: str, chunk: int) -> str:
        """Where the receipt of a run's chunk (from 0) is written."""
        return f"{self.folder(token)}/{chunk:05d}.json"

    def folder(self, token: str) -> str:
        """The prefix under which a run's receipts lie."""
        return f"{self.prefix}/{token}"

    def find(self, token: str, chunks: Iterable[int]) -> list[Receipt]:
        """The receipts of a run's chunks (ordinals) that are there, in the order asked for.

        Torn or foreign files are left out with a warning: their chunk is staged again. FileIO can't list, so each
        place is tried. Raises OSError when the storage can't be read: a receipt unread is not a receipt missing.
        """
        with ThreadPoolExecutor(READERS, thread_name_prefix="receipts") as pool:
            return [r for r in pool.map(lambda chunk: self._read(token, chunk), chunks) if r is not None]

    def _read(self, token: str, chunk: int) -> Receipt | None:
        location = self.location(token, chunk)
        try:
            with self.io.new_input(location).open() as stream:
                text = stream.read()
        except FileNotFoundError:
            return None
        try:
            receipt = Receipt.from_json(text.decode())
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            logger.warning("%s is no whole receipt, its chunk is staged again: %s", location, error)
            return None
        if (receipt.token, receipt.chunk) != (token, chunk):
            logger.warning("%s belongs to run %s, chunk %s: left out", location, receipt.token, receipt.chunk)
            return None
        return receipt


def write_receipt(io: FileIO, location: str, receipt: Receipt) -> None:
    """Write a receipt in one piece, over whatever a worker before left there."""
    with io.new_output(location).create(overwrite=True) as stream:
        stream.write(receipt.to_json().encode())

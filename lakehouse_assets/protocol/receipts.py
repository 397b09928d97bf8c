"""Receipts: what one says, where a run's receipts lie, how a worker writes one and how the run finds them.

No Dagster and no Spark: both sides of the process border import this.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from lakehouse_assets.protocol.merging import Merged
from lakehouse_assets.protocol.versions import Durable
from resources.aws import READERS

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

    from lakehouse_assets.protocol.assignment import Assignment

logger = logging.getLogger(__name__)

R = TypeVar("R")


@dataclass(frozen=True)
class FailedCheck:
    """A check that rows of a chunk fail."""

    name: str
    rows: int
    """How many rows fail it."""
    examples: tuple[str, ...]
    """Some of these rows, as text."""


@dataclass(frozen=True)
class Receipt(Durable):
    """The proof that a chunk was staged. It is durable: it outlives the worker and its run."""

    table: str
    token: str
    chunk: int
    keys: tuple[str, ...]
    """The chunk's partition keys."""
    work: str
    """Assignment.work."""
    fork_base: str
    """The metadata file that the worker registered."""
    metadata_location: str
    """The metadata file that its append or merge wrote; ``fork_base`` where a merge changes no row."""
    rows: int
    """Rows in the files that were written."""
    stage_seconds: float
    """From the worker's start until its rows are staged and checked."""
    created_at: str
    """With a timezone, in ISO 8601."""
    worker: str
    """The host that it ran on, for a person to read."""
    duplicates: tuple[str, ...] = ()
    """At most 5 examples of rows that break ``unique``, each with its partition."""
    base_snapshot_id: int | None = None
    """The snapshot that the fork base was made from; None: without history."""
    merged: Merged | None = None
    """What a merge did; None where rows were appended."""
    failed_checks: tuple[FailedCheck, ...] = ()
    """Those of the table's ``checks`` that rows fail."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Assignment.parts."""

    @classmethod
    def of(cls, assignment: Assignment, **staged: Any) -> Receipt:
        """Returns the receipt of an assignment. staged: the other fields."""
        return cls(
            table=assignment.table,
            token=assignment.token,
            chunk=assignment.chunk,
            keys=assignment.window.keys,
            work=assignment.work,
            parts=assignment.parts,
            fork_base=assignment.fork_base,
            base_snapshot_id=assignment.base_snapshot_id,
            **staged,
        )

    def write(self, io: FileIO, location: str) -> None:
        """Writes the receipt in one piece, over that of an earlier worker."""
        write_json(io, location, self.to_json())


@dataclass(frozen=True)
class Receipts:
    """The receipts of one table."""

    io: FileIO
    prefix: str
    """Where they lie. Never under the table: there they would count as its orphans, and table buckets such as those of
    S3 Tables refuse them."""

    def location(self, token: str, chunk: int) -> str:
        """Returns where the receipt of a run's chunk (from 0) lies."""
        return f"{self.folder(token)}/{chunk:05d}.json"

    def folder(self, token: str) -> str:
        """Returns where a run's receipts lie."""
        return f"{self.prefix}/{token}"

    def find(self, token: str, chunks: Iterable[int]) -> list[Receipt]:
        """Reads the receipts of a run's chunks (ordinals), in their order, without those that are missing.

        Torn or foreign files, and those of another version, are left out with a warning: their chunk is staged again.
        FileIO has no listing, so each location is tried. Raises OSError when the storage can't be read: the receipts
        may be there.
        """
        with ThreadPoolExecutor(READERS, thread_name_prefix="receipts") as pool:
            return [r for r in pool.map(lambda chunk: self._read(token, chunk), chunks) if r is not None]

    def _read(self, token: str, chunk: int) -> Receipt | None:
        location = self.location(token, chunk)
        receipt = read_json(self.io, location, Receipt.from_json)
        if receipt and (receipt.token, receipt.chunk) != (token, chunk):
            logger.warning("%s belongs to run %s, chunk %s: left out", location, receipt.token, receipt.chunk)
            return None
        return receipt


def write_json(io: FileIO, location: str, text: str) -> None:
    """Writes a receipt of any kind in one piece, over that of an earlier worker."""
    with io.new_output(location).create(overwrite=True) as stream:
        stream.write(text.encode())


def read_json(io: FileIO, location: str, parse: Callable[[str], R]) -> R | None:
    """Reads a receipt of any kind; None if it is missing.

    It also counts as missing, with a warning, if it is torn, foreign or of another version. Raises OSError when the
    storage can't be read.
    """
    try:
        with io.new_input(location).open() as stream:
            text = stream.read()
    except FileNotFoundError:
        return None
    try:
        return parse(text.decode())
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("%s can't be used and counts as missing; what it proves is staged again: %s", location, error)
        return None

"""Receipts: what one says, where a run's receipts lie, how a worker writes one and how the run finds them.
No Dagster and no Spark: both sides of the process border import this."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from lakehouse_assets.protocol.merging import Merged
from lakehouse_assets.protocol.versions import with_version, without_version
from resources.aws import READERS

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

    from lakehouse_assets.protocol.assignment import Assignment

logger = logging.getLogger(__name__)

R = TypeVar("R")


@dataclass(frozen=True)
class FailedCheck:
    """rows: how many fail it. examples: some of them, as text."""

    name: str
    rows: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Receipt:
    """The proof that a chunk was staged. Durable: it outlives the worker and its run.

    keys: the chunk's partition keys. work, parts: Assignment's.
    fork_base, metadata_location: the metadata file that the worker registered, and the one that its append wrote.
    base_snapshot_id: the snapshot that the fork base was made from; None: without history.
    duplicates: at most 5 examples of rows that break ``unique``, each with its partition. failed_checks: of the table's
    ``checks``, those that rows fail.
    stage_seconds: from the worker's start to the staged append. created_at: with a timezone, ISO 8601.
    worker: the host it ran on, for a person to read. merged: what a merge did; None where rows were appended.
    """

    table: str
    token: str
    chunk: int
    keys: tuple[str, ...]
    work: str
    fork_base: str
    metadata_location: str
    rows: int
    stage_seconds: float
    created_at: str
    worker: str
    duplicates: tuple[str, ...] = ()
    base_snapshot_id: int | None = None
    merged: Merged | None = None
    failed_checks: tuple[FailedCheck, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, assignment: Assignment, **staged: Any) -> Receipt:
        """The receipt of an assignment. staged: the other fields."""
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

    def to_json(self) -> str:
        return json.dumps(with_version(asdict(self)))

    def write(self, io: FileIO, location: str) -> None:
        """Write it in one piece, over that of an earlier worker."""
        write_json(io, location, self.to_json())

    @classmethod
    def from_json(cls, text: str) -> Receipt:
        """Raises ValueError, for a torn or foreign file also TypeError, KeyError or AttributeError."""
        fields = without_version(json.loads(text))
        merged = Merged.from_json(fields["merged"])
        tuples = {name: tuple(fields[name]) for name in ("keys", "duplicates")}
        failed = tuple(FailedCheck(**{**of, "examples": tuple(of["examples"])}) for of in fields["failed_checks"])
        return cls(**{**fields, **tuples, "merged": merged, "failed_checks": failed})


@dataclass(frozen=True)
class Receipts:
    """The receipts of one table. prefix: where they lie; never under the table: there they would count as its orphans,
    and table buckets such as S3 Tables' refuse them."""

    io: FileIO
    prefix: str

    def location(self, token: str, chunk: int) -> str:
        """Where the receipt of a run's chunk (from 0) lies."""
        return f"{self.folder(token)}/{chunk:05d}.json"

    def folder(self, token: str) -> str:
        """Where a run's receipts lie."""
        return f"{self.prefix}/{token}"

    def find(self, token: str, chunks: Iterable[int]) -> list[Receipt]:
        """The receipts of a run's chunks (ordinals), in their order, without those that are missing.

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
    """Write a receipt of any kind in one piece, over that of an earlier worker."""
    with io.new_output(location).create(overwrite=True) as stream:
        stream.write(text.encode())


def read_json(io: FileIO, location: str, parse: Callable[[str], R]) -> R | None:
    """A receipt of any kind; None if it is missing, and with a warning if it is torn, foreign or of another version.
    Raises OSError when the storage can't be read."""
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

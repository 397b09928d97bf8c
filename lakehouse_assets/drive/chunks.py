"""The chunks of a run: their partition keys, attempts and receipts, and the journal that records them.

The journal lies below LAKEHOUSE_STAGING, so that another process can go on with the run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pyiceberg.io import FileIO

from lakehouse_assets.environment.launchers.base import Attempt, Ended, Handle, NotStarted, Patience, Usage
from lakehouse_assets.errors import ForeignVersion
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.storage.objects import at_once
from lakehouse_assets.wire.receipts import Receipt, read_json
from lakehouse_assets.wire.work import CAUSE, FORMAT_VERSION, OUT_OF_REACH, Cause, Durable

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
            if (version := fields["version"]) != FORMAT_VERSION:
                raise ForeignVersion(
                    f"{location} records an attempt in version {version}, this code reads version {FORMAT_VERSION}. "
                    "A worker may run, so no second one is started, and nothing was published. Materialize the "
                    "partitions anew (a new run, not a re-execution from failure), or resume the run with the code "
                    "that wrote the file"
                )
            return AttemptRecord.from_json(fields)

        return read_json(self.io, location, parse)


# The most attempts of one run at one chunk; a further attempt follows only on a transient end, or a worker's report
# that something was out of reach.
ATTEMPTS = 4
# A worker that is not started costs nothing, and a shortage of capacity may last.
REFUSED_SECONDS = 1800.0
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 5.0, 120.0


@dataclass(frozen=True)
class Chunk:
    """One worker's share of a run."""

    ordinal: int
    """Its place among the run's chunks, from 0."""
    keys: tuple[str, ...]
    """The partition keys that it covers; empty for a whole table."""

    def __str__(self) -> str:
        return keys_text(self.keys)


@dataclass(frozen=True)
class WorkerFailure:
    """The reason why a chunk has no receipt."""

    chunk: Chunk
    message: str
    traceback: str = ""
    """The traceback of the worker's own code; empty when the worker could not report it."""
    log: str = ""
    """The last lines of the worker's own log, where the run's logs don't have it."""
    bad: tuple[str, ...] = ()
    """The chunk's partitions that the step named as the reason."""
    cause: Cause = Cause.WORKER


@dataclass
class Results:
    """The results of a run's workers so far."""

    receipts: dict[int, Receipt] = field(default_factory=dict)
    """The receipts of the chunks that are done, by ordinal."""
    failures: list[WorkerFailure] = field(default_factory=list)
    links: dict[int, str] = field(default_factory=dict)
    """Links to each worker's page or log, by chunk ordinal."""
    usages: list[Usage] = field(default_factory=list)
    """The usages of all attempts, failed ones too."""
    running: int = 0
    """Number of running workers."""
    waiting: bool = False
    """Whether a chunk has waited noticeably for a slot that other runs hold."""

    def forget_chunks(self) -> None:
        """Forgets what became of the chunks, as all of them are staged again."""
        self.receipts.clear()
        self.failures.clear()


@dataclass(frozen=True)
class PendingChunk:
    """A chunk that waits for its worker."""

    chunk: Chunk
    attempt: Attempt
    record: AttemptRecord | None = None
    """The last attempt of an earlier process, until it is known what became of it."""
    handle: Handle | None = None
    """The worker of the earlier process, if it still runs."""
    inherited: bool = False
    """Whether an earlier process made the attempt, and may have stopped its worker as well."""
    tries: int = 1
    refusals: int = 0
    shortage: Patience = field(default_factory=lambda: Patience(REFUSED_SECONDS))
    """How long the service has refused to start a worker."""
    due: float = 0.0
    """When to start the worker, on time.monotonic()."""


@dataclass(frozen=True)
class Retry:
    """The decision to try a chunk again in ``wait`` seconds."""

    pending: PendingChunk
    reason: str
    """Continues a sentence that begins with "the worker"."""
    wait: float


def after_end(pending: PendingChunk, ended: Ended, failure: Mapping[str, Any] | None) -> Retry | WorkerFailure:
    """Decides what follows a worker's end without a receipt.

    There is another attempt, up to ATTEMPTS, if the end was transient, or if the worker reported that something was out
    of reach. failure: what it reported.
    """
    if pending.inherited and ended.stopped:
        # Its stop was meant for the earlier run, not for this one.
        ended = replace(ended, transient=True)
    error = f"{failure['type']}: {failure['message']}" if failure else ""
    if failure and not (ended.transient or failure.get(OUT_OF_REACH)):
        named = tuple(key for key in pending.chunk.keys if key in failure.get("partitions", ()))
        cause = Cause(failure.get(CAUSE, Cause.STEP))
        return WorkerFailure(pending.chunk, error, failure["traceback"], bad=named, cause=cause)
    reason = f"{ended.reason}; it reported {error}" if failure else ended.reason
    if pending.tries >= ATTEMPTS or not (ended.transient or failure):
        tried = f", in attempt {pending.tries} of {ATTEMPTS}" if pending.tries > 1 else ""
        return WorkerFailure(pending.chunk, f"the worker {reason}{tried} and left no receipt")
    attempt = replace(pending.attempt, number=pending.attempt.number + 1)
    # The worker had started, so an earlier shortage is over: a new PendingChunk has no refusals.
    return Retry(PendingChunk(pending.chunk, attempt, tries=pending.tries + 1), reason, _wait(pending.tries))


def after_refusal(pending: PendingChunk, refused: NotStarted, now: float) -> Retry | WorkerFailure:
    """Decides whether to try the same chunk later: if its worker may well be started then. now: on time.monotonic()."""
    shortage = replace(pending.shortage)
    if shortage.failed(now) or not refused.transient:
        tried = f", {pending.refusals + 1} times" if pending.refusals else ""
        return WorkerFailure(pending.chunk, f"the worker was not started{tried}: {refused}")
    # If no answer came there may be a worker: the same key finds it, or starts it once.
    attempt = replace(pending.attempt, number=pending.attempt.number + (not refused.unconfirmed))
    later = replace(
        pending,
        attempt=attempt,
        inherited=pending.inherited and refused.unconfirmed,
        refusals=pending.refusals + 1,
        shortage=shortage,
    )
    return Retry(later, f"was not started: {refused}", _wait(later.refusals))


def _wait(times: int) -> float:
    return random.uniform(0.5, 1) * min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** (times - 1))

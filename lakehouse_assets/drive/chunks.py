"""Chunks of a run, and the journal that lets another process continue the run.

An *attempt* is one start of a worker for a chunk. A worker that has staged its chunk leaves a *receipt*. A chunk's
*work* is a hash of everything that decides its rows.
"""

from __future__ import annotations

import json
import random
from collections import Counter
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
from lakehouse_assets.wire.work import CAUSE, OUT_OF_REACH, Cause, Durable

Found = TypeVar("Found")


@dataclass(frozen=True)
class AttemptRecord(Durable):
    """The last attempt at a chunk."""

    number: int
    """From 1, over all runs of the token."""
    launcher: str
    """The launcher's class: another launcher can't find the worker."""
    work: str
    """As in Attempt."""
    at: str
    """When it was made, in ISO 8601 with a UTC offset."""
    id: str | None = None
    """The worker's id. None if the process died between the request and the answer: there may be a worker."""


@dataclass(frozen=True)
class Journal:
    """The journal of one run token (the id of the first run in a chain of re-executions): files by chunk ordinal."""

    io: FileIO
    folder: str
    """Not under the table: the files would be its orphans, and table buckets (S3 Tables) refuse them."""

    def receipt_location(self, chunk: int) -> str:
        """Returns the path of a chunk's receipt."""
        return f"{self.folder}/{chunk:05d}.json"

    def receipts(self, chunks: Iterable[int]) -> list[Receipt]:
        """Reads these chunks' receipts, in order, of whatever work.

        Skips missing receipts and, with a warning, torn files and those of another version: their chunk is staged
        again. Raises OSError if the storage can't be read: the receipts may exist.
        """
        return [receipt for receipt in self._map(self._receipt, chunks).values() if receipt]

    def staged_on(self, chunks: Iterable[int]) -> int | None:
        """Returns the snapshot on which most of these chunks were staged. Raises as receipts()."""
        found = Counter(receipt.base_snapshot_id for receipt in self.receipts(chunks))
        return found.most_common(1)[0][0] if found else None

    def find(self, attempts: Iterable[Attempt]) -> dict[int, Receipt]:
        """Finds the receipts that prove that the work of these attempts is done, by chunk. Raises as receipts()."""
        work = {attempt.ordinal: attempt.work for attempt in attempts}
        found = self._map(self._receipt, work)
        return {chunk: receipt for chunk, receipt in found.items() if receipt and receipt.work == work[chunk]}

    @staticmethod
    def parse(reported: object, attempt: Attempt) -> Receipt | None:
        """Parses a reported receipt; None for other work, or for anything else that user code reports."""
        if not isinstance(reported, str):
            return None
        with suppress(ValueError):
            receipt = Receipt.from_json(reported)
            return receipt if receipt.work == attempt.work else None
        return None

    def last(self, chunks: Iterable[int]) -> dict[int, AttemptRecord]:
        """Returns the last attempt at each chunk that had one.

        Raises OSError if the storage can't be read, ForeignVersion for a record of another version: the worker that it
        names may be running.
        """
        return {chunk: record for chunk, record in self._map(self._last, chunks).items() if record}

    def record(self, chunk: int, attempt: AttemptRecord) -> None:
        """Records an attempt: before its worker is requested, and again with the worker's id.

        The record with the id goes to another file: an interrupted write must not destroy the first record.
        """
        attempt.write(self.io, self.record_location(chunk, with_id=attempt.id is not None))

    def record_location(self, chunk: int, *, with_id: bool) -> str:
        """Returns the path of an attempt's record."""
        return f"{self.folder}/{chunk:05d}.{'worker' if with_id else 'attempt'}.json"

    def _map(self, read: Callable[[int], Found], chunks: Iterable[int]) -> dict[int, Found]:
        """Reads one file for each chunk, several at a time; returns the contents by chunk."""
        chunks = list(chunks)
        return dict(zip(chunks, at_once(read, chunks), strict=True))

    def _receipt(self, chunk: int) -> Receipt | None:
        return read_json(self.io, self.receipt_location(chunk), Receipt.from_json)

    def _last(self, chunk: int) -> AttemptRecord | None:
        record = self._read(self.record_location(chunk, with_id=False))
        started = self._read(self.record_location(chunk, with_id=True)) if record else None
        # Of another number, it is left from an earlier attempt: the last one has recorded no id yet.
        return started if record and started and started.number == record.number else record

    def _read(self, location: str) -> AttemptRecord | None:
        """Reads a record; None if it is missing or torn.

        A torn one may be ignored: the first file is complete before a worker is requested, and without the second, the
        attempt's key finds the worker.
        """

        def parse(text: str) -> AttemptRecord:
            fields = json.loads(text)
            if (version := fields["version"]) != AttemptRecord.FORMAT:
                raise ForeignVersion(
                    f"{location} records an attempt in version {version}, but this code reads version "
                    f"{AttemptRecord.FORMAT}. A worker may be running, so no second one was started, and nothing was "
                    "published. Materialize the partitions again in a new run, not by re-executing from failure; or "
                    "resume the run with the code that wrote the file"
                )
            return AttemptRecord.from_json(fields)

        return read_json(self.io, location, parse)


# The most attempts of one run at one chunk.
ATTEMPTS = 4
# How long starts may be refused. Long: a worker that is not started costs nothing, and a shortage of capacity may last.
REFUSED_SECONDS = 1800.0
# The wait before another try doubles from the first to the longest.
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 5.0, 120.0


@dataclass(frozen=True)
class Chunk:
    """One worker's share of a run."""

    ordinal: int
    keys: tuple[str, ...]
    """Empty for a whole table."""

    def __str__(self) -> str:
        return keys_text(self.keys)


@dataclass(frozen=True)
class WorkerFailure:
    """Why a chunk has no receipt."""

    chunk: Chunk
    message: str
    traceback: str = ""
    log: str = ""
    """The end of the worker's own log, if the run's log lacks it."""
    bad: tuple[str, ...] = ()
    """The keys that the step named as bad."""
    cause: Cause = Cause.WORKER


@dataclass
class Results:
    """The results of a run's workers so far."""

    receipts: dict[int, Receipt] = field(default_factory=dict)
    failures: list[WorkerFailure] = field(default_factory=list)
    links: dict[int, str] = field(default_factory=dict)
    """By chunk: where a person finds its last worker."""
    usages: list[Usage] = field(default_factory=list)
    """What all attempts used, including failed ones."""
    running: int = 0
    waiting: bool = False
    """Whether a chunk waits for a slot of the pool that other runs hold."""

    def forget_chunks(self) -> None:
        """Clears receipts and failures: all chunks are staged again."""
        self.receipts.clear()
        self.failures.clear()


@dataclass(frozen=True)
class PendingChunk:
    """A chunk that waits for its worker."""

    chunk: Chunk
    attempt: Attempt
    record: AttemptRecord | None = None
    """An earlier process's last attempt, until its outcome is known."""
    handle: Handle | None = None
    """The worker of that attempt, if it still runs."""
    inherited: bool = False
    """Whether an earlier process made ``attempt``, and may have stopped its worker."""
    tries: int = 1
    """This run's attempts, this one included."""
    refusals: int = 0
    """How often a start was refused since the last attempt."""
    shortage: Patience = field(default_factory=lambda: Patience(REFUSED_SECONDS))
    """How long starts have been refused."""
    due: float = 0.0
    """When to start the worker, on time.monotonic()."""


@dataclass(frozen=True)
class Retry:
    """A decision to try again in ``wait`` seconds."""

    pending: PendingChunk
    reason: str
    """The rest of a sentence that begins with "the worker"."""
    wait: float


def after_end(pending: PendingChunk, ended: Ended, failure: Mapping[str, Any] | None) -> Retry | WorkerFailure:
    """Decides what follows if a worker ends without a receipt.

    Retries, up to ATTEMPTS, if the end was transient or the worker reported that something was out of reach. failure:
    what the worker reported, if anything.
    """
    if pending.inherited and ended.stopped:
        # The stop was meant for the earlier process: it does not speak against another attempt.
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
    # No refusals: the worker had started, so an earlier shortage is over.
    return Retry(PendingChunk(pending.chunk, attempt, tries=pending.tries + 1), reason, _wait(pending.tries))


def after_refusal(pending: PendingChunk, refused: NotStarted, now: float) -> Retry | WorkerFailure:
    """Decides whether to try later to start a worker that was refused. now: on time.monotonic()."""
    shortage = replace(pending.shortage)
    if shortage.since is not None:  # the wait for a slot, from ``due`` until now, is no part of the shortage
        shortage.since += max(0.0, now - pending.due)
    if shortage.failed(now) or not refused.transient:
        tried = f", {pending.refusals + 1} times" if pending.refusals else ""
        return WorkerFailure(pending.chunk, f"the worker was not started{tried}: {refused}")
    # Without an answer there may be a worker: the same attempt's key finds that worker, or starts only one.
    # After an answer, True counts as 1: the next attempt gets another key.
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
    """Returns the wait in seconds; random, so that many chunks don't try again at once."""
    return random.uniform(0.5, 1) * min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** (times - 1))

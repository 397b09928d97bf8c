"""A chunk, which is one worker's share of a run: while it waits, after its worker ended, and what came of all of them.

Plain data and decisions, without effects. How a run is cut into chunks is run/plan.py's; the loop is drive.py.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lakehouse_assets.drive.journal import AttemptRecord
from lakehouse_assets.environment.launchers.base import Attempt, Ended, Handle, NotStarted, Patience, Usage
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.protocol.assignment import CAUSE, OUT_OF_REACH, Cause
from lakehouse_assets.protocol.receipts import Receipt

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
    of reach. failure: what it reported (worker/failure.py).
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

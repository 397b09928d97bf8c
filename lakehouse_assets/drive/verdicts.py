"""What becomes of a chunk whose worker ended without a receipt, or was not started: tried again, or failed.
Decisions only: nothing is asked, started, waited for or logged here (drive.py)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lakehouse_assets.drive.attempts import Made
from lakehouse_assets.drive.results import WorkerFailure
from lakehouse_assets.protocol.assignment import OUT_OF_REACH
from lakehouse_assets.run.plan import Chunk
from resources.launchers.base import Attempt, Ended, Handle, NotStarted

# Of one run, at one chunk; further ones follow only a transient end.
ATTEMPTS = 4
# A worker that is not started costs nothing: a shortage of capacity may last.
REFUSED_SECONDS = 1800.0
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 5.0, 120.0


@dataclass(frozen=True)
class Waiting:
    """A chunk that waits for its worker. made: the last attempt of an earlier process, until it is known what became
    of it. handle: the worker of that process, which still runs. of_before: whether the attempt is that process's, which
    may have asked for its end as well. refused_since, due: on time.monotonic()."""

    chunk: Chunk
    attempt: Attempt
    made: Made | None = None
    handle: Handle | None = None
    of_before: bool = False
    tries: int = 1
    refusals: int = 0
    refused_since: float = 0.0
    due: float = 0.0


@dataclass(frozen=True)
class Again:
    """The chunk, to be started in ``wait`` seconds. reason: reads behind "the worker"."""

    waiting: Waiting
    reason: str
    wait: float


def after_end(waited: Waiting, ended: Ended, said: Mapping[str, Any] | None) -> Again | WorkerFailure:
    """The next attempt where the worker's end was transient. said: what it said of its failure, if it could."""
    if waited.of_before and ended.stopped:
        # Whoever asked for its end meant the run before: it was ending, or had ended, when this one asked for it.
        ended = replace(ended, transient=True)
    told = f"{said['type']}: {said['message']}" if said else ""
    if said and not (ended.transient or said.get(OUT_OF_REACH)):
        return WorkerFailure(waited.chunk, told, said["traceback"])
    reason = f"{ended.reason}; it said {told}" if said else ended.reason
    if waited.tries >= ATTEMPTS or not (ended.transient or said):
        tried = f", in attempt {waited.tries} of {ATTEMPTS}" if waited.tries > 1 else ""
        return WorkerFailure(waited.chunk, f"the worker {reason}{tried} and left no receipt")
    attempt = replace(waited.attempt, number=waited.attempt.number + 1)
    # Of what was before its start nothing counts: a shortage from now on is another one.
    return Again(Waiting(waited.chunk, attempt, tries=waited.tries + 1), reason, _wait(waited.tries))


def after_refusal(waited: Waiting, refused: NotStarted, now: float) -> Again | WorkerFailure:
    """The same chunk later where its worker may well be started then. now: on time.monotonic()."""
    since = waited.refused_since or now
    if not refused.transient or now - since > REFUSED_SECONDS:
        tried = f", {waited.refusals + 1} times" if waited.refusals else ""
        return WorkerFailure(waited.chunk, f"the worker was not started{tried}: {refused}")
    # By the same key where no answer came: there may be a worker after all.
    attempt = replace(waited.attempt, number=waited.attempt.number + (not refused.unheard))
    further = replace(
        waited,
        attempt=attempt,
        of_before=waited.of_before and refused.unheard,
        refusals=waited.refusals + 1,
        refused_since=since,
    )
    return Again(further, f"was not started: {refused}", _wait(further.refusals))


def _wait(times: int) -> float:
    return random.uniform(0.5, 1) * min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** (times - 1))

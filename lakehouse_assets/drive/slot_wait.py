"""Decides what a run that waits for a slot of the pool logs, and when: who holds the slots, its place in the queue.

Decisions and text only: slots.py reads Dagster's storage, claims.py logs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from dagster._utils.concurrency import ConcurrencyKeyInfo

# A free slot is claimed at the second try at the latest, a second after the first.
NOTICED_SECONDS = 5.0
REPEATED_SECONDS = 60.0
# More runs than these are only counted.
NAMED_RUNS = 5


@dataclass(frozen=True)
class Queue:
    """The pool as one waiting worker sees it."""

    pool: str
    limit: int
    holders: Mapping[str, int]
    """Number of slots held or assigned, by run id, the most first."""
    place: int | None
    """The worker's place in the queue, from 1; None when it is not in the queue, because a slot is assigned to it."""
    length: int
    """The length of the queue."""

    @classmethod
    def of(cls, info: ConcurrencyKeyInfo, run_id: str, step: str) -> Queue:
        """Makes a queue of what Dagster's storage says of the pool. step: the step key of the worker's claim."""
        # A step that was assigned a slot stays pending until it takes it, which its process may not live to do.
        assigned = {(s.run_id, s.step_key) for s in info.pending_steps if s.assigned_timestamp}
        held = {(s.run_id, s.step_key) for s in info.claimed_slots}
        # The order in which Dagster assigns slots.
        queue = sorted(
            (s for s in info.pending_steps if not s.assigned_timestamp),
            key=lambda s: (-(s.priority or 0), s.enqueued_timestamp),
        )
        places = {(s.run_id, s.step_key): place for place, s in enumerate(queue, start=1)}
        holders = Counter(run for run, _ in (held | assigned) - {(run_id, step)})
        limit = info.slot_count if info.limit is None else info.limit
        return cls(info.concurrency_key, limit, dict(holders.most_common()), places.get((run_id, step)), len(queue))

    def only(self, run_id: str) -> bool:
        """Says whether the run waits for nobody but its own workers."""
        return set(self.holders) == {run_id}

    def metadata(self) -> dict[str, dg.MetadataValue]:
        """Returns the pool and the runs as metadata, which Dagster's log shows as links."""
        runs = {
            f"holder {number}: {_slots(self.holders[run])}": dg.MetadataValue.dagster_run(run)
            for number, run in enumerate(list(self.holders)[:NAMED_RUNS], start=1)
        }
        return {"pool": dg.MetadataValue.pool(self.pool), **runs}


def sentence(queue: Queue, run_id: str, work: str, seconds: float) -> str:
    """Returns what a waiting run logs. work: the chunk that is next. seconds: how long it has waited."""
    pool = f"the pool {queue.pool}, whose limit is {queue.limit}"
    if queue.only(run_id):
        return f"all slots of {pool}, are held by this run's own workers: {work} and those after it start as these end"
    if not queue.limit:
        waits = f"{work} waits for a slot of {pool}"
        return f"{waits}: nothing starts until it is raised in the UI, Deployment → Concurrency"
    named = list(queue.holders.items())[:NAMED_RUNS]
    held = [f"{'this run' if run == run_id else f'run {run}'} ({_slots(count)})" for run, count in named]
    if len(queue.holders) > NAMED_RUNS:
        held.append(f"{len(queue.holders) - NAMED_RUNS} more runs")
    place = f"place {queue.place} of {queue.length} in the queue" if queue.place else "it gets the next one"
    return (
        f"{work} has waited {seconds:.0f} s for a slot of {pool}: {place}. "
        f"Slots are held by {', '.join(held) or 'nobody'}. The limit is changed in the UI, Deployment → Concurrency"
    )


def _slots(count: int) -> str:
    return "1 slot" if count == 1 else f"{count} slots"


@dataclass
class SlotWait:
    """Decides when one run's wait is logged: once it is noticeable, then every minute, whichever chunk waits."""

    for_others: bool = False
    """Whether it was logged that the chunk that waits now waits for other runs."""
    _ordinal: int | None = None
    since: float = 0.0
    """When that chunk began to wait, in monotonic seconds."""
    _next: float = -math.inf
    _own_logged: bool = False

    def refused(self, ordinal: int, now: float) -> bool:
        """Notes that the chunk got no slot. Returns whether it is time to see who holds them.

        now: monotonic seconds.
        """
        if ordinal != self._ordinal:
            self._ordinal, self.since, self.for_others = ordinal, now, False
        if now < max(self.since + NOTICED_SECONDS, self._next):
            return False
        self._next = now + REPEATED_SECONDS
        return True

    def worth_logging(self, own: bool) -> bool:
        """Says whether to log who holds the slots.

        own: whether the run itself holds them all, which is logged once a run.
        """
        self.for_others = self.for_others or not own
        repeated = own and self._own_logged
        self._own_logged = self._own_logged or own
        return not repeated

    def claimed(self, ordinal: int, now: float) -> float | None:
        """Notes that the chunk has its slot. Returns the seconds that it waited for other runs, if that was logged."""
        waited = now - self.since if self.for_others and ordinal == self._ordinal else None
        self._ordinal, self.for_others = None, False
        return waited

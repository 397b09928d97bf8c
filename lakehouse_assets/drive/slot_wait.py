"""What a run that waits for a slot of the pool tells, and when: who holds the slots, and its place in the queue.
Asks nobody and writes no log: it is handed what the storage said (slots.py) and the time, and returns text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from dagster._utils.concurrency import ConcurrencyKeyInfo

# A slot that is free is had at the second try, a second after the first.
NOTICED_SECONDS = 5.0
REPEATED_SECONDS = 60.0
# Of the others the sentence gives the number.
NAMED_RUNS = 5


@dataclass(frozen=True)
class Queue:
    """The pool as one waiting worker sees it.

    holders: slots held or given, by run id, those with most first. place: of the worker among those that wait, counted
    from 1; None when it is not among them, as it is given the next slot there is. length: how many wait.
    """

    pool: str
    limit: int
    holders: Mapping[str, int]
    place: int | None
    length: int

    @classmethod
    def of(cls, info: ConcurrencyKeyInfo, run_id: str, step: str) -> Queue:
        """info: what Dagster's storage says of the pool. step: the step key of the worker's claim."""
        # Who is given a slot stays among the pending ones, and may not have taken it yet, or died before it could.
        given = {(s.run_id, s.step_key) for s in info.pending_steps if s.assigned_timestamp}
        held = {(s.run_id, s.step_key) for s in info.claimed_slots}
        # The order in which Dagster gives slots away.
        queue = sorted(
            (s for s in info.pending_steps if not s.assigned_timestamp),
            key=lambda s: (-(s.priority or 0), s.enqueued_timestamp),
        )
        places = {(s.run_id, s.step_key): place for place, s in enumerate(queue, start=1)}
        holders = Counter(run for run, _ in (held | given) - {(run_id, step)})
        limit = info.slot_count if info.limit is None else info.limit
        return cls(info.concurrency_key, limit, dict(holders.most_common()), places.get((run_id, step)), len(queue))

    def only(self, run_id: str) -> bool:
        """Whether the run waits for nobody but its own workers."""
        return set(self.holders) == {run_id}

    def metadata(self) -> dict[str, dg.MetadataValue]:
        """The pool and the runs as links, as Dagster's log shows them."""
        runs = {
            f"holder {number}: {_slots(self.holders[run])}": dg.MetadataValue.dagster_run(run)
            for number, run in enumerate(list(self.holders)[:NAMED_RUNS], start=1)
        }
        return {"pool": dg.MetadataValue.pool(self.pool), **runs}


def sentence(queue: Queue, run_id: str, work: str, seconds: float) -> str:
    """What a waiting run says. work: the chunk that is next. seconds: since when it waits."""
    pool = f"the pool {queue.pool}, whose limit is {queue.limit}"
    if queue.only(run_id):
        return (
            f"all slots of {pool}, are held by this run's own workers: {work} and what is behind it start as those end"
        )
    if not queue.limit:
        return (
            f"{work} waits for a slot of {pool}: nothing starts until it is raised in the UI, Deployment → Concurrency"
        )
    held = ", ".join(
        f"{'this run' if run == run_id else f'run {run}'} ({_slots(count)})"
        for run, count in list(queue.holders.items())[:NAMED_RUNS]
    )
    if len(queue.holders) > NAMED_RUNS:
        held += f", {len(queue.holders) - NAMED_RUNS} more runs"
    place = f"place {queue.place} of {queue.length} in the queue" if queue.place else "it gets the next one"
    return (
        f"{work} has waited {seconds:.0f} s for a slot of {pool}: {place}. Slots are held by {held or 'nobody'}. "
        "The limit is changed in the UI, Deployment → Concurrency"
    )


def _slots(count: int) -> str:
    return "1 slot" if count == 1 else f"{count} slots"


@dataclass
class SlotWait:
    """When one run's wait is told: once it is noticeable, then every minute, however many chunks wait by turns."""

    told: bool = False
    """Whether it was said that the chunk that waits now waits for others."""
    _ordinal: int | None = None
    _since: float = 0.0
    _next: float = field(default=-math.inf)
    _said_own: bool = False

    def refused(self, ordinal: int, now: float) -> bool:
        """Note that the chunk has no slot. Whether it is time to look who has. now: monotonic seconds."""
        if ordinal != self._ordinal:
            self._ordinal, self._since, self.told = ordinal, now, False
        if now < max(self._since + NOTICED_SECONDS, self._next):
            return False
        self._next = now + REPEATED_SECONDS
        return True

    def seconds(self, now: float) -> float:
        """How long the chunk has waited."""
        return now - self._since

    def worth_saying(self, own: bool) -> bool:
        """Note that it is looked at, and whether anything is to be said. own: all slots are held by the run itself;
        that is said once a run."""
        self.told = self.told or not own
        worth = not (own and self._said_own)
        self._said_own = self._said_own or own
        return worth

    def claimed(self, ordinal: int, now: float) -> float | None:
        """Note that the chunk has its slot. How long it waited, where that it waits was told."""
        waited = now - self._since if self.told and ordinal == self._ordinal else None
        self._ordinal, self.told = None, False
        return waited

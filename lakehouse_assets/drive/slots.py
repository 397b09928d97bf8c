"""Slots of the Dagster pool ``lake_workers``: the right to run one worker now, over all runs of the instance.

Nothing waits here: the poll loop claims again. While a run waits, its log says who holds the slots.

Dagster's own ``pool=`` bounds ops; here one op drives many workers, so each worker claims a slot through the
instance's storage. An op that waits in Dagster's executor burns a core (``interval_to_next_pending_claim_check``
returns ``min([0, …])``, 1.13.27) and, in process, ignores *Terminate*; a claim made here costs one query a second.
Claims carry the run's id, so run monitoring and the reaper free the slots of a dead run.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import dagster as dg

from lakehouse_assets.drive.chunk import Chunk
from lakehouse_assets.drive.this_run import ThisRun
from lakehouse_assets.environment.launchers.base import Patience

if TYPE_CHECKING:
    from dagster._core.storage.event_log import EventLogStorage
    from dagster._utils.concurrency import ConcurrencyKeyInfo

logger = logging.getLogger(__name__)

POOL = "lake_workers"
# Of another process's claim, which takes some 20 ms.
CLAIM_TIMEOUT = "5s"
# Each refused claim is a write to the instance's storage.
CLAIM_INTERVAL_SECONDS = 1.0
# How long Dagster's storage may be out of reach: a database that fails over is back in a minute or two.
UNREACHABLE_SECONDS = 300.0
# A free slot is claimed at the second try at the latest, a second after the first.
NOTICED_SECONDS = 5.0
REPEATED_SECONDS = 60.0
# More runs than these are only counted.
NAMED_RUNS = 5


class Slots:
    """The slots that one run claims.

    step: the op's step key; claims are named ``<step>[<chunk>]``, and the UI shows them by these names.
    """

    def __init__(self, instance: dg.DagsterInstance, run_id: str, step: str) -> None:
        self._storage = instance.event_log_storage
        self._run_id = run_id
        self._step = step
        self._claims: set[int] = set()
        self._to_free: set[int] = set()
        self._next_try = 0.0

    def claim(self, chunk: int) -> bool:
        """Tries to claim the chunk's slot, and returns whether it has it.

        Asks the storage at most once a second, until a claim is granted or free() is called; a refused claim keeps its
        place in the queue. A pool without a limit grants every claim.
        """
        if time.monotonic() < self._next_try:
            return False
        self._next_try = time.monotonic() + CLAIM_INTERVAL_SECONDS  # also where the storage can't be reached
        self._free_pending()
        self._claims.add(chunk)
        with _no_other_claims(self._storage):
            claim, name = self._storage.claim_concurrency_slot, self._name(chunk)
            claimed = not self._bounded() or claim(POOL, self._run_id, name).is_claimed
        if claimed:
            self._next_try = 0.0
        return claimed

    def queue(self, chunk: int) -> Queue:
        """Reads who holds the pool's slots and where the chunk stands in the queue: three reads of the storage."""
        return Queue.of(self._storage.get_concurrency_info(POOL), self._run_id, self._name(chunk))

    def free(self, chunk: int) -> None:
        """Frees the chunk's slot, or its place in the queue.

        While the storage can't be reached the slot stays taken: the next claim or free tries again, and Dagster frees
        it at the run's end.
        """
        self._to_free.add(chunk)
        self._claims.discard(chunk)
        try:
            self._free_pending()
        except Exception as error:  # each kind of storage has its own; no worker's result may be lost because of it
            logger.warning("chunk %d: its slot can't be given back yet: %r", chunk, error)
        self._next_try = 0.0

    def free_all(self) -> None:
        """Frees, as free() does, the slots and the places in the queue of all chunks that still have one."""
        for chunk in tuple(self._claims):
            self.free(chunk)

    def _free_pending(self) -> None:
        for chunk in tuple(self._to_free):
            self._storage.free_concurrency_slot_for_step(self._run_id, self._name(chunk))
            self._to_free.discard(chunk)

    def _bounded(self) -> bool:
        # Only for a pool without a limit of its own: the call would replace that by the default.
        if POOL not in self._storage.get_concurrency_keys():
            self._storage.initialize_concurrency_limit_to_default(POOL)
        return POOL in self._storage.get_concurrency_keys()

    def _name(self, chunk: int) -> str:
        return f"{self._step}[{chunk}]"


@contextmanager
def _no_other_claims(storage: EventLogStorage) -> Iterator[None]:
    """Keeps other processes from claiming meanwhile, which Dagster (1.13.27) does not do on PostgreSQL.

    It locks the row of a free slot and takes it in two statements, each of which commits by itself: two claims at once
    take one slot, and a third worker gets the other one. On SQLite environment/event_log.py keeps them apart, and
    Dagster+ has a storage of its own. Raises the database's error where the others take longer than CLAIM_TIMEOUT.
    """
    postgres = sys.modules.get("dagster_postgres")  # imported where the storage is one of its own
    if postgres is None or not isinstance(storage, postgres.PostgresEventLogStorage):
        yield
        return
    from sqlalchemy import text  # half a second: not needed to load definitions

    with storage.index_connection() as connection:  # the lock goes with it
        connection.execute(text(f"SET lock_timeout = '{CLAIM_TIMEOUT}'"))
        connection.execute(text("SELECT pg_advisory_lock(hashtext(:pool))"), {"pool": POOL})
        yield


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


@dataclass
class Claims:
    """Claims the slots of one run, chunk by chunk."""

    slots: Slots
    run: ThisRun
    wait: SlotWait = field(default_factory=SlotWait)
    """The wait of the chunk that claims now."""
    _unreachable: Patience = field(default_factory=lambda: Patience(UNREACHABLE_SECONDS))

    def claim(self, chunk: Chunk) -> bool:
        """Tries to claim the chunk's slot, and returns whether it has it.

        Raises the storage's error once it has lasted for UNREACHABLE_SECONDS.
        """
        try:
            claimed = self.slots.claim(chunk.ordinal)
        except Exception as error:  # each kind of storage has its own
            if self._unreachable.failed(time.monotonic()):
                raise
            logger.warning("chunk %d: its slot can't be claimed yet, workers go on: %r", chunk.ordinal, error)
            return False
        self._unreachable.succeeded()
        if not claimed:
            if self.wait.refused(chunk.ordinal, time.monotonic()):
                self._log_wait(chunk)
        elif (waited := self.wait.claimed(chunk.ordinal, time.monotonic())) is not None:
            self.run.log(logging.INFO, f"chunk {chunk.ordinal} ({chunk}) has its slot, after {waited:.0f} s")
        return claimed

    def _log_wait(self, chunk: Chunk) -> None:
        """Logs who holds the slots, as Dagster logs its own ops' waits."""
        try:
            queue = self.slots.queue(chunk.ordinal)
            if self.wait.worth_logging(own=queue.only(self.run.id)):
                seconds = time.monotonic() - self.wait.since
                text = sentence(queue, self.run.id, f"chunk {chunk.ordinal} ({chunk})", seconds)
                self.run.engine_event(text, queue.metadata())
        except Exception as error:  # each kind of storage has its own
            logger.warning("chunk %d waits for a slot; who holds the slots can't be logged: %r", chunk.ordinal, error)

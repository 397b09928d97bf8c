"""Slots of the Dagster pool ``lake_workers``, which limits the workers of all runs of an instance.

Dagster's ``pool=`` bounds ops, but here one op drives many workers. An op that waits in Dagster's executor burns a core
(``interval_to_next_pending_claim_check`` returns ``min([0, …])``, 1.13.27) and, in process, ignores *Terminate*; a
claim here costs one query a second.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import dagster as dg

from lakehouse_assets.drive.chunks import Chunk
from lakehouse_assets.drive.liveness import Lookout, ThisRun
from lakehouse_assets.environment.launchers.base import Patience

if TYPE_CHECKING:
    from dagster._core.storage.event_log import EventLogStorage

logger = logging.getLogger(__name__)

POOL = "lake_workers"
# The longest wait for another process's claim, which takes some 20 ms.
CLAIM_TIMEOUT = "5s"
# Between two refused claims: each is a write to the instance's storage.
CLAIM_INTERVAL_SECONDS = 1.0
# How long claims may fail before the run does: a database that fails over is back in a minute or two.
UNREACHABLE_SECONDS = 300.0
# Only longer waits are logged: a free slot is granted at the second try, a second after the first.
NOTICED_SECONDS = 5.0
# Between two such lines of the log.
REPEATED_SECONDS = 60.0


class Slots:
    """The slots that one run claims. step: the step key; the UI shows claims as ``<step>[<chunk>]``."""

    def __init__(self, instance: dg.DagsterInstance, run_id: str, step: str) -> None:
        self._storage = instance.event_log_storage
        self._run_id = run_id
        self._step = step
        # The chunks that have a slot or a place in the queue, and those whose slots are yet to be freed.
        self._claims: set[int] = set()
        self._to_free: set[int] = set()
        self._next_try = 0.0

    def claim(self, chunk: int) -> bool | None:
        """Tries to claim the chunk's slot; returns whether it was granted, None if the storage was not asked.

        Asks the storage at most once a second, unless a claim was granted or free() called. A refused claim keeps its
        place in Dagster's queue. A pool without a limit grants all.
        """
        if time.monotonic() < self._next_try:
            return None
        self._next_try = time.monotonic() + CLAIM_INTERVAL_SECONDS  # also if the storage can't be reached
        self._free_pending()
        # Before the call: a refused claim has a place in the queue, and a failed one may have.
        self._claims.add(chunk)
        with no_other_claims(self._storage):
            claim, name = self._storage.claim_concurrency_slot, self._name(chunk)
            claimed = not self._bounded() or claim(POOL, self._run_id, name).is_claimed
        if claimed:
            self._next_try = 0.0
        return claimed

    def holders(self) -> set[str]:
        """Reads the ids of the runs that hold slots or were assigned one."""
        info = self._storage.get_concurrency_info(POOL)
        return info.active_run_ids | info.assigned_run_ids

    def free(self, chunk: int) -> None:
        """Frees the chunk's slot, or its place in the queue.

        If the storage can't be reached, the next claim() or free() retries; at the run's end, Dagster frees the slot.
        """
        self._to_free.add(chunk)
        self._claims.discard(chunk)
        try:
            self._free_pending()
        except Exception as error:  # must not lose a worker's result
            logger.warning("chunk %d: its slot can't be released yet: %r", chunk, error)
        self._next_try = 0.0

    def free_all(self) -> None:
        """Frees all slots and places in the queue."""
        for chunk in tuple(self._claims):
            self.free(chunk)

    def _free_pending(self) -> None:
        for chunk in tuple(self._to_free):
            self._storage.free_concurrency_slot_for_step(self._run_id, self._name(chunk))
            self._to_free.discard(chunk)

    def _bounded(self) -> bool:
        """Whether the pool has a limit. A pool without one first gets Dagster's default, if there is any."""
        # Not for a pool that has a limit: this call would replace it by the default.
        if POOL not in self._storage.get_concurrency_keys():
            self._storage.initialize_concurrency_limit_to_default(POOL)
        return POOL in self._storage.get_concurrency_keys()

    def _name(self, chunk: int) -> str:
        return f"{self._step}[{chunk}]"


@contextmanager
def no_other_claims(storage: EventLogStorage) -> Iterator[None]:
    """Blocks claims of other processes on PostgreSQL, which Dagster (1.13.27) does not do.

    Dagster finds a free slot and takes it in two commits. Two claims at once can both get one slot; a third worker then
    gets the slot that is left. (On SQLite, environment/event_log.py prevents this.) Raises the database's error after
    CLAIM_TIMEOUT.
    """
    postgres = sys.modules.get("dagster_postgres")  # imported if a storage uses it
    if postgres is None or not isinstance(storage, postgres.PostgresEventLogStorage):
        yield
        return
    from sqlalchemy import text  # half a second, which definitions don't need

    with storage.index_connection() as connection:  # the lock ends with the connection
        connection.execute(text(f"SET lock_timeout = '{CLAIM_TIMEOUT}'"))
        connection.execute(text("SELECT pg_advisory_lock(hashtext(:pool))"), {"pool": POOL})
        yield


@dataclass
class Claims:
    """Claims the slots of one run."""

    slots: Slots
    run: ThisRun
    for_others: bool = False
    """Whether other runs held slots at the last look, while the current chunk waits."""
    _waiting: int | None = None
    """That chunk's ordinal."""
    _next_look: float = 0.0
    """When to log a wait, on time.monotonic()."""
    _own_logged: bool = False
    """Whether a wait for this run's own workers was logged: once is enough."""
    _unreachable: Patience = field(default_factory=lambda: Patience(UNREACHABLE_SECONDS))

    def __post_init__(self) -> None:
        self._lookout = Lookout(self.run)

    def claim(self, chunk: Chunk) -> bool:
        """Tries to claim the chunk's slot. Raises the storage's error after UNREACHABLE_SECONDS."""
        try:
            claimed = self.slots.claim(chunk.ordinal)
        except Exception as error:  # each kind of storage has its own
            if self._unreachable.failed(time.monotonic()):
                raise
            logger.warning("chunk %d: its slot can't be claimed yet, workers continue: %r", chunk.ordinal, error)
            return False
        # None: the storage was not asked, so it is not known to be reachable.
        if claimed is not None:
            self._unreachable.succeeded()
        if claimed:
            self._waiting, self.for_others = None, False
            return True
        self._lookout.look()
        if self._is_time_to_look(chunk.ordinal, time.monotonic()):
            self._log_wait(chunk)
        return False

    def _is_time_to_look(self, ordinal: int, now: float) -> bool:
        """Whether to log who holds the slots: once a wait is noticeable, then every minute."""
        if ordinal != self._waiting:
            self._waiting, self.for_others = ordinal, False
            # Another chunk waits now; it must not bring the next line of the log forward.
            self._next_look = max(now + NOTICED_SECONDS, self._next_look)
        if now < self._next_look:
            return False
        self._next_look = now + REPEATED_SECONDS
        return True

    def _log_wait(self, chunk: Chunk) -> None:
        try:
            holders = self.slots.holders()
        except Exception as error:  # each kind of storage has its own
            logger.warning("chunk %d waits for a slot; can't read which runs hold the slots: %r", chunk.ordinal, error)
            return
        self.for_others = holders != {self.run.id}
        if self.for_others or not self._own_logged:
            held = ", ".join(f"run {run}" for run in sorted(holders)) or "no run"
            what = f"chunk {chunk.ordinal} ({chunk}) waits for a slot of the pool {POOL}, held by {held}"
            self.run.log(logging.INFO, f"{what}: see the queue and the limit in the UI, Deployment → Concurrency")
        self._own_logged |= not self.for_others

"""Slots of the Dagster pool ``lake_workers``: the right to run one worker now, over all runs of the instance.

Nothing waits here: the poll loop claims again. A run that waits looks for dead runs that hold slots, and its log says
which runs hold them.

Dagster's own ``pool=`` bounds ops; here one op drives many workers, so each worker claims a slot through the instance's
storage. An op that waits in Dagster's executor burns a core (``interval_to_next_pending_claim_check`` returns ``min([0,
…])``, 1.13.27) and, in process, ignores *Terminate*; a claim made here costs one query a second.
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
# Of another process's claim, which takes some 20 ms.
CLAIM_TIMEOUT = "5s"
# Each refused claim is a write to the instance's storage.
CLAIM_INTERVAL_SECONDS = 1.0
# How long Dagster's storage may be out of reach: a database that fails over is back in a minute or two.
UNREACHABLE_SECONDS = 300.0
# A free slot is claimed at the second try at the latest, a second after the first.
NOTICED_SECONDS = 5.0
REPEATED_SECONDS = 60.0


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
        with no_other_claims(self._storage):
            claim, name = self._storage.claim_concurrency_slot, self._name(chunk)
            claimed = not self._bounded() or claim(POOL, self._run_id, name).is_claimed
        if claimed:
            self._next_try = 0.0
        return claimed

    def holders(self) -> set[str]:
        """Reads the ids of the runs that hold the pool's slots, or were given one that they have not taken yet."""
        info = self._storage.get_concurrency_info(POOL)
        return info.active_run_ids | info.assigned_run_ids

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
def no_other_claims(storage: EventLogStorage) -> Iterator[None]:
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


@dataclass
class Claims:
    """Claims the slots of one run, chunk by chunk."""

    slots: Slots
    run: ThisRun
    for_others: bool = False
    """Whether other runs held slots at the last look, while the chunk that claims now has waited."""
    _waiting: int | None = None
    """The ordinal of that chunk, since it was refused a slot."""
    _next_look: float = 0.0
    """When to look who holds the slots, in monotonic seconds."""
    _own_logged: bool = False
    """Whether it was logged that the run waits for its own workers alone, which is logged once."""
    _unreachable: Patience = field(default_factory=lambda: Patience(UNREACHABLE_SECONDS))

    def __post_init__(self) -> None:
        self._lookout = Lookout(self.run)

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
        if claimed:
            self._waiting, self.for_others = None, False
            return True
        self._lookout.look()
        if self._is_time_to_look(chunk.ordinal, time.monotonic()):
            self._log_wait(chunk)
        return False

    def _is_time_to_look(self, ordinal: int, now: float) -> bool:
        """Says whether to look who holds the slots: once a wait is noticeable, then every minute, whoever waits."""
        if ordinal != self._waiting:
            self._waiting, self.for_others = ordinal, False
            self._next_look = max(now + NOTICED_SECONDS, self._next_look)
        if now < self._next_look:
            return False
        self._next_look = now + REPEATED_SECONDS
        return True

    def _log_wait(self, chunk: Chunk) -> None:
        """Logs that the chunk waits, and which runs hold the slots."""
        try:
            holders = self.slots.holders()
        except Exception as error:  # each kind of storage has its own
            logger.warning("chunk %d waits for a slot; who holds the slots can't be read: %r", chunk.ordinal, error)
            return
        self.for_others = holders != {self.run.id}
        if self.for_others or not self._own_logged:
            held = ", ".join(f"run {run}" for run in sorted(holders)) or "no run"
            what = f"chunk {chunk.ordinal} ({chunk}) waits for a slot of the pool {POOL}, held by {held}"
            self.run.log(logging.INFO, f"{what}: queue and limit are in the UI, Deployment → Concurrency")
        self._own_logged |= not self.for_others

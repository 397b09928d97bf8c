"""Slots of the Dagster pool ``lake_workers``: the right to run one worker now, over all runs of the instance.

Nothing waits here: the poll loop claims again.

Dagster's own ``pool=`` bounds ops; here one op drives many workers, so each worker claims a slot through the
instance's storage. An op that waits in Dagster's executor burns a core (``interval_to_next_pending_claim_check``
returns ``min([0, …])``, 1.13.27) and, in process, ignores *Terminate*; a claim made here costs one query a second.
Claims carry the run's id, so run monitoring and the reaper free the slots of a dead run.
"""

from __future__ import annotations

import logging
import time

import dagster as dg

from lakehouse_assets.drive.slot_wait import Queue

logger = logging.getLogger(__name__)

POOL = "lake_workers"
# Each refused claim is a write to the instance's storage.
CLAIM_INTERVAL_SECONDS = 1.0


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

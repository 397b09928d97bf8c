"""A lock for each table. A run that others disturbed too often takes it; no other merge begins to land meanwhile.

The lock is a Dagster pool with one slot: the UI shows it, and Dagster frees the slot if the run that holds it dies.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from lakehouse_assets.drive.liveness import Context, Lookout, ThisRun
from lakehouse_assets.drive.slots import no_other_claims

# The time between two claims or looks. Each refused claim is a write to the instance's storage.
WAIT_SECONDS = 1.0


@dataclass
class TableLock:
    """One run's part in a table's lock."""

    context: Context
    table: str
    before_waiting: Callable[[], object]
    """Called before each wait. Gives back the slots of this run's workers: the run with the lock may need them."""
    is_taken: bool = False
    # Whether the lock, or a place in its queue, is to be freed.
    _is_asked: bool = False

    def __post_init__(self) -> None:
        self._storage = self.context.instance.event_log_storage
        self._run = ThisRun(self.context)
        self._lookout = Lookout(self._run)
        self._pool = f"lake_merge_{self.table}"
        self._step = f"{self.context.get_step_execution_context().step.key}[lock]"

    def take(self) -> None:
        """Waits for the lock and takes it. Raises what *Terminate* raises."""
        if self.is_taken:
            return
        self._is_asked = True
        self._storage.set_concurrency_slots(self._pool, 1)
        self.context.log.info(f"{self.table}: waiting until no other merge of the table is landing")
        self._wait_while(lambda: not self._claim())
        self.is_taken = True

    def _claim(self) -> bool:
        with no_other_claims(self._storage):
            return bool(self._storage.claim_concurrency_slot(self._pool, self._run.id, self._step).is_claimed)

    def wait_for_others(self) -> None:
        """Waits until no other run holds the lock, without taking it. Raises as take()."""
        if self.is_taken or not (holders := self._holders()):
            return
        if self._run.id in holders:
            # An earlier process of this run took it. This process has not asked for it yet, and Dagster would free it
            # only at the run's end.
            self._storage.free_concurrency_slot_for_step(self._run.id, self._step)
        self.context.log.info(f"{self.table}: waiting for a merge that other commits disturbed too often")
        self._wait_while(lambda: bool(self._holders() - {self._run.id}))

    def _wait_while(self, is_busy: Callable[[], bool]) -> None:
        if not is_busy():
            return
        self.before_waiting()
        while is_busy():
            self._run.raise_if_ended()
            self._lookout.look()
            time.sleep(WAIT_SECONDS)

    def _holders(self) -> set[str]:
        return {slot.run_id for slot in self._storage.get_concurrency_info(self._pool).claimed_slots}

    def close(self) -> None:
        """Frees the lock or its place in the queue. Raises nothing: Dagster frees both at the run's end."""
        if not self._is_asked:
            return
        try:
            self._storage.free_concurrency_slot_for_step(self._run.id, self._step)
        except Exception as error:  # each kind of storage has its own
            self._run.log(logging.WARNING, f"{self.table}: its lock can't be released before the run ends: {error!r}")

"""A lock by table, for a run that others disturbed too often: while it is held, no merge begins to land on the table.

It is a pool of Dagster's with one slot, so that it is seen in the UI, and freed when its run is dead.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from lakehouse_assets.drive.liveness import Context, Lookout, ThisRun
from lakehouse_assets.drive.slots import no_other_claims

WAIT_SECONDS = 1.0
"""The time between two claims: each refused one is a write to the instance's storage."""


@dataclass
class TableLock:
    """One run's part in the lock of a table."""

    context: Context
    table: str
    """The table's identifier."""
    is_taken: bool = False
    _is_asked: bool = False

    def __post_init__(self) -> None:
        self._storage = self.context.instance.event_log_storage
        self._run = ThisRun(self.context)
        self._lookout = Lookout(self._run)
        self._pool = f"lake_merge_{self.table}"
        self._step = f"{self.context.get_step_execution_context().step.key}[lock]"

    def take(self) -> None:
        """Takes the lock, and waits until it is free. Raises what *Terminate* raises."""
        if self.is_taken:
            return
        self._is_asked = True
        self._storage.set_concurrency_slots(self._pool, 1)
        self.context.log.info(f"{self.table}: waits until no other merge of the table lands")
        while not self._claim():
            self._run.raise_if_ended()
            self._lookout.look()
            time.sleep(WAIT_SECONDS)
        self.is_taken = True

    def _claim(self) -> bool:
        with no_other_claims(self._storage):
            return bool(self._storage.claim_concurrency_slot(self._pool, self._run.id, self._step).is_claimed)

    def wait_for_others(self) -> None:
        """Waits until no other run holds the lock. Raises what *Terminate* raises."""
        if self.is_taken or not (holders := self._holders()):
            return
        if self._run.id in holders:
            # An earlier process of this very run holds it; Dagster frees its slot only at the run's end.
            self._storage.free_concurrency_slot_for_step(self._run.id, self._step)
        self.context.log.info(f"{self.table}: waits for a merge that others disturbed too often")
        while self._holders() - {self._run.id}:
            self._run.raise_if_ended()
            self._lookout.look()
            time.sleep(WAIT_SECONDS)

    def _holders(self) -> set[str]:
        """Returns the ids of the runs that hold the lock; none where nobody has ever taken it."""
        return {slot.run_id for slot in self._storage.get_concurrency_info(self._pool).claimed_slots}

    def close(self) -> None:
        """Frees the lock, or its place in the queue. Raises nothing: Dagster frees both at the run's end."""
        if not self._is_asked:
            return
        try:
            self._storage.free_concurrency_slot_for_step(self._run.id, self._step)
        except Exception as error:  # each kind of storage has its own
            self._run.log(logging.WARNING, f"{self.table}: its lock can't be given back before the run ends: {error!r}")

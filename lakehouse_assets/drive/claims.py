"""Claims a pool slot for each chunk before it starts, and logs who holds the slots while it waits.

How a slot is claimed is slots.py's; what is logged, and when, slot_wait.py's.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from lakehouse_assets.drive.chunk import Chunk
from lakehouse_assets.drive.slot_wait import SlotWait, sentence
from lakehouse_assets.drive.slots import Slots
from lakehouse_assets.drive.this_run import ThisRun
from resources.patience import Patience

logger = logging.getLogger(__name__)

# How long Dagster's storage may be out of reach: a database that fails over is back in a minute or two.
UNREACHABLE_SECONDS = 300.0


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

"""A clock for the phases of a piece of maintenance.
What the phases are is their owner's business."""

from __future__ import annotations

import time


class Clock:
    """seconds: of each phase, in their order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        """The phase that has run since the last one ends now."""
        now = time.monotonic()
        self.seconds[name] = now - self._last
        self._last = now

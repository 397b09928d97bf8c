"""A clock for the phases of a piece of maintenance; its owner decides which phases there are."""

from __future__ import annotations

import time


class Clock:
    """Measures the phases of a piece of maintenance.

    seconds: the duration of each phase, in their order.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        """Ends the phase that has run since the last lap, or since the clock was made.

        name: that of the phase.
        """
        now = time.monotonic()
        self.seconds[name] = now - self._last
        self._last = now

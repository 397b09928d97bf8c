"""Measures how long something has gone on failing, and whether that is too long.

What to do about a failure is the caller's decision: wait, try again, raise.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Patience:
    """Measures a series of failures; a success ends it."""

    seconds: float
    """How long a series may last."""
    since: float | None = None
    """When the present series began; None while there is none."""

    def failed(self, now: float) -> bool:
        """Says whether the series, with this failure, has lasted too long. now: seconds, as of time.monotonic()."""
        if self.since is None:
            self.since = now
        return now - self.since > self.seconds

    def succeeded(self) -> None:
        """Ends the series, so that the next failure begins a new one."""
        self.since = None

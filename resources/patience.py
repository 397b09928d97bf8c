"""For how long something may go on failing before it is given up.
What to do about a failure is the caller's decision: wait, try again, raise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Patience:
    """Measures a series of failures; a success ends it.

    seconds: how long a series may last. since: when the present one began, None while there is none.
    """

    seconds: float
    since: float | None = None

    def failed(self, now: float) -> bool:
        """Whether the series, with this failure, has lasted too long. now: seconds, as of time.monotonic()."""
        if self.since is None:
            self.since = now
        return now - self.since > self.seconds

    def succeeded(self) -> None:
        self.since = None

"""For how long something may go on failing before it is given up.
The clock is the caller's, and so is what is done about a failure: wait, try again, raise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Patience:
    """Measures how long a series of failures lasts; a success ends the series.

    seconds: how long a series may last. since: when the present series began, None while there is none.
    """

    seconds: float
    since: float | None = None

    def failed(self, now: float) -> bool:
        """Note a failure. Whether the series has lasted for longer than it may. now: seconds, such as of
        time.monotonic()."""
        if self.since is None:
            self.since = now
        return now - self.since > self.seconds

    def succeeded(self) -> None:
        """Note a success."""
        self.since = None

"""The clock of a hand-off, and how long it waits between two looks: tests pass a clock of their own.

What is waited for is in replicas.py and glue_registry.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

LONGEST_WAIT_S = 60.0


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Clock:
    """Tells the time, and waits."""

    now: Callable[[], datetime] = _utc_now
    """Returns the time, with a timezone."""
    sleep: Callable[[float], None] = time.sleep
    """Waits for some seconds."""


def backoff(first: float = 1.0) -> Iterator[float]:
    """Yields how many seconds to wait, each time twice as long, at most a minute, without end."""
    while True:
        yield first
        first = min(first * 2, LONGEST_WAIT_S)

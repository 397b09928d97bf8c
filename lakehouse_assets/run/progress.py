"""Progress of the run in this process, for listeners."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """The progress of one table's run."""

    table: str
    done: int
    """Partitions staged so far."""
    total: int
    """All partitions of the run; 1 for an unpartitioned table."""
    running: int
    """The number of workers at work."""
    started_at: float
    """Epoch seconds."""
    waiting: bool = False
    """Whether the run waits for a slot that another run holds."""


_listeners: list[Callable[[Progress], None]] = []


def report(progress: Progress) -> None:
    """Calls all listeners. Cheap without any."""
    for listener in tuple(_listeners):
        listener(progress)


@contextmanager
def listening(listener: Callable[[Progress], None]) -> Iterator[None]:
    """Calls ``listener`` for each report within the context, in the reporting thread."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)

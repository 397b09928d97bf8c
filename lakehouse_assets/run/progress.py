"""Tells how far the run in this process has come: the asset's op reports it, and whoever started the run listens.

No terminal and no Dagster; other processes read the run's events instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far one table's run has come."""

    table: str
    done: int
    """Number of partitions staged so far."""
    total: int
    """Number of all partitions of the run; 1 for a table without partitions."""
    running: int
    """Number of running workers."""
    started_at: float
    """When the run started, in seconds since the epoch."""
    waiting: bool = False
    """Whether the run waits for a slot that another run holds."""


_listeners: list[Callable[[Progress], None]] = []


def report(progress: Progress) -> None:
    """Calls all listeners. Costs next to nothing without any: call it whenever one of the numbers may have changed."""
    for listener in tuple(_listeners):
        listener(progress)


@contextmanager
def listening(listener: Callable[[Progress], None]) -> Iterator[None]:
    """Calls ``listener`` with every report, in the reporting thread, while the context lasts."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)

"""How far the run in this process is: the asset's op reports, whoever drives the run listens.
No terminal, no Dagster; across processes the run's events tell the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """One table's run. done, total: partitions staged, and of the run; 1 for a table without partitions.

    running: workers running now. started_at: of the run, seconds since the epoch. waiting: whether one waits, for a
    slot that other runs hold.
    """

    table: str
    done: int
    total: int
    running: int
    started_at: float
    waiting: bool = False


_listeners: list[Callable[[Progress], None]] = []


def report(table: str, done: int, total: int, running: int, started_at: float, waiting: bool = False) -> None:
    """Tell all listeners. Cheap without any; call it whenever one of the numbers may have changed."""
    for listener in tuple(_listeners):
        listener(Progress(table, done, total, running, started_at, waiting))


@contextmanager
def listening(listener: Callable[[Progress], None]) -> Iterator[None]:
    """Call ``listener`` with every report, in the reporting thread, for the length of the context."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)

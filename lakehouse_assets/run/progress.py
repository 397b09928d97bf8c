"""How far the run in this process has come: the asset's op reports it, and whoever started the run listens.
No terminal and no Dagster; other processes read the run's events instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """One table's run. done: partitions staged so far. total: all of the run's; 1 for a table without partitions.

    running: number of workers. started_at: of the run, in seconds since the epoch. waiting: whether it waits for a slot
    that another run holds.
    """

    table: str
    done: int
    total: int
    running: int
    started_at: float
    waiting: bool = False


_listeners: list[Callable[[Progress], None]] = []


def report(progress: Progress) -> None:
    """Call all listeners. Costs next to nothing without any: call it whenever one of the numbers may have changed."""
    for listener in tuple(_listeners):
        listener(progress)


@contextmanager
def listening(listener: Callable[[Progress], None]) -> Iterator[None]:
    """Call ``listener`` with every report, in the reporting thread, while the context lasts."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)

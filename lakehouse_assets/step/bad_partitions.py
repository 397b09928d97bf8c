"""The error by which a step says which of its window's partitions it can't compute, so that the others need not wait.

Plain data for the author of a step; what follows from it is the queue's.
"""

from __future__ import annotations

from collections.abc import Iterable


class BadPartitions(ValueError):
    """A step can't compute some partitions of its window.

    partitions: keys of the window whose input is missing or can't be read.
    """

    def __init__(self, message: str, partitions: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.partitions = tuple(partitions)

"""Notes which files of the drop zone a step opens, so that its receipt can name what the rows were made from.

One step runs in a process at a time. What becomes of the notes is the worker's and run/'s business.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class OpenedFile:
    """A file of the drop zone as it was when a step opened it."""

    path: str
    size: int
    """In bytes."""
    modified_ms: int
    """When it was written, by the storage's clock, in epoch milliseconds."""


_opened: dict[str, OpenedFile] = {}


def note_opened(files: Iterable[OpenedFile]) -> None:
    """Notes files that the step of this process has opened; one that is opened again counts as it was last."""
    _opened.update({file.path: file for file in files})


def take_opened() -> tuple[OpenedFile, ...]:
    """Returns what was noted since the last call, by path."""
    found = tuple(_opened[path] for path in sorted(_opened))
    _opened.clear()
    return found

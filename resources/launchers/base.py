"""The launcher contract: start, watch, cancel workers somewhere; three methods and a link.
No Pipes session, no retries, no verdicts: those are written once around it (lakehouse/drive.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lakehouse_assets.worker.assignment import Assignment


@dataclass(frozen=True)
class Ended:
    """A worker that runs no more. reason: what its service says of it, for a person; no verdict (receipts decide)."""

    reason: str


@dataclass(frozen=True)
class Handle:
    """One started worker. id: the service's own name for it (a pid, a task ARN). state: the launcher's own."""

    id: str
    state: Any


class Launcher(Protocol):
    """Where workers run."""

    def pipes(self) -> tuple[Any, Any]:
        """A PipesContextInjector and a PipesMessageReader, new ones for each worker. The reader has a method ``read()``
        that hands over what has arrived: the poll loop calls it, so no reader needs a thread."""
        ...

    def submit(self, assignment: Assignment, environment: Mapping[str, str]) -> Handle:
        """Start a worker. environment: the Pipes variables to hand over."""
        ...

    def poll(self, handles: Sequence[Handle]) -> Mapping[str, Ended]:
        """Those of the handles that ended, by id."""
        ...

    def cancel(self, handles: Sequence[Handle]) -> None:
        """End the workers and all they started; returns when they are gone."""
        ...

    def link(self, handle: Handle) -> str:
        """Where a person looks at the worker."""
        ...

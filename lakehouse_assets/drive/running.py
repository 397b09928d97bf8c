"""A running worker: its handle, its open Pipes session, what it has reported.

Nothing is started, judged or ended here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any

import dagster as dg

from lakehouse_assets.drive.chunk import Chunk
from lakehouse_assets.drive.this_run import Context
from lakehouse_assets.drive.verdicts import PendingChunk
from resources.launchers.base import Ended, Handle

logger = logging.getLogger(__name__)

# How Dagster (1.13.27, open_pipes_session) begins its advice where a worker reported nothing, or did not close its
# session: to look at its output, to call PipesContext.close().
ADVICE = "[pipes] did not receive"


@contextmanager
def open_session(context: Context, injector: Any, reader: Any, payload: Any) -> Iterator[dg.PipesSession]:
    """Opens Dagster's session with a worker, but drops the advice that Dagster logs.

    A worker that died could not have followed it, and the loop logs what became of the worker.
    """
    # The filter is never removed: the log is this step's own, adding it twice is adding it once, and sessions are
    # closed in several threads at the same time.
    context.log.addFilter(_is_no_advice)
    with dg.open_pipes_session(
        context=context, context_injector=injector, message_reader=reader, extras={"work": payload}
    ) as session:
        yield session


def _is_no_advice(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(ADVICE)


@dataclass(frozen=True)
class RunningWorker:
    """A worker that was started or found running."""

    pending: PendingChunk
    handle: Handle
    session: dg.PipesSession
    reader: Any
    stack: ExitStack
    """Closes the worker's session."""
    deadline: float = inf
    """When its work must be done, and after that when it must have ended, on time.monotonic()."""
    overdue: Ended | None = None
    """Why this run cancelled it; None if it did not."""

    @property
    def chunk(self) -> Chunk:
        """The chunk whose work the worker does."""
        return self.pending.chunk

    def read(self) -> None:
        """Hands what the worker has sent to its session, which writes it to the run's log."""
        try:
            self.reader.read()
        except Exception as error:  # the instance's storage is away; durable proofs decide
            logger.warning("chunk %d: what its worker reports can't be logged: %r", self.chunk.ordinal, error)

    def reported(self, name: str) -> Iterator[Any]:
        """Yields what the worker's messages hold under a name. Its own code may have sent messages of any shape."""
        for message in self.session.get_custom_messages():
            if isinstance(message, Mapping) and name in message:
                yield message[name]

    def reported_failure(self) -> Mapping[str, Any] | None:
        """Returns the failure that the worker reported (type, message, traceback); None if it reported none."""
        errors = self.reported("error")
        return next((error for error in errors if isinstance(error, Mapping) and "type" in error), None)

"""One started worker as the run that drives it knows it: its handle, its open Pipes session, what it said so far.
Nothing is started, asked or ended here (drive.py)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from math import inf
from typing import Any

import dagster as dg

from lakehouse_assets.drive.verdicts import Waiting
from lakehouse_assets.protocol.receipts import Receipt
from lakehouse_assets.run.plan import Chunk
from resources.launchers.base import Ended, Handle

logger = logging.getLogger(__name__)

# How Dagster (1.13.27, open_pipes_session) begins its advice where a session's other side was silent, or has not said
# goodbye: to look at its output, to call PipesContext.close().
ADVICE = "[pipes] did not receive"


@contextmanager
def open_session(
    context: dg.AssetExecutionContext, injector: Any, reader: Any, extras: Mapping[str, Any]
) -> Iterator[dg.PipesSession]:
    """Dagster's session with a worker, without its advice: a worker that was ended, or died, could not follow it, and
    what became of it is told by who drives it, from its receipt and its service."""
    # Twice is once, and the log is this step's own: it stays, as sessions are closed at the same time.
    context.log.addFilter(_no_advice)
    with dg.open_pipes_session(
        context=context, context_injector=injector, message_reader=reader, extras=dict(extras)
    ) as session:
        yield session


def _no_advice(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(ADVICE)


@dataclass(frozen=True)
class Running:
    """A started worker. stack: closes its session. deadline: of its work, and when that is over, of its end, on
    time.monotonic(). overdue: why this run ended it."""

    waited: Waiting
    handle: Handle
    session: dg.PipesSession
    reader: Any
    stack: ExitStack
    deadline: float = inf
    overdue: Ended | None = None

    @property
    def chunk(self) -> Chunk:
        return self.waited.chunk

    def hear(self) -> None:
        """Hand what the worker has said to its session, which puts it into the run's log."""
        try:
            self.reader.read()
        except Exception as error:  # the instance's storage is away; what is durable decides
            logger.warning("chunk %d: what its worker says can't be told: %r", self.chunk.ordinal, error)

    def receipt(self) -> Receipt | None:
        """The receipt that the worker told of. A step's own messages may be anything."""
        for message in self.session.get_custom_messages():
            with suppress(ValueError, TypeError, KeyError, AttributeError):
                receipt = Receipt.from_json(message["proof"])
                if receipt.work == self.waited.attempt.work:
                    return receipt
        return None

    def failure(self) -> Mapping[str, Any] | None:
        """What the worker said of its failure: type, message, traceback."""
        for message in self.session.get_custom_messages():
            if isinstance(message, Mapping) and isinstance(said := message.get("error"), Mapping) and "type" in said:
                return said
        return None

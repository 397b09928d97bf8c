"""The workers that a run answers for: their handles, their open Pipes sessions, what they reported so far.
Nothing is started, judged or ended here."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any

import dagster as dg

from lakehouse_assets.drive.chunk import Chunk
from lakehouse_assets.drive.this_run import Context
from lakehouse_assets.drive.verdicts import PendingChunk
from resources.launchers.base import Attempt, Ended, Handle

logger = logging.getLogger(__name__)

# How Dagster (1.13.27, open_pipes_session) begins its advice where a worker reported nothing, or did not close its
# session: to look at its output, to call PipesContext.close().
ADVICE = "[pipes] did not receive"
# Reading what remote workers report is a round trip for each; botocore keeps as many connections.
READING_THREADS = 10


@contextmanager
def open_session(context: Context, injector: Any, reader: Any, extras: Mapping[str, Any]) -> Iterator[dg.PipesSession]:
    """Dagster's session with a worker, without its advice: a worker that died could not have followed it, and what
    became of the worker is logged by the loop."""
    # The filter is never removed: the log is this step's own, adding it twice is adding it once, and sessions are
    # closed in several threads at the same time.
    context.log.addFilter(_is_no_advice)
    with dg.open_pipes_session(
        context=context, context_injector=injector, message_reader=reader, extras=dict(extras)
    ) as session:
        yield session


def _is_no_advice(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(ADVICE)


@dataclass(frozen=True)
class RunningWorker:
    """A started worker. stack: closes its session. deadline: of its work, and when that has passed, of its end; on
    time.monotonic(). overdue: why this run ended it."""

    pending: PendingChunk
    handle: Handle
    session: dg.PipesSession
    reader: Any
    stack: ExitStack
    deadline: float = inf
    overdue: Ended | None = None

    @property
    def chunk(self) -> Chunk:
        return self.pending.chunk

    def read(self) -> None:
        """Hand what the worker has sent to its session, which puts it into the run's log."""
        try:
            self.reader.read()
        except Exception as error:  # the instance's storage is away; durable proofs decide
            logger.warning("chunk %d: what its worker reports can't be logged: %r", self.chunk.ordinal, error)

    def reported_proofs(self) -> Iterator[object]:
        """What the worker reported as proofs. The worker's own code may have sent messages of any shape."""
        for message in self.session.get_custom_messages():
            if isinstance(message, Mapping) and "proof" in message:
                yield message["proof"]

    def reported_failure(self) -> Mapping[str, Any] | None:
        """The failure that the worker reported: type, message, traceback."""
        for message in self.session.get_custom_messages():
            if isinstance(message, Mapping) and isinstance(error := message.get("error"), Mapping) and "type" in error:
                return error
        return None


@dataclass(frozen=True)
class Unconfirmed:
    """An attempt that may have a worker. id: the worker's, where it is known."""

    attempt: Attempt
    id: str | None = None


@dataclass
class Workers:
    """All workers of a run that may still run.

    running: by their handles' ids. ending: those whose proof is there; they keep their slots until they have ended.
    unconfirmed: attempts that may have a worker which is in neither of the two, by chunk.
    """

    running: dict[str, RunningWorker] = field(default_factory=dict)
    ending: list[RunningWorker] = field(default_factory=list)
    unconfirmed: dict[int, Unconfirmed] = field(default_factory=dict)
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(READING_THREADS, thread_name_prefix="messages")
    )

    def handles(self) -> list[Handle]:
        return [worker.handle for worker in (*self.running.values(), *self.ending)]

    def read(self, *, in_threads: bool) -> None:
        """Read what the running workers have sent. in_threads: where each reading is a round trip."""
        workers = list(self.running.values())
        if in_threads:
            list(self._threads.map(RunningWorker.read, workers))
        else:
            for worker in workers:
                worker.read()

    def stop_reading(self) -> None:
        """Wait for no reading that is under way."""
        self._threads.shutdown(wait=False, cancel_futures=True)

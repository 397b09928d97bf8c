"""The workers that a run started or took over."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any

import dagster as dg

from lakehouse_assets.drive.chunks import Chunk, PendingChunk
from lakehouse_assets.drive.liveness import Context, ThisRun
from lakehouse_assets.drive.slots import Slots
from lakehouse_assets.environment.launchers.base import Attempt, Ended, Handle, Launcher, Usage

logger = logging.getLogger(__name__)

# How long a worker may take to end after its work; a remote service notices its end some polls later. An idle JVM ends
# in a second or two; one that hangs keeps its slot, so it is cancelled.
ENDING_SECONDS = 10.0
ENDING_POLLS = 12
# Reading a worker's messages is a round trip to S3, closing a session several. botocore keeps 10 connections, so more
# threads would wait.
SESSION_THREADS = 10
# Begins the advice of Dagster (1.13.27, open_pipes_session) if a worker reported nothing or did not close its session.
ADVICE = "[pipes] did not receive"


@contextmanager
def open_session(context: Context, injector: Any, reader: Any, payload: Any) -> Iterator[dg.PipesSession]:
    """Opens Dagster's session with a worker, without the advice that Dagster logs.

    It is for workers that report nothing; a dead worker could not have followed it.
    """
    # Never removed: the log is this step's own, a filter is added only once, and several threads close sessions.
    context.log.addFilter(_is_no_advice)
    with dg.open_pipes_session(
        context=context, context_injector=injector, message_reader=reader, extras={"work": payload}
    ) as session:
        yield session


def _is_no_advice(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(ADVICE)


@dataclass
class RunningWorker:
    """A worker that was started or found running."""

    pending: PendingChunk
    handle: Handle
    session: dg.PipesSession
    reader: Any
    """The launcher's reader of the worker's messages."""
    stack: ExitStack
    """Closing it closes the session."""
    deadline: float = inf
    """When its work must be done, and later when it must have ended, on time.monotonic()."""
    overdue: Ended | None = None
    """Why this run cancelled it; None if it did not."""

    @property
    def chunk(self) -> Chunk:
        """The worker's chunk."""
        return self.pending.chunk

    def read(self) -> None:
        """Passes the worker's messages to its session, which logs them."""
        try:
            self.reader.read()
        except Exception as error:  # e.g. the instance's storage is away; durable receipts decide
            logger.warning("chunk %d: its worker's reports can't be logged: %r", self.chunk.ordinal, error)

    def reported(self, name: str) -> Iterator[Any]:
        """Yields what messages hold under a name. User code may send any shape, so others are skipped."""
        for message in self.session.get_custom_messages():
            if isinstance(message, Mapping) and name in message:
                yield message[name]

    def reported_failure(self) -> Mapping[str, Any] | None:
        """Returns the reported failure (type, message, traceback), if any."""
        errors = self.reported("error")
        return next((error for error in errors if isinstance(error, Mapping) and "type" in error), None)


@dataclass
class Workers:
    """All workers of a run that may still run."""

    launcher: Launcher
    slots: Slots
    run: ThisRun
    usages: list[Usage]
    running: dict[str, RunningWorker] = field(default_factory=dict)
    """By the handles' ids."""
    ending: list[RunningWorker] = field(default_factory=list)
    """Workers whose receipt was found; they keep their slots until they end."""
    unconfirmed: dict[int, Attempt | Handle] = field(default_factory=dict)
    """By chunk: a worker that may exist, but is in neither ``running`` nor ``ending``; as its attempt if its id is
    unknown."""
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(SESSION_THREADS, thread_name_prefix="messages")
    )

    def ending_seconds(self) -> float:
        """Returns how long a worker may take to end, once its work is done or it was cancelled."""
        return max(ENDING_SECONDS, ENDING_POLLS * self.launcher.poll_seconds)

    def poll(self) -> Mapping[str, Ended]:
        """Reads the messages of running workers; closes ``ending`` ones that have ended, cancels late ``ending`` ones.

        Returns the ended workers by handle id.
        """
        running = list(self.running.values())
        # Before the messages are read: whatever an ended worker has written is then read.
        ended = self.launcher.poll([worker.handle for worker in (*running, *self.ending)])
        self._close_ended(ended)
        # Messages of workers that outlive this process lie in storage: each read is a round trip.
        if self.launcher.durable:
            list(self._threads.map(RunningWorker.read, running))
        else:
            for worker in running:
                worker.read()
        return ended

    def close(self, worker: RunningWorker) -> None:
        """Closes an ended worker's session, frees its slot and records its usage."""
        self._close_session(worker)
        self.slots.free(worker.chunk.ordinal)
        if usage := self.launcher.usage(worker.handle):
            self.usages.append(usage)

    def cancel(self, handles: Sequence[Handle]) -> bool:
        """Cancels workers. Returns False, and logs it, if that failed: the caller tries again."""
        try:
            self.launcher.cancel(handles)
        except Exception as error:
            self.run.log(logging.WARNING, f"workers could not be cancelled yet: {error}")
            return False
        return True

    def settle(self) -> None:
        """Waits until the ``ending`` workers have ended, at most twice ending_seconds().

        Raises nothing: the chunks may already be published.
        """
        # Once until a late worker is cancelled, once more until it has ended.
        until = time.monotonic() + 2 * self.ending_seconds()
        try:
            while self.ending and time.monotonic() < until:
                self._close_ended(self.launcher.poll([worker.handle for worker in self.ending]))
                if self.ending:
                    time.sleep(self.launcher.poll_seconds)
        except Exception as error:
            self.run.log(logging.WARNING, f"can't find out whether the workers have ended: {error}")
        if self.ending:
            self._abandon()

    def stop_reading(self) -> None:
        """Stops reading, without waiting for a read in progress."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def cancel_all(self) -> None:
        """Cancels every worker that may still run, frees all slots and closes all sessions."""
        left, unconfirmed = [*self.running.values(), *self.ending], list(self.unconfirmed.values())
        self.running.clear()
        self.ending.clear()
        self.unconfirmed.clear()
        try:
            self.launcher.cancel([*(w.handle for w in left), *(u for u in unconfirmed if isinstance(u, Handle))])
        finally:
            for attempt in (u for u in unconfirmed if isinstance(u, Attempt)):
                self._cancel_unconfirmed(attempt)
            self.slots.free_all()
            # In threads, to be quick: a service kills a run's task soon after it asked the task to end.
            with ThreadPoolExecutor(SESSION_THREADS, thread_name_prefix="close") as pool:
                list(pool.map(self._close_session, left))

    def _close_ended(self, ended: Mapping[str, Ended]) -> None:
        for worker in [w for w in self.ending if w.handle.id in ended]:
            self.ending.remove(worker)
            self.close(worker)
        now = time.monotonic()
        late = [w for w in self.ending if now > w.deadline]
        if late and self.cancel([w.handle for w in late]):
            for worker in late:
                worker.deadline = inf  # cancel once: a service's calls may take seconds

    def _abandon(self) -> None:
        """Cancels the ``ending`` workers, and waits for them no longer."""
        left = list(self.ending)
        self.ending.clear()
        self.cancel([worker.handle for worker in left])
        for worker in left:
            self.slots.free(worker.chunk.ordinal)
            self._close_session(worker)
        links = ", ".join(self.launcher.link(worker.handle) for worker in left)
        text = f"these workers did their work but have not ended; make sure that they end: {links}"
        self.run.log(logging.WARNING, text)

    def _cancel_unconfirmed(self, attempt: Attempt) -> None:
        """Cancels the worker that an attempt may have started, if there is one."""
        try:
            if handle := self.launcher.find(attempt):
                self.launcher.cancel([handle])
        except Exception as error:
            self.run.log(logging.ERROR, f"a worker may still be running ({attempt.title}): {error!r}")

    def _close_session(self, worker: RunningWorker) -> None:
        try:
            worker.stack.close()
        except Exception as error:  # losing messages is harmless: receipts are durable
            self.run.log(logging.WARNING, f"closing the session of chunk {worker.chunk.ordinal}: {error!r}")

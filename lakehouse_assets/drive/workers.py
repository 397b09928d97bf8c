"""Keeps the workers that a run started or took over, until they end by themselves or are cancelled.

Nothing is started here (starting.py), and nobody decides whether a worker succeeded (judging.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from lakehouse_assets.drive.running import RunningWorker
from lakehouse_assets.drive.slots import Slots
from lakehouse_assets.drive.this_run import ThisRun
from resources.launchers.base import Attempt, Ended, Handle, Launcher, Usage

# A JVM that has nothing left to do ends in a second or two. One that hangs keeps its slot, so it is cancelled. A remote
# service takes longer to notice an end.
ENDING_SECONDS = 10.0
ENDING_POLLS = 12
# A reading is a round trip to S3, closing a session several. botocore keeps 10 connections, more threads would wait.
SESSION_THREADS = 10


@dataclass(frozen=True)
class Unconfirmed:
    """An attempt that may have a worker."""

    attempt: Attempt
    id: str | None = None
    """The worker's id, where it is known."""


@dataclass
class Workers:
    """All workers of a run that may still run."""

    launcher: Launcher
    slots: Slots
    run: ThisRun
    usages: list[Usage]
    """What each worker that ended has used."""
    running: dict[str, RunningWorker] = field(default_factory=dict)
    """The running workers, by their handles' ids."""
    ending: list[RunningWorker] = field(default_factory=list)
    """The workers whose proof was found; they keep their slots until they have ended."""
    unconfirmed: dict[int, Unconfirmed] = field(default_factory=dict)
    """Attempts that may have a worker which is in neither ``running`` nor ``ending``, by chunk."""
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(SESSION_THREADS, thread_name_prefix="messages")
    )

    def ending_seconds(self) -> float:
        """Returns how long a worker may take to end, once its work is done or it was cancelled."""
        return max(ENDING_SECONDS, ENDING_POLLS * self.launcher.poll_seconds)

    def poll(self) -> Mapping[str, Ended]:
        """Reads what the running workers have sent, closes those that are done, cancels those that are slow to end.

        Returns the workers that have ended, by their handles' ids.
        """
        running = list(self.running.values())
        ended = self.launcher.poll([worker.handle for worker in (*running, *self.ending)])
        self._close_ended(ended)
        if self.launcher.durable:
            list(self._threads.map(RunningWorker.read, running))
        else:
            for worker in running:
                worker.read()
        return ended

    def close(self, worker: RunningWorker) -> None:
        """Closes the session of a worker that ended, gives its slot back and notes what it used."""
        self._close_session(worker)
        self.slots.free(worker.chunk.ordinal)
        if usage := self.launcher.usage(worker.handle):
            self.usages.append(usage)

    def cancel(self, handles: Sequence[Handle]) -> bool:
        """Asks the launcher to cancel workers. Returns False, and logs it, if that failed: the caller tries again."""
        try:
            self.launcher.cancel(handles)
        except Exception as error:
            self.run.log(logging.WARNING, f"workers that should end could not be cancelled yet: {error}")
            return False
        return True

    def settle(self) -> None:
        """Waits until the workers whose proof was found have ended: then their usage is known and their slots are free.

        Raises nothing, and waits for twice ending_seconds() at most: the chunks may be published already.
        """
        until = time.monotonic() + 2 * self.ending_seconds()
        try:
            while self.ending and time.monotonic() < until:
                self._close_ended(self.launcher.poll([worker.handle for worker in self.ending]))
                if self.ending:
                    time.sleep(self.launcher.poll_seconds)
        except Exception as error:
            self.run.log(logging.WARNING, f"it can't be found out whether the workers have ended: {error}")
        if self.ending:
            self._abandon()

    def stop_reading(self) -> None:
        """Reads no more, and does not wait for a reading that is under way."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def cancel_all(self) -> None:
        """Cancels every worker that may still run, frees all slots and closes all sessions."""
        left, unconfirmed = [*self.running.values(), *self.ending], list(self.unconfirmed.values())
        self.running.clear()
        self.ending.clear()
        self.unconfirmed.clear()
        try:
            self.launcher.cancel([*(w.handle for w in left), *(Handle(u.id) for u in unconfirmed if u.id)])
        finally:
            for attempt in (u.attempt for u in unconfirmed if not u.id):
                self._cancel_unconfirmed(attempt)
            self.slots.free_all()
            # In threads: a run's own task is killed soon after it was asked to end.
            with ThreadPoolExecutor(SESSION_THREADS, thread_name_prefix="close") as pool:
                list(pool.map(self._close_session, left))

    def _close_ended(self, ended: Mapping[str, Ended]) -> None:
        """Closes the workers whose work was done and that have ended; cancels those that take too long."""
        for worker in [w for w in self.ending if w.handle.id in ended]:
            self.ending.remove(worker)
            self.close(worker)
        if overdue := [w.handle for w in self.ending if time.monotonic() > w.deadline]:
            self.cancel(overdue)

    def _abandon(self) -> None:
        """Cancels the workers that should have ended by themselves, and waits for them no longer."""
        left = list(self.ending)
        self.ending.clear()
        self.cancel([worker.handle for worker in left])
        for worker in left:
            self.slots.free(worker.chunk.ordinal)
            self._close_session(worker)
        links = ", ".join(self.launcher.link(worker.handle) for worker in left)
        text = f"these workers did their work but have not ended; make sure that they do: {links}"
        self.run.log(logging.WARNING, text)

    def _cancel_unconfirmed(self, attempt: Attempt) -> None:
        try:
            if handle := self.launcher.find(attempt):
                self.launcher.cancel([handle])
        except Exception as error:
            self.run.log(logging.ERROR, f"a worker may still run ({attempt.title}): {error!r}")

    def _close_session(self, worker: RunningWorker) -> None:
        try:
            worker.stack.close()
        except Exception as error:  # losing messages is harmless: proofs are durable
            self.run.log(logging.WARNING, f"closing the session of chunk {worker.chunk.ordinal}: {error!r}")

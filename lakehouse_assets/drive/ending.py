"""How workers end: closed when their service says that they ended, cancelled when they must not run on.
Whether a worker succeeded is judging.py's; nothing is started here."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lakehouse_assets.drive.running import RunningWorker, Unconfirmed, Workers
from lakehouse_assets.drive.slots import Slots
from lakehouse_assets.drive.this_run import ThisRun
from resources.launchers.base import Ended, Handle, Launcher, Usage

# A JVM that has nothing left to do ends in a second or two. One that hangs keeps its slot, so it is cancelled. A remote
# service takes longer to notice an end.
ENDING_SECONDS = 10.0
ENDING_POLLS = 12
# Closing a session is several round trips to S3.
CLOSING_THREADS = 10


@dataclass
class Ending:
    """Ends one run's workers. usages: of each worker that ended, for its bill."""

    launcher: Launcher
    slots: Slots
    workers: Workers
    usages: list[Usage]
    run: ThisRun

    def seconds(self) -> float:
        """How long a worker may take to end, once its work is done or its end was asked for."""
        return max(ENDING_SECONDS, ENDING_POLLS * self.launcher.poll_seconds)

    def close(self, worker: RunningWorker) -> None:
        """Close the session of a worker that ended, give its slot back and note what it used."""
        self._close_session(worker)
        self.slots.free(worker.chunk.ordinal)
        if usage := self.launcher.usage(worker.handle):
            self.usages.append(usage)

    def reap(self, ended: Mapping[str, Ended]) -> None:
        """Close those whose work was done and that have ended by now; cancel those that take too long."""
        ending = self.workers.ending
        for worker in [w for w in ending if w.handle.id in ended]:
            ending.remove(worker)
            self.close(worker)
        if overdue := [w.handle for w in ending if time.monotonic() > w.deadline]:
            self.cancel(overdue)

    def cancel(self, handles: Sequence[Handle]) -> bool:
        """Whether the workers were cancelled. If not, the run goes on, and the caller tries again at its next poll."""
        try:
            self.launcher.cancel(handles)
        except Exception as error:
            self.run.log(logging.WARNING, f"workers that should end could not be cancelled yet: {error}")
            return False
        return True

    def settle(self) -> None:
        """Wait for the workers whose proof is there to end: their usage is known then, and their slots are free.

        Raises nothing, and waits no longer than a cancelled worker takes: their work may be public already.
        """
        until = time.monotonic() + 2 * self.seconds()
        try:
            while self.workers.ending and time.monotonic() < until:
                self.reap(self.launcher.poll([w.handle for w in self.workers.ending]))
                if self.workers.ending:
                    time.sleep(self.launcher.poll_seconds)
        except Exception as error:
            self.run.log(logging.WARNING, f"it can't be found out whether the workers have ended: {error}")
        if self.workers.ending:
            self._abandon()

    def cancel_all(self) -> None:
        """Cancel every worker that may still run, free all slots and close all sessions."""
        left = [*self.workers.running.values(), *self.workers.ending]
        unconfirmed = list(self.workers.unconfirmed.values())
        self.workers.running.clear()
        self.workers.ending.clear()
        self.workers.unconfirmed.clear()
        try:
            self.launcher.cancel([*(w.handle for w in left), *(Handle(u.id) for u in unconfirmed if u.id)])
        finally:
            for attempt in unconfirmed:
                self._cancel_unconfirmed(attempt)
            self.slots.free_all()
            # In threads: a run's own task is killed soon after it was asked to end.
            with ThreadPoolExecutor(CLOSING_THREADS, thread_name_prefix="close") as pool:
                list(pool.map(self._close_session, left))

    def _abandon(self) -> None:
        """Cancel the workers that should have ended by themselves, and wait for them no longer."""
        left = list(self.workers.ending)
        self.workers.ending.clear()
        self.cancel([worker.handle for worker in left])
        for worker in left:
            self.slots.free(worker.chunk.ordinal)
            self._close_session(worker)
        links = ", ".join(self.launcher.link(worker.handle) for worker in left)
        self.run.log(
            logging.WARNING, f"these workers did their work but have not ended; make sure that they do: {links}"
        )

    def _cancel_unconfirmed(self, unconfirmed: Unconfirmed) -> None:
        """Cancel the worker of an attempt whose worker's id is not known, if there is one."""
        if unconfirmed.id:
            return
        try:
            if handle := self.launcher.find(unconfirmed.attempt):
                self.launcher.cancel([handle])
        except Exception as error:
            self.run.log(logging.ERROR, f"a worker may still run ({unconfirmed.attempt.title}): {error!r}")

    def _close_session(self, worker: RunningWorker) -> None:
        try:
            worker.stack.close()
        except Exception as error:  # what was read before, or is durable, decides
            self.run.log(logging.WARNING, f"closing the session of chunk {worker.chunk.ordinal}: {error!r}")

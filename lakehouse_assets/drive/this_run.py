"""The run that drives the workers, as Dagster knows it: its log, and whether somebody ended it.

While Dagster's storage can't be reached, the workers go on. What becomes of a run whose process is gone is
dead_runs.py's.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TypeAlias

import dagster as dg

logger = logging.getLogger(__name__)

Context: TypeAlias = dg.OpExecutionContext | dg.AssetExecutionContext

INTERRUPTIONS = (dg.DagsterExecutionInterruptedError, KeyboardInterrupt)
# FAILURE: Dagster took this process for dead. Whoever re-executes the run from failure starts its workers again.
ENDING = (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.FAILURE)
# How often the status is read: a few milliseconds each time on SQLite.
STATUS_SECONDS = 2.0


class ThisRun:
    """The run of an op or an asset that drives workers."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.id = context.run.run_id
        self._next_status_check = 0.0

    def log(self, level: int, text: str) -> None:
        """Writes to the run's log, or to this process's own log if Dagster's storage refuses."""
        try:
            self.context.log.log(level, text)
        except Exception as error:  # each kind of storage has its own
            logger.log(level, "%s (not in the run's log: %r)", text, error)

    def raise_if_ended(self) -> None:
        """Raises what *Terminate* raises when the run's status says that somebody ended it.

        The signal alone is not enough: Python drops an exception that a signal's handler raises inside a destructor or
        a weak reference's callback, and a run that is forced to *canceled* may get no signal.
        """
        if time.monotonic() < self._next_status_check:
            return
        self._next_status_check = time.monotonic() + STATUS_SECONDS
        try:
            if self._is_ended():
                raise dg.DagsterExecutionInterruptedError  # a BaseException: not caught here
        except Exception as error:  # each kind of storage has its own
            logger.warning("the run's status can't be read, its workers go on: %r", error)

    def resumes_after(self, error: BaseException) -> bool:
        """Says whether Dagster will resume the run in another process.

        It will if nobody ended the run, and the error is the end of this process's host, such as a Spot interruption
        or a task's retirement.
        """
        if not isinstance(error, INTERRUPTIONS) or self._is_ended():
            return False
        return self.context.instance.run_will_resume(self.id)

    def _is_ended(self) -> bool:
        run = self.context.instance.get_run_by_id(self.id)
        return run is None or run.status in ENDING


def start_time(pid: int) -> str | None:
    """Returns the start time of a process of this host, in ticks since its boot; None if it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Counted after the command, which may contain spaces: state is field 3, starttime field 22 (proc(5)).
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]

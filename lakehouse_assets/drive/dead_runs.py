"""Finds the runs whose process is gone, fails them and frees what they hold; whoever waits for that looks meanwhile.

A living run is never ended: its process holds a lock (environment/process_locks.py). Where Dagster keeps runs in
another storage, as in production, its own run monitoring asks the service that runs them.
"""

from __future__ import annotations

import logging
import socket
import time
from dataclasses import dataclass

import dagster as dg
from dagster._core.storage.tags import HIDDEN_TAG_PREFIX

from lakehouse_assets.drive.kept_verdicts import keep_verdicts
from lakehouse_assets.drive.this_run import ThisRun, start_time
from lakehouse_assets.environment.process_locks import locks_of

logger = logging.getLogger(__name__)

ACTIVE = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
# How often a run that waits looks for dead ones, in seconds.
LOOK_SECONDS = 5.0
# By this tag versions before these locks named a run's process, as "<hostname>:<pid>:<start time>".
PROCESS_TAG = f"{HIDDEN_TAG_PREFIX}lakehouse_process"


def reap(instance: dg.DagsterInstance) -> list[str]:
    """Fails the runs whose process is gone, and frees their slots. Returns their ids."""
    reaped = []
    locks = locks_of(instance.run_storage)
    for dead in locks.gone() if locks else ():
        if _fail(instance, dead.name, dead.process):
            reaped.append(dead.name)
        # Also of a run that ended before its process did: no daemon may be there to do it.
        instance.event_log_storage.free_concurrency_slots_for_run(dead.name)
    for run in instance.get_runs(dg.RunsFilter(statuses=ACTIVE)):
        tag = _own_tag(instance, run)
        if tag and is_dead(tag) and _fail(instance, run.run_id, f"process {tag.rsplit(':', 2)[1]} on {_host()}"):
            instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
            reaped.append(run.run_id)
    return reaped


def told(run_id: str) -> str:
    """Returns what a person is told of a run that was reaped."""
    return f"the process of run {run_id} had died: the run is marked as failed, its slots are free"


def hold_lock(instance: dg.DagsterInstance, run_id: str) -> None:
    """Holds the lock of a run that this process is about to create, so that it is found even if it is never started."""
    if locks := locks_of(instance.run_storage):
        locks.hold(run_id)


@dataclass
class Lookout:
    """Looks for dead runs while a run waits for what they may hold."""

    run: ThisRun
    _next: float = 0.0
    """When to look next, in monotonic seconds."""

    def look(self) -> None:
        """Reaps dead runs, every few seconds, and logs which. Raises nothing: the next look tries again."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK_SECONDS
        try:
            for run_id in reap(self.run.context.instance):
                self.run.log(logging.INFO, told(run_id))
        except Exception as error:  # each kind of storage has its own
            logger.warning("could not look for dead runs, the next look tries again: %r", error)


def is_dead(tag: str) -> bool:
    """Says whether a process tag's value names a process of this host that is gone."""
    host, pid, started = tag.rsplit(":", 2)
    return host == _host() and start_time(int(pid)) != started


def _fail(instance: dg.DagsterInstance, run_id: str, process: str) -> bool:
    """Fails a run that has not ended, and returns whether it was one. process: words for its process."""
    # Read now: since it was listed, the run may have ended, and its process with it.
    run = instance.get_run_by_id(run_id)
    if run is None or run.is_finished:
        return False
    instance.report_run_failed(
        run,
        f"The run's process ({process}) died before the run had ended: it was killed, ran out of memory, or the "
        "machine was restarted. Nothing half-written is visible; re-execute the run from failure to continue with the "
        "chunks that were staged.",
    )
    keep_verdicts(instance, run)
    return True


def _own_tag(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str | None:
    """Returns the run's own process tag. A re-execution begins with a copy of its parent's, which does not count."""
    tag = run.tags.get(PROCESS_TAG)
    parent = instance.get_run_by_id(run.parent_run_id) if tag and run.parent_run_id else None
    return None if parent and parent.tags.get(PROCESS_TAG) == tag else tag


def _host() -> str:
    return socket.gethostname()

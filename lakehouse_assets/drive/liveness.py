"""Whether runs still live.

A run asks whether it was ended (ThisRun). reap() finds runs whose process died, and fails them. keep_verdicts() keeps
the verdicts of checks that a failed run did not reach.

A living run holds a process lock. On storages without such locks, as in production, Dagster's run monitoring finds and
fails dead runs.
"""

from __future__ import annotations

import logging
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import dagster as dg
from dagster._core.storage.asset_check_execution_record import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES,
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)
from dagster._core.storage.tags import HIDDEN_TAG_PREFIX
from dagster_shared.check import not_none

from lakehouse_assets.environment.process_locks import locks_of

logger = logging.getLogger(__name__)

Context: TypeAlias = dg.OpExecutionContext | dg.AssetExecutionContext

# What *Terminate* and signals raise.
INTERRUPTIONS = (dg.DagsterExecutionInterruptedError, KeyboardInterrupt)
# FAILURE too: Dagster believes that this process is dead, and a re-execution from failure restarts its workers.
ENDING = (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.FAILURE)
# Between two reads of the run's status, which take a few milliseconds each on SQLite.
STATUS_SECONDS = 2.0


class ThisRun:
    """The run of an op or an asset that drives workers."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.id = context.run.run_id
        self._next_status_check = 0.0

    def log(self, level: int, text: str) -> None:
        """Writes to the run's log, or to the process's log if Dagster's storage refuses."""
        try:
            self.context.log.log(level, text)
        except Exception as error:  # each kind of storage has its own
            logger.log(level, "%s (not in the run's log: %r)", text, error)

    def raise_if_ended(self) -> None:
        """Raises what *Terminate* raises if the run's status says that it was ended.

        The signal is not enough: Python drops an exception that its handler raises inside a destructor or a weak
        reference's callback, and a run forced to *canceled* may get none.
        """
        if time.monotonic() < self._next_status_check:
            return
        self._next_status_check = time.monotonic() + STATUS_SECONDS
        try:
            if self._is_ended():
                raise dg.DagsterExecutionInterruptedError  # a BaseException, not caught below
        except Exception as error:  # each kind of storage has its own
            logger.warning("the run's status can't be read, its workers continue: %r", error)

    def resumes_after(self, error: BaseException) -> bool:
        """Whether Dagster will resume the run in another process.

        Dagster does so after the end of a host, e.g. a Spot interruption or a task's retirement, but not if somebody
        ended the run. False while Dagster's storage can't be read.
        """
        if not isinstance(error, INTERRUPTIONS):
            return False
        try:
            return not self._is_ended() and self.context.instance.run_will_resume(self.id)
        except Exception as unreadable:  # each kind of storage has its own
            self.log(logging.WARNING, f"can't read whether the run will be resumed; its workers end: {unreadable!r}")
            return False

    def _is_ended(self) -> bool:
        run = self.context.instance.get_run_by_id(self.id)
        return run is None or run.status in ENDING


PLANNED = AssetCheckExecutionRecordStatus.PLANNED
KEPT = "kept"
"""The entry of metadata that says when a verdict that was stored again was first given."""
NEVER = "not evaluated yet: the run failed before it reached this check"


def keep_verdicts(instance: dg.DagsterInstance, run: dg.DagsterRun, failed: str | None = None) -> None:
    """Stores the last verdict again for each planned check that the run will not evaluate.

    Otherwise Dagster would show these checks as failed. If a check was never evaluated, stores a warning: unknown is
    neither green nor red. failed: the failed step; only its checks and those of steps that wait for it are stored. None
    for a run that is over. Raises nothing.
    """
    try:
        keys = _checks_not_reached(instance, run, failed)
        latest = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
        for key, record in latest.items():
            if record.run_id == run.run_id and record.status is PLANNED:
                _store_verdict(instance, run, key)
    except Exception as error:  # each kind of storage has its own
        logger.warning("run %s: could not keep the last verdicts of its checks: %r", run.run_id, error)


def stored_verdict(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> tuple[bool, str] | None:
    """Returns whether a check's last evaluation passed, and its description.

    Sensors compare with this, not with what they last stored: since then, a run may have stored another evaluation.
    """
    last = _last(instance, key)
    return (last.evaluation.passed, last.evaluation.description or "") if last and last.evaluation else None


def _last(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> AssetCheckExecutionRecord | None:
    done = COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES
    records = instance.event_log_storage.get_asset_check_execution_history(key, limit=1, status=done)
    return records[0] if records else None


def _checks_not_reached(instance: dg.DagsterInstance, run: dg.DagsterRun, failed: str | None) -> list[dg.AssetCheckKey]:
    if (plan_id := run.execution_plan_snapshot_id) is None:
        return []
    plan = instance.get_execution_plan_snapshot(plan_id)
    steps = {step.key for step in plan.steps} if failed is None else {failed}
    # Adds the steps that wait for one of these, then those that wait for them, until there are no more.
    while waiting := {step for step, needs in plan.step_deps.items() if needs & steps} - steps:
        steps |= waiting
    properties = [output.properties for step in plan.steps if step.key in steps for output in step.outputs]
    return [key for found in properties if found and (key := found.asset_check_key)]


def _store_verdict(instance: dg.DagsterInstance, run: dg.DagsterRun, key: dg.AssetCheckKey) -> None:
    last = _last(instance, key)
    kept = _repeated(last) if last else _never_evaluated(key)
    if kept.partition is not None:
        return  # the last record is one partition's verdict, which must not stand for the others
    event = dg.DagsterEvent(
        event_type_value=dg.DagsterEventType.ASSET_CHECK_EVALUATION.value,
        job_name=run.job_name,
        event_specific_data=kept,
        message=f"Check {key.name} of {key.asset_key.to_user_string()}: {kept.metadata[KEPT].value}",
    )
    instance.report_dagster_event(event, run.run_id)


def _repeated(record: AssetCheckExecutionRecord) -> dg.AssetCheckEvaluation:
    event, said = not_none(record.event), not_none(record.evaluation)
    at = datetime.fromtimestamp(event.timestamp, UTC)
    note = f"a run failed before it reached this check; this is the result from {at:%Y-%m-%d %H:%M:%S} UTC"
    # A note that the verdict has already stays: it tells when the check was really evaluated.
    return said.with_metadata({KEPT: note, **said.metadata})


def _never_evaluated(key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        key.asset_key,
        key.name,
        passed=False,
        severity=dg.AssetCheckSeverity.WARN,
        description=NEVER,
        metadata={KEPT: "a run failed before it reached this check, which was never evaluated"},
    )


ACTIVE = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
# Between two looks for dead runs.
LOOK_SECONDS = 5.0
# Earlier versions of this library, without locks, named a run's process by this tag: "<hostname>:<pid>:<start time>".
PROCESS_TAG = f"{HIDDEN_TAG_PREFIX}lakehouse_process"


def reap(instance: dg.DagsterInstance) -> list[str]:
    """Fails the runs whose process is gone, and frees their slots. Returns their ids."""
    reaped = []
    locks = locks_of(instance.run_storage)
    for dead in locks.gone() if locks else ():
        if _fail(instance, dead.name, dead.process):
            reaped.append(dead.name)
        # Also if the run had ended before its process did: there may be no daemon that frees the slots.
        instance.event_log_storage.free_concurrency_slots_for_run(dead.name)
    # Runs of earlier versions, without locks.
    for run in instance.get_runs(dg.RunsFilter(statuses=ACTIVE)):
        tag = _own_tag(instance, run)
        if tag and is_dead(tag) and _fail(instance, run.run_id, f"process {tag.rsplit(':', 2)[1]} on {_host()}"):
            instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
            reaped.append(run.run_id)
    return reaped


def reaped_text(run_id: str) -> str:
    """Returns the message about a reaped run."""
    return f"the process of run {run_id} died: the run is marked as failed, and its slots are free"


def hold_lock(instance: dg.DagsterInstance, run_id: str) -> None:
    """Locks a run before it is created, so that reap() finds it even if it never starts."""
    if locks := locks_of(instance.run_storage):
        locks.hold(run_id)


@dataclass
class Lookout:
    """Looks for dead runs while a run waits for slots that they may hold."""

    run: ThisRun
    _next: float = 0.0

    def look(self) -> None:
        """Reaps and logs dead runs every few seconds. Raises nothing."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK_SECONDS
        try:
            for run_id in reap(self.run.context.instance):
                self.run.log(logging.INFO, reaped_text(run_id))
        except Exception as error:  # each kind of storage has its own
            logger.warning("could not look for dead runs; will try again: %r", error)


def is_dead(tag: str) -> bool:
    """Whether a process tag names a process of this host that is gone."""
    host, pid, started = tag.rsplit(":", 2)
    return host == _host() and start_time(int(pid)) != started


def start_time(pid: int) -> str | None:
    """Returns the start of a process, in ticks since boot; None if it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # After the command, which may contain spaces: state is field 3, starttime field 22 (proc(5)).
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _fail(instance: dg.DagsterInstance, run_id: str, process: str) -> bool:
    """Fails a run whose process is gone; returns False if the run had ended already."""
    # Read again: the run may have ended since it was listed.
    run = instance.get_run_by_id(run_id)
    if run is None or run.is_finished:
        return False
    instance.report_run_failed(
        run,
        f"The run's process ({process}) died before the run ended: it was killed, ran out of memory, or the machine "
        "was restarted. Nothing half-written is visible; re-execute the run from failure to continue with the staged "
        "chunks.",
    )
    keep_verdicts(instance, run)
    return True


def _own_tag(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str | None:
    """Returns the run's process tag, unless a re-execution copied it from its parent."""
    tag = run.tags.get(PROCESS_TAG)
    parent = instance.get_run_by_id(run.parent_run_id) if tag and run.parent_run_id else None
    return None if parent and parent.tags.get(PROCESS_TAG) == tag else tag


def _host() -> str:
    return socket.gethostname()

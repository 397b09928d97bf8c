"""Keeps the last verdicts of checks that a failed run has planned and will not evaluate.

Dagster would show them as "Execution failed", as if something were wrong with their tables.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import dagster as dg
from dagster._core.storage.asset_check_execution_record import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES,
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)
from dagster_shared.check import not_none

logger = logging.getLogger(__name__)

PLANNED = AssetCheckExecutionRecordStatus.PLANNED
KEPT = "kept"
"""The metadata of a verdict that a run has kept instead of evaluating the check."""
NEVER = "not evaluated yet: the run failed before it came to this check"


def keep_verdicts(instance: dg.DagsterInstance, run: dg.DagsterRun, failed: str | None = None) -> None:
    """Stores the last verdict again, as the run's, of each check that the run has planned and will not evaluate.

    A check that was never evaluated gets a warning: unknown is neither green nor red.

    failed: the key of the step that fails now; then only its checks count, and those of the steps that wait for it.
    None for a run that is over. Raises nothing: it is called while something worse is reported.
    """
    try:
        keys = _keys(instance, run, failed)
        latest = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
        for key, record in latest.items():
            if record.run_id == run.run_id and record.status is PLANNED:
                _keep(instance, run, key)
    except Exception as error:  # each kind of storage has its own
        logger.warning("run %s: could not keep the last verdicts of its checks: %r", run.run_id, error)


def _keys(instance: dg.DagsterInstance, run: dg.DagsterRun, failed: str | None) -> list[dg.AssetCheckKey]:
    """Returns the checks of the run's steps; with a failed one, of that and of all that wait for it."""
    if (plan_id := run.execution_plan_snapshot_id) is None:
        return []
    plan = instance.get_execution_plan_snapshot(plan_id)
    lost = {step.key for step in plan.steps} if failed is None else {failed}
    while more := {step for step, needs in plan.step_deps.items() if needs & lost} - lost:
        lost |= more
    properties = [output.properties for step in plan.steps if step.key in lost for output in step.outputs]
    return [key for found in properties if found and (key := found.asset_check_key)]


def _keep(instance: dg.DagsterInstance, run: dg.DagsterRun, key: dg.AssetCheckKey) -> None:
    done = COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES
    records = instance.event_log_storage.get_asset_check_execution_history(key, limit=1, status=done)
    kept = _again(records[0]) if records else _unknown(key)
    if kept.partition is not None:
        return  # a check with partitions of its own has a verdict for each of them
    event = dg.DagsterEvent(
        event_type_value=dg.DagsterEventType.ASSET_CHECK_EVALUATION.value,
        job_name=run.job_name,
        event_specific_data=kept,
        message=f"Check {key.name} of {key.asset_key.to_user_string()}: {kept.metadata[KEPT].value}",
    )
    instance.report_dagster_event(event, run.run_id)


def _again(record: AssetCheckExecutionRecord) -> dg.AssetCheckEvaluation:
    """Returns the evaluation of a record, with a note of when it was made; of one kept before, the first note stays."""
    event, said = not_none(record.event), not_none(record.evaluation)
    at = datetime.fromtimestamp(event.timestamp, UTC)
    note = f"a run failed before it came to this check; this is what was found at {at:%Y-%m-%d %H:%M:%S} UTC"
    return said.with_metadata({KEPT: note, **said.metadata})


def _unknown(key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        key.asset_key,
        key.name,
        passed=False,
        severity=dg.AssetCheckSeverity.WARN,
        description=NEVER,
        metadata={KEPT: "a run failed before it came to this check, which was never evaluated"},
    )

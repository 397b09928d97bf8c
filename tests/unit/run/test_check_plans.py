"""A check of a run over many partitions is one execution, beside those of other runs."""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

from collections.abc import Iterator

import dagster as dg
import pytest
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus as Status

from lakehouse_assets.run.check_plans import plan_checks_once

CHECKS = [dg.AssetCheckKey(dg.AssetKey("days"), name) for name in ("audit", "other")]


def materialized(instance: dg.DagsterInstance, *, once: bool, fails: bool = False) -> dg.ExecuteInProcessResult:
    """A run over ten days."""

    @dg.asset(
        partitions_def=dg.DailyPartitionsDefinition("2024-01-01"),
        backfill_policy=dg.BackfillPolicy.single_run(),
        check_specs=[dg.AssetCheckSpec(key.name, asset="days") for key in CHECKS],
    )
    def days(context: dg.AssetExecutionContext) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
        if once:
            plan_checks_once(context.instance, context.run.run_id)
        if fails:
            raise dg.Failure("before the checks")
        for key in CHECKS:
            yield dg.AssetCheckResult(check_name=key.name, passed=True)
        yield dg.MaterializeResult()

    span = {"dagster/asset_partition_range_start": "2024-01-01", "dagster/asset_partition_range_end": "2024-01-10"}
    return dg.materialize([days], instance=instance, tags=span, raise_on_error=False)


def executions(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> list[Status]:
    found = instance.event_log_storage.get_asset_check_execution_history(key, limit=100)
    return [record.status for record in found]


@pytest.mark.parametrize("key", CHECKS, ids=lambda key: key.name)
def test_each_run_is_one_execution(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> None:
    runs = [materialized(instance, once=True) for _ in range(2)]
    assert all(run.success for run in runs)
    assert executions(instance, key) == [Status.SUCCEEDED, Status.SUCCEEDED]


def test_a_run_that_fails_before_leaves_one_that_was_only_planned(instance: dg.DagsterInstance) -> None:
    assert not materialized(instance, once=True, fails=True).success
    assert executions(instance, CHECKS[0]) == [Status.PLANNED]


def test_dagster_itself_still_plans_one_for_each_partition(instance: dg.DagsterInstance) -> None:
    """When this fails, check_plans.py is not needed any more."""
    materialized(instance, once=False)
    assert len(executions(instance, CHECKS[0])) > 2

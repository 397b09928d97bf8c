"""Runs that are re-executed by Dagster's Python API, which names their parent in a field of the run and sets no tags;
and two that repeat one run at once. What the UI's re-executions do: test_resume.py."""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

from typing import Any

import dagster as dg
import pytest

from lakehouse_assets.declare.modes import Append
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.run import report, table_run
from lakehouse_assets.run.asset import table_asset
from tests.support.faults import FaultyLake, FaultyLakehouse, rows_by_day, span, tiny

DAY = "2024-01-01"
TABLE = tiny(write_mode=Append(), unique=[])


def appending() -> dg.JobDefinition:
    """The job of a table that rows are appended to, as the API loads it by its name."""
    resources = {"lakehouse": FaultyLakehouse(read_settings())}
    job = dg.define_asset_job("appending", partitions_def=TABLE.partitions, executor_def=dg.in_process_executor)
    return dg.Definitions([table_asset(TABLE, EXTENSIONS)], jobs=[job], resources=resources).resolve_job_def(
        "appending"
    )


def test_rows_that_were_appended_are_not_appended_again(
    settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.home.mkdir(exist_ok=True)
    lake = FaultyLake(settings, instance)

    def run(**options: object) -> dg.JobExecutionResult:
        return dg.execute_job(dg.reconstructable(appending), instance, **options)

    def dies(*_: object) -> None:
        raise RuntimeError("it dies behind its commit")

    with monkeypatch.context() as patch:
        patch.setattr(report, "add_metadata", dies)
        with run(tags=span([DAY])) as first:
            assert not first.success
    assert rows_by_day(lake, TABLE) == {DAY: 3}
    failed = dg.ReexecutionOptions.from_failure(first.run_id, instance)

    with run(tags=span([DAY]), reexecution_options=failed) as again:
        assert rows_by_day(lake, TABLE) == {DAY: 3}
        assert not again.success
    (event,) = [e for e in instance.all_logs(again.run_id) if e.is_dagster_event and e.dagster_event.is_step_failure]
    assert "dagster/is_resume_retry: true" in event.dagster_event.step_failure_data.user_failure_data.description

    with run(tags=span([DAY]) | {"dagster/is_resume_retry": "true"}, reexecution_options=failed) as resumed:
        assert resumed.success
    assert rows_by_day(lake, TABLE) == {DAY: 3}
    assert instance.get_materialized_partitions(TABLE.key) == {DAY}


def test_of_two_repetitions_at_once_only_one_appends(
    settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.home.mkdir(exist_ok=True)
    lake = FaultyLake(settings, instance)

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("the catalog is away")

    with monkeypatch.context() as patch:
        patch.setattr(table_run, "publish", fails)
        first = lake.run(TABLE, DAY)
    assert not first.success
    repeats = {"dagster/parent_run_id": first.run_id, "dagster/root_run_id": first.run_id}
    audit, others = table_run.audit, []

    def meanwhile(*given: Any) -> Any:
        """The audit of the one, before which the other one begins and ends."""
        if not others:
            others.append(None)
            others[0] = lake.run(TABLE, DAY, tags=repeats)
        return audit(*given)

    monkeypatch.setattr(table_run, "audit", meanwhile)
    late = lake.run(TABLE, DAY, tags=repeats)
    assert others[0].success
    assert not late.success
    assert rows_by_day(lake, TABLE) == {DAY: 3}

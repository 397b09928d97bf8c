"""A run of partitions that are no longer declared, as a re-execution of a failed run may be."""

from __future__ import annotations

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.run.asset import table_asset
from lakehouse_assets.run.resource import Lakehouse
from tests.support.tables import numbers

DAYS = ("2024-01-01", "2024-01-04")
FEWER = {
    "time": dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-03"),
    "static": dg.StaticPartitionsDefinition(["2024-01-01", "2024-01-02"]),
}


def job(partitions: dg.PartitionsDefinition[str], settings: Settings) -> dg.JobDefinition:
    table = numbers(partitions=partitions)
    resources = {"lakehouse": Lakehouse(settings)}
    defs = dg.Definitions([table_asset(table, EXTENSIONS)], resources=resources, executor=dg.in_process_executor)
    return defs.resolve_implicit_global_asset_job_def()


@pytest.mark.parametrize("kind", FEWER)
def test_a_range_beyond_what_is_declared_is_refused_in_words(
    kind: str, settings: Settings, instance: dg.DagsterInstance
) -> None:
    tags = dict(zip((ASSET_PARTITION_RANGE_START_TAG, ASSET_PARTITION_RANGE_END_TAG), DAYS, strict=True))
    before = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-08")
    run = instance.create_run_for_job(job(before, settings), tags=tags)
    result = execute_run(InMemoryJob(job(FEWER[kind], settings)), run, instance)
    (failed,) = (event.step_failure_data for event in result.all_events if event.is_step_failure)
    assert failed.error
    assert failed.error.cls_name == "Failure"
    for text in ("demo.numbers", "the partitions 2024-01-01 to 2024-01-04, but 2024-01-04 is not declared", "new run"):
        assert text in failed.error.message
    assert not settings.home.exists(), "nothing was begun"

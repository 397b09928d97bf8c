"""What of a table was read from an input before that was materialized again."""

from __future__ import annotations

import dagster as dg
import pytest
from dagster._core.definitions.data_version import get_input_event_pointer_tag

from lakehouse_assets.run.outdated import Outdated, latest_made, stale_inputs

UP, DOWN = dg.AssetKey(["shop", "up"]), dg.AssetKey(["shop", "down"])
DAILY = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-05")
HOURLY = dg.HourlyPartitionsDefinition("2026-01-01-00:00", end_date="2026-01-02-00:00")
FEWER = dg.StaticPartitionsDefinition(["2026-01-03"])


def outdated(instance: dg.DagsterInstance, partitions: dg.PartitionsDefinition) -> list[Outdated]:
    specs = [dg.AssetSpec(UP, partitions_def=partitions), dg.AssetSpec(DOWN, partitions_def=partitions, deps=[UP])]
    graph = dg.Definitions(specs).resolve_asset_graph()
    return [*stale_inputs(instance, graph, DOWN, latest_made(instance, graph, DOWN), [UP])]


def report(instance: dg.DagsterInstance, key: dg.AssetKey, **tags: str) -> None:
    instance.report_runless_asset_event(dg.AssetMaterialization(key, partition="2026-01-02", tags=tags))


def test_an_input_that_was_reported_without_a_run_is_not_taken_for_one_that_was_rolled_back() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        report(instance, DOWN, **{get_input_event_pointer_tag(UP): "0"})
        report(instance, UP)
        assert outdated(instance, DAILY) == [Outdated("shop.up", ("2026-01-02",), "", "")]


@pytest.mark.parametrize("now", [HOURLY, FEWER], ids=["another kind", "fewer"])
def test_what_is_not_declared_any_more_is_not_outdated(now: dg.PartitionsDefinition) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        report(instance, DOWN, **{get_input_event_pointer_tag(UP): "0"})
        report(instance, UP)
        assert outdated(instance, now) == []

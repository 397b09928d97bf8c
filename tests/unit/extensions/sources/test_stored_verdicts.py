"""What the sensor of moves stores of a check that runs evaluate, too.
What it finds in a source is in tests/integration/test_source_sensors.py."""

from __future__ import annotations

from unittest import mock

import dagster as dg

from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.extensions.sources import sensors
from lakehouse_assets.run.asset import table_asset
from lakehouse_assets.run.resource import Lakehouse
from tests.support.hot_tables import state_table

GOOD = dg.AssetCheckResult(passed=True, description="nothing is lost")


def test_a_verdict_that_a_run_stored_holds_only_until_the_next_tick(
    instance: dg.DagsterInstance, settings: Settings
) -> None:
    table = state_table()
    sensor = sensors.movers_sensor([table], dg.DefaultSensorStatus.RUNNING)
    lakehouse = {"lakehouse": Lakehouse(settings)}
    definitions = dg.Definitions([table_asset(table, EXTENSIONS)], resources=lakehouse)
    cursor = None

    def tick() -> list[bool]:
        """Whether each evaluation passed that was stored."""
        nonlocal cursor
        context = dg.build_sensor_context(instance, cursor, definitions=definitions, resources=lakehouse)
        with mock.patch.object(sensors, "judged", return_value=(GOOD, None)):
            found = sensor.evaluate_tick(context)
        cursor = found.cursor
        events = [event for event in found.asset_events if isinstance(event, dg.AssetCheckEvaluation)]
        for event in events:
            instance.report_runless_asset_event(event)
        return [event.passed for event in events]

    assert tick() == [True]
    assert tick() == []
    of_run = sensors.warning("held back while the run wrote")
    stored = {"passed": of_run.passed, "severity": of_run.severity, "description": of_run.description}
    instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(asset_key=table.key, check_name=sensors.CHECK, metadata={}, **stored)
    )
    assert tick() == [True]
    assert tick() == []

"""The asset checks ``files``, ``history`` and ``storage`` of tables, and their sensor."""

# No `from __future__ import annotations`: Dagster needs annotations as objects, not as strings.

import time
from collections.abc import Callable, Iterator, Sequence

import dagster as dg

from lakehouse_assets.declare.table import Table
from lakehouse_assets.maintenance.health.findings import DESCRIPTIONS, Check, Measures
from lakehouse_assets.run.resource import Lakehouse

EVERY_SECONDS = 300
"""Seconds between ticks of a sensor."""


def health_checks(table: Table, measures: Measures) -> dg.AssetChecksDefinition:
    """Returns the three health checks of a table.

    Dagster evaluates them with each materialization, for about 0.25 s of CPU: checks that are not part of one have no
    button *Execute*. They never fail the run, which has published by then: errors become warnings.
    """
    specs = [dg.AssetCheckSpec(check.value, asset=table.key, description=DESCRIPTIONS[check]) for check in Check]

    @dg.multi_asset_check(name=f"health__{'__'.join(table.key.path)}", specs=specs, can_subset=True)
    def look_at(
        context: dg.AssetCheckExecutionContext, lakehouse: dg.ResourceParam[Lakehouse]
    ) -> Iterator[dg.AssetCheckResult]:
        from lakehouse_assets.maintenance.health.look import HealthReader
        from lakehouse_assets.maintenance.health.verdicts import verdicts_now

        found = verdicts_now(table, measures, lambda: HealthReader.of(lakehouse, lakehouse.catalog(), context.instance))
        for key in sorted(context.selected_asset_check_keys):
            check = Check(key.name)
            yield found[check].result(table.key, check)

    return look_at


def health_sensor(
    tables: Sequence[Table],
    measures: Measures,
    status: dg.DefaultSensorStatus,
    clock: Callable[[], float] = time.time,
) -> dg.SensorDefinition:
    """Returns the sensor that evaluates the checks. clock: returns epoch seconds."""

    @dg.sensor(
        name="lakehouse_health",
        minimum_interval_seconds=EVERY_SECONDS,
        default_status=status,
        description="Evaluates the checks files, history and storage, from metadata alone: after a table was "
        "materialized, and for each table once an hour. Reports only results that differ from the latest evaluations.",
    )
    def look(context: dg.SensorEvaluationContext, lakehouse: dg.ResourceParam[Lakehouse]) -> dg.SensorResult:
        from lakehouse_assets.maintenance.health.verdicts import evaluate

        return evaluate(context, lakehouse, tables, measures, clock())

    return look

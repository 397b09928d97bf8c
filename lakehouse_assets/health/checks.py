"""The checks ``files``, ``history`` and ``storage`` of every declared table, and the sensor that evaluates them.

They are also an op that a person can execute.
"""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

import time
from collections.abc import Callable, Iterator, Sequence

import dagster as dg

from lakehouse_assets.declare.table import Table
from lakehouse_assets.health.findings import DESCRIPTIONS, Check, Measures
from lakehouse_assets.run.resource import Lakehouse

EVERY_SECONDS = 300


def health_checks(table: Table, measures: Measures) -> dg.AssetChecksDefinition:
    """Returns the three checks of a table's health. measures: what finds what is wrong.

    Dagster adds them to every materialization of the asset; checks that it does not add have no *Execute* button. It
    costs a run about 0.25 s of CPU (a day of flights takes 12 to 15 s): 0.04 s to look, the rest is Dagster's step and
    events. In return a table's health is known right after what changes it. The checks never fail a run, which has
    published by then: what goes wrong is a warning of the checks themselves.
    """
    specs = [dg.AssetCheckSpec(check.value, asset=table.key, description=DESCRIPTIONS[check]) for check in Check]

    @dg.multi_asset_check(name=f"health__{'__'.join(table.key.path)}", specs=specs, can_subset=True)
    def look_at(
        context: dg.AssetCheckExecutionContext, lakehouse: dg.ResourceParam[Lakehouse]
    ) -> Iterator[dg.AssetCheckResult]:
        from lakehouse_assets.health.look import HealthReader
        from lakehouse_assets.health.verdicts import verdicts_now

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
    """Returns one sensor for all tables. measures: what finds what is wrong. clock: returns seconds since 1970."""

    @dg.sensor(
        name="lakehouse_health",
        minimum_interval_seconds=EVERY_SECONDS,
        default_status=status,
        description="Evaluates the checks files, history and storage, from metadata alone: of tables that were "
        "materialized since, and of each table once an hour. Says what their latest evaluations do not say.",
    )
    def look(context: dg.SensorEvaluationContext, lakehouse: dg.ResourceParam[Lakehouse]) -> dg.SensorResult:
        from lakehouse_assets.health.verdicts import evaluate

        return evaluate(context, lakehouse, tables, measures, clock())

    return look

"""Maintenance as a part of the code location: the checks of every declared table, and what runs by itself.

Every declared table is maintained, nobody opts in.
"""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from lakehouse_assets.declare.care import Level
from lakehouse_assets.declare.table import Table
from lakehouse_assets.health.checks import health_checks
from lakehouse_assets.health.health_sensor import health_sensor
from lakehouse_assets.maintenance.due_sensor import due_sensor
from lakehouse_assets.maintenance.job import maintenance_job, run_config
from lakehouse_assets.maintenance.restore_job import restore_job
from lakehouse_assets.maintenance.take_over_job import take_over_job
from resources.settings import Settings

WEEKLY = "0 3 * * 0"
"""Sundays at 3:00 UTC: what is found in one week is looked at again in the next."""


def maintenance(tables: Sequence[Table], settings: Settings) -> dg.Definitions:
    """Returns the definitions for these tables.

    Sensors and the schedule are stopped at first where a person decides what runs (LAKEHOUSE_COMPUTE in BY_HAND).
    """
    by_hand = settings.by_hand
    status = dg.DefaultSensorStatus.STOPPED if by_hand else dg.DefaultSensorStatus.RUNNING
    job = maintenance_job(tables)
    return dg.Definitions(
        asset_checks=[*map(health_checks, tables)],
        sensors=[health_sensor(tables, status), due_sensor(tables, job, status)],
        schedules=[_collection(job, by_hand)],
        jobs=[job, restore_job(tables), take_over_job(tables)],
    )


def _collection(job: dg.JobDefinition, by_hand: bool) -> dg.ScheduleDefinition:
    """Returns the schedule that looks for files that nobody needs.

    No sensor asks for it, as it lists all of a table's storage.
    """
    return dg.ScheduleDefinition(
        name="lakehouse_collection",
        job=job,
        cron_schedule=WEEKLY,
        execution_timezone="UTC",
        run_config=run_config(levels=[Level.COLLECT.value], dry_run=False),
        default_status=dg.DefaultScheduleStatus.STOPPED if by_hand else dg.DefaultScheduleStatus.RUNNING,
        description="Moves files that nobody needs any more to the trash, and empties it, once a week.",
    )

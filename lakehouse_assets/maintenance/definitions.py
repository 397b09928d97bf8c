"""Dagster definitions that maintain every declared table."""

# No `from __future__ import annotations`: Dagster needs annotations as objects, not as strings.

import json
import time
from collections.abc import Callable, Collection, Sequence

import dagster as dg

from lakehouse_assets.declare.options import Level
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.maintenance.health.checks import EVERY_SECONDS, health_checks, health_sensor
from lakehouse_assets.maintenance.job import maintenance_job
from lakehouse_assets.maintenance.levels import LEVELS
from lakehouse_assets.maintenance.run_history import SENSOR
from lakehouse_assets.maintenance.table_jobs import drop_missing_job, restore_job, take_over_job
from lakehouse_assets.run.extension import Extension
from lakehouse_assets.run.resource import Lakehouse

WEEKLY = "0 3 * * 0"
"""Sundays at 3:00 UTC: a week's pass confirms and moves what the pass of the week before has marked."""


def maintenance(
    tables: Sequence[Table], settings: Settings, extensions: Sequence[Extension], domains: Collection[str] = ()
) -> dg.Definitions:
    """Returns the checks, sensors, schedule and jobs of maintenance.

    domains: the names of all domains: one without tables may have a release, which keeps snapshots.
    """
    by_hand = settings.by_hand
    status = dg.DefaultSensorStatus.STOPPED if by_hand else dg.DefaultSensorStatus.RUNNING
    # Only the role of maintenance may delete tables' files:
    # https://docs.dagster.io/deployment/oss/deployment-options/aws#customizing-the-launched-runs-task
    overrides = {"taskRoleArn": settings.maintenance_role}
    tags = {"ecs/task_overrides": json.dumps(overrides)} if settings.maintenance_role else {}
    job = maintenance_job(tables, extensions, tags=tags, domains=domains)
    return dg.Definitions(
        asset_checks=[health_checks(table, LEVELS) for table in tables],
        sensors=[health_sensor(tables, LEVELS, status), due_sensor(tables, job, status)],
        schedules=[_collection(job, by_hand)],
        jobs=[job, *(make(tables, tags) for make in (restore_job, drop_missing_job, take_over_job))],
    )


def due_sensor(
    tables: Sequence[Table],
    job: dg.JobDefinition,
    status: dg.DefaultSensorStatus,
    clock: Callable[[], float] = time.time,
) -> dg.SensorDefinition:
    """Returns the sensor that requests runs of the maintenance job. clock: returns epoch seconds."""

    @dg.sensor(
        name=SENSOR,
        job=job,
        minimum_interval_seconds=EVERY_SECONDS,
        default_status=status,
        description="Requests a run of the maintenance job for the tables that need it, at most once an hour.",
    )
    def look(context: dg.SensorEvaluationContext, lakehouse: dg.ResourceParam[Lakehouse]) -> dg.SensorResult:
        from lakehouse_assets.maintenance.due_tick import ask  # only ticks need it

        return ask(context, lakehouse, tables, clock())

    return look


def _collection(job: dg.JobDefinition, by_hand: bool) -> dg.ScheduleDefinition:
    """Returns the weekly schedule of the collector. No sensor requests it, as it lists all of a table's storage."""
    return dg.ScheduleDefinition(
        name="lakehouse_collection",
        job=job,
        cron_schedule=WEEKLY,
        execution_timezone="UTC",
        run_config={"levels": [Level.COLLECT.value], "dry_run": False},
        default_status=dg.DefaultScheduleStatus.STOPPED if by_hand else dg.DefaultScheduleStatus.RUNNING,
        description="Moves unneeded files to the trash and empties it, once a week.",
    )

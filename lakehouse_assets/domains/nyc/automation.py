"""When Dagster asks for partitions of nyc by itself: the monthly schedule, the sensor that evaluates the conditions.
No tables and no steps; the condition is run/updated.py's."""

from __future__ import annotations

import warnings
from datetime import date, timedelta

import dagster as dg

from resources.settings import Compute, Settings

# Dagster calls it beta; its version is pinned.
warnings.filterwarnings("ignore", "Parameter `use_user_code_server`", dg.BetaWarning)

# Someone at a laptop decides what runs there; elsewhere it runs by itself.
BY_HAND = (Compute.INLINE, Compute.LOCAL)


def sensor(settings: Settings) -> dg.AutomationConditionSensorDefinition:
    """Evaluates the conditions; stopped at first where somebody works by hand."""
    return dg.AutomationConditionSensorDefinition(
        "nyc_automation",
        target=dg.AssetSelection.all(),
        default_status=(
            dg.DefaultSensorStatus.STOPPED if settings.compute in BY_HAND else dg.DefaultSensorStatus.RUNNING
        ),
        minimum_interval_seconds=30,
        use_user_code_server=True,  # the daemon knows Dagster's own conditions only
        description="Keeps what is made of other tables up to date when their partitions are materialized again.",
    )


def monthly_schedule(
    settings: Settings, days: dg.TimeWindowPartitionsDefinition, selection: dg.AssetSelection
) -> dg.ScheduleDefinition:
    """On the 2nd of a month, one run of the daily tables in ``selection`` for the month before and the day behind it.

    One run means one commit a table. What is made of these tables follows by the sensor.
    """
    job = dg.define_asset_job("nyc_last_month", selection, partitions_def=days)

    @dg.schedule(
        job=job,
        cron_schedule="0 12 2 * *",
        execution_timezone="UTC",
        default_status=(
            dg.DefaultScheduleStatus.STOPPED if settings.compute in BY_HAND else dg.DefaultScheduleStatus.RUNNING
        ),
        description="Loads the days of the last month, and the 1st: the last local day ends in its first UTC hours.",
    )
    def nyc_monthly(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        wanted = last_month(context.scheduled_execution_time.date())
        there = [day for day in wanted if days.has_partition_key(day)]
        if not there:
            return dg.SkipReason(
                f"no partition from {wanted[0]} to {wanted[-1]}: they end {days.get_last_partition_key()}"
            )
        return dg.RunRequest(
            run_key=there[0],
            tags={"dagster/asset_partition_range_start": there[0], "dagster/asset_partition_range_end": there[-1]},
        )

    return nyc_monthly


def last_month(today: date) -> list[str]:
    """Keys of the days of the month before ``today``'s, and of the 1st of this one."""
    first_of_this = today.replace(day=1)
    first = (first_of_this - timedelta(days=1)).replace(day=1)
    return [(first + timedelta(days=n)).isoformat() for n in range((first_of_this - first).days + 1)]

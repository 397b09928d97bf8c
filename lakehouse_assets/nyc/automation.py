"""When Dagster asks for partitions of nyc by itself: the condition, the monthly schedule, the sensor that evaluates.
No tables and no steps."""

from __future__ import annotations

from datetime import date, timedelta

import dagster as dg

from resources.settings import Compute, Settings

# Someone at a laptop decides what runs there; elsewhere it runs by itself.
BY_HAND = (Compute.INLINE, Compute.LOCAL)


def when_updated(*upstream: dg.AssetKey) -> dg.AutomationCondition:
    """A partition is asked for once a partition of ``upstream`` that it is made of was materialized again.

    ``AutomationCondition.eager()`` looks at the newest partition only; here every day of the history counts, but only
    the ones touched: nothing is asked for because it is missing, and an update of another dependency (a whole
    dimension, the drop zone) does not ask for the whole history. Waits while a dependency is missing or running.
    """
    condition = dg.AutomationCondition
    updated = condition.any_deps_updated().allow(dg.AssetSelection.assets(*upstream))
    return (
        updated.since_last_handled()
        & ~condition.any_deps_missing()
        & ~condition.any_deps_in_progress()
        & ~condition.in_progress()
    ).with_label(f"{', '.join(key.to_user_string() for key in upstream)} updated")


def sensor(settings: Settings) -> dg.AutomationConditionSensorDefinition:
    """Evaluates the conditions; stopped at first where somebody works by hand."""
    return dg.AutomationConditionSensorDefinition(
        "nyc_automation",
        target=dg.AssetSelection.all(),
        default_status=(
            dg.DefaultSensorStatus.STOPPED if settings.compute in BY_HAND else dg.DefaultSensorStatus.RUNNING
        ),
        minimum_interval_seconds=30,
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

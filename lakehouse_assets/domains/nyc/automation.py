"""The schedule that loads each month's days of nyc."""

from __future__ import annotations

from datetime import date, timedelta

import dagster as dg

from lakehouse_assets.domains.nyc.tables import DAYS, flights, weather


def monthly_schedule(default_status: dg.DefaultScheduleStatus) -> dg.ScheduleDefinition:
    """Returns a schedule that on the 2nd requests one run for all days of last month and the day after.

    One run means one commit per table.
    """
    job = dg.define_asset_job("nyc_last_month", dg.AssetSelection.assets(flights.key, weather.key))

    @dg.schedule(
        job=job,
        cron_schedule="0 12 2 * *",
        execution_timezone="UTC",
        default_status=default_status,
        description="Loads the days of the last month, and the 1st: the last local day ends in its first UTC hours.",
    )
    def nyc_monthly(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        wanted = last_month(context.scheduled_execution_time.date())
        existing = [day for day in wanted if DAYS.has_partition_key(day)]
        if not existing:
            last = DAYS.get_last_partition_key()
            return dg.SkipReason(f"there is no partition from {wanted[0]} to {wanted[-1]}: the last one is {last}")
        first, last = existing[0], existing[-1]
        tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
        return dg.RunRequest(run_key=first, tags=tags)

    return nyc_monthly


def last_month(today: date) -> list[str]:
    """Returns the keys of the days of the month before ``today``'s, and of the 1st of this month."""
    first_of_this = today.replace(day=1)
    first = (first_of_this - timedelta(days=1)).replace(day=1)
    return [(first + timedelta(days=n)).isoformat() for n in range((first_of_this - first).days + 1)]

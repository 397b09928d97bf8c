"""Maintenance as a part of the code location: the checks of every declared table, and what runs by itself.
Every declared table is maintained, nobody opts in."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from lakehouse_assets.declare.table import Table
from lakehouse_assets.maintenance.checks import health_checks
from lakehouse_assets.maintenance.health_sensor import health_sensor
from lakehouse_assets.maintenance.job import maintenance_job
from lakehouse_assets.run.domain import BY_HAND
from resources.settings import Settings


def maintenance(tables: Sequence[Table], settings: Settings) -> dg.Definitions:
    """The definitions for these tables. The sensor is off at first where a person decides what runs."""
    by_hand = settings.compute in BY_HAND
    status = dg.DefaultSensorStatus.STOPPED if by_hand else dg.DefaultSensorStatus.RUNNING
    return dg.Definitions(
        asset_checks=[*map(health_checks, tables)],
        sensors=[health_sensor(tables, status)],
        jobs=[maintenance_job(tables)],
    )

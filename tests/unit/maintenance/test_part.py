"""Every declared table is a maintained one, and nothing runs by itself where a person decides."""

from __future__ import annotations

from dataclasses import replace

import dagster as dg
import pytest

from lakehouse_assets.domains.nyc.domain import DOMAIN
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.maintenance.definitions import maintenance
from tests.support.tables import numbers
from tests.support.whole_location import build_defs


def test_every_table_of_every_domain_has_the_checks(settings: Settings) -> None:
    graph = build_defs().resolve_asset_graph()
    for table in DOMAIN.tables:
        names = {key.name for key in graph.get_check_keys_for_assets({table.key})}
        assert names == {"audit", "files", "history", "storage"}


@pytest.mark.parametrize(
    ("compute", "status"),
    [
        ("local", dg.DefaultSensorStatus.STOPPED),
        ("inline", dg.DefaultSensorStatus.STOPPED),
        ("ecs", dg.DefaultSensorStatus.RUNNING),
    ],
)
def test_sensors_and_the_schedule_are_on_where_nobody_sits_before_it(
    settings: Settings, compute: str, status: dg.DefaultSensorStatus
) -> None:
    part = maintenance([numbers()], replace(settings, compute=compute), EXTENSIONS)
    assert {(sensor.name, sensor.default_status) for sensor in part.sensors or ()} == {
        ("lakehouse_health", status),
        ("lakehouse_maintenance_due", status),
    }
    (schedule,) = part.schedules or ()
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert schedule.name == "lakehouse_collection"
    assert schedule.default_status.name == status.name

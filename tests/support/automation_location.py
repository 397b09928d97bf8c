"""A code location whose sensor runs: two tables filled by tiny workers, each following an asset of somebody else's.
No tests here; what the workers do is in tiny_worker.py."""

from __future__ import annotations

import dagster as dg

from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.run.asset import table_asset
from lakehouse_assets.run.updated import when_updated
from tests.support.faults import FaultyLakehouse, tiny
from tests.support.tables import DAYS

up, source = (dg.AssetSpec(["demo", name], partitions_def=DAYS) for name in ("up", "source"))
down = tiny(identifier="demo.down", deps=[up.key], automation=when_updated(up.key))
# Nobody waits an hour for a test.
retried = tiny(identifier="demo.retried", deps=[source.key], automation=when_updated(source.key, again="* * * * *"))
sensor = dg.AutomationConditionSensorDefinition(
    "automation",
    target=dg.AssetSelection.all(),
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=5,
    use_user_code_server=True,
)

defs = dg.Definitions(
    [up, source, table_asset(down, EXTENSIONS), table_asset(retried, EXTENSIONS)],
    sensors=[sensor],
    resources={"lakehouse": FaultyLakehouse(read_settings())},
    executor=dg.in_process_executor,
)

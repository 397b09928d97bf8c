"""S3 that answers every request with 503 SlowDown for 20 s, at each stage of a run: the run goes on by itself.
Runs and ECS tasks reach SeaweedFS through tests/proxy.py; workers are tests/tiny_worker.py's, and once the real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from lakehouse_assets.lakehouse.slots import POOL
from lakehouse_assets.lakehouse.table import Table
from resources.settings import read_settings
from tests.driven import chosen, tiny_site
from tests.fakes.ecs import EcsSite, ecs_site
from tests.faults import FaultyLake, rows_by_day, taken, tiny
from tests.proxy import Proxy, Trouble, Weather, proxy
from tests.servers import SeaweedFS
from tests.tables import numbers

pytestmark = pytest.mark.server
SECONDS = 20.0
DAYS = ("2024-01-01", "2024-01-02")
READ, WRITTEN = ("GET", "HEAD"), ("PUT", "POST")
STAGES: dict[str, Callable[[str, str], bool]] = {
    "the run looks for receipts": lambda method, path: method in READ and "/00000.json" in path,
    "a worker reads its context": lambda method, path: method in READ and "/context.json" in path,
    "a worker writes its receipt": lambda method, path: method in WRITTEN and "/00000.json" in path,
    "the run reads the forks": lambda method, path: method in READ and "/metadata/snap-" in path,
}


@pytest.fixture
def wire(weed: SeaweedFS) -> Iterator[Proxy]:
    with proxy(weed.s3_endpoint) as state:
        yield state


@pytest.fixture
def behind(weed: SeaweedFS, wire: Proxy) -> SeaweedFS:
    """SeaweedFS as it is seen through the wire."""
    return replace(weed, s3_endpoint=wire.uri)


@pytest.mark.parametrize("stage", STAGES)
def test_light_workers(
    stage: str, behind: SeaweedFS, wire: Proxy, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    wire.trouble = Trouble(Weather.SLOW_DOWN, STAGES[stage], SECONDS)
    with tiny_site("ecs", behind, tmp_path) as site:
        _goes_on(tiny(identifier=f"slow.at_{list(STAGES).index(stage)}"), wire, site, instance, workers=2)


@pytest.mark.spark
def test_a_spark_worker_that_writes(
    behind: SeaweedFS, wire: Proxy, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    wire.trouble = Trouble(Weather.SLOW_DOWN, lambda method, path: method in WRITTEN and "/data/" in path, SECONDS)
    with ecs_site(behind, tmp_path) as site, chosen(site, tmp_path / "home"):
        _goes_on(numbers(identifier="slow.spark"), wire, site, instance, workers=1)


def _goes_on(table: Table, wire: Proxy, site: EcsSite, instance: dg.DagsterInstance, *, workers: int) -> None:
    instance.event_log_storage.set_concurrency_slots(POOL, 2)
    lake = FaultyLake(read_settings(), instance)
    lake.settings.home.mkdir()
    assert lake.run(table, *DAYS).success
    assert wire.trouble and wire.trouble.hits > 0
    assert rows_by_day(lake, table) == dict.fromkeys(DAYS, 3) and lake.snapshots(table) == 1
    assert site.started() == workers and site.running() == taken(instance) == 0

"""A worker that loses its network, for a while or for good: it goes on, or it ends and another one does its chunk.
Only the first worker reaches S3 through support/proxy.py; workers are tiny_worker.py's, and once the real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import dagster as dg
import pytest

from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.slots import POOL
from lakehouse_assets.environment.settings import read_settings
from tests.support.driven import chosen, hurried, tiny_site
from tests.support.fakes.ecs import EcsSite, ecs_site
from tests.support.faults import FaultyLake, rows_by_day, taken, tiny
from tests.support.proxy import Proxy, Trouble, Weather, proxy
from tests.support.servers import SeaweedFS
from tests.support.tables import numbers

pytestmark = pytest.mark.server
DAY = "2024-01-01"


@pytest.fixture
def wire(weed: SeaweedFS) -> Iterator[Proxy]:
    """The first worker's network."""
    with proxy(weed.s3_endpoint) as state:
        yield state


@pytest.fixture
def site(weed: SeaweedFS, tmp_path: Path) -> Iterator[EcsSite]:
    with tiny_site("ecs", weed, tmp_path) as site:
        yield site


def _data(method: str, path: str) -> bool:
    return method in ("PUT", "POST") and "/data/" in path


def _receipt(method: str, path: str) -> bool:
    return method in ("PUT", "POST") and "/00000.json" in path


@pytest.mark.long("Waits for half a minute of silence; unit/environment holds the retries of each client.")
@pytest.mark.parametrize("weather", [Weather.SILENT, Weather.CUT], ids=lambda weather: weather.name)
def test_a_while_is_outlasted(weather: Weather, site: EcsSite, wire: Proxy, instance: dg.DagsterInstance) -> None:
    wire.trouble = Trouble(weather, _receipt, 12.0)
    _filled(tiny(identifier=f"lost.for_a_while_{weather.name.lower()}"), site, wire, instance)
    assert site.started() == 1


BROKEN: dict[str, tuple[Weather, Callable[[str, str], bool], dict[str, str]]] = {
    "hangs, writing data": (Weather.SILENT, _data, {"TINY_MISSED_LOOKS": "2"}),
    "fails, writing its receipt": (Weather.CUT, _receipt, {"TINY_RETRIES": "3"}),
}


@pytest.mark.long("Waits until workers give up; unit/drive holds what follows when one has.")
@pytest.mark.parametrize("way", BROKEN)
def test_for_good_another_worker_does_it(way: str, site: EcsSite, wire: Proxy, instance: dg.DagsterInstance) -> None:
    weather, begins, own = BROKEN[way]
    wire.trouble = Trouble(weather, begins)
    _filled(tiny(identifier=f"lost.for_good_{list(BROKEN).index(way)}"), site, wire, instance, own)
    _one_behind_the_other(site)


@pytest.mark.long("Waits until Java's S3 client gives up, which takes a minute.")
@pytest.mark.spark
def test_a_spark_worker_whose_java_gave_up_is_tried_again_though_it_could_still_say_so(
    weed: SeaweedFS, wire: Proxy, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    wire.trouble = Trouble(Weather.CUT, _data, 3.0)
    impatient = {"PYICEBERG_CATALOG__LAKE__S3__RETRY__NUM_RETRIES": "1"}
    with ecs_site(weed, tmp_path) as site, chosen(site, tmp_path / "home"), hurried():
        _filled(numbers(identifier="lost.spark"), site, wire, instance, impatient)
        _one_behind_the_other(site)


def _filled(
    table: Table, site: EcsSite, wire: Proxy, instance: dg.DagsterInstance, own: Mapping[str, str] | None = None
) -> None:
    """A run fills a day of the table. own: more of the first worker's environment."""
    ways = {"AWS_ENDPOINT_URL_S3": wire.uri, "PYICEBERG_CATALOG__LAKE__S3__ENDPOINT": wire.uri}
    site.ecs.hosts.append(ways | (own or {}))
    instance.event_log_storage.set_concurrency_slots(POOL, 2)
    lake = FaultyLake(read_settings(), instance)
    lake.settings.home.mkdir()
    assert lake.run(table, DAY).success
    assert wire.trouble
    assert wire.trouble.hits > 0
    assert rows_by_day(lake, table) == {DAY: 3}
    assert lake.snapshots(table) == 1
    assert site.running() == taken(instance) == 0


def _one_behind_the_other(site: EcsSite) -> None:
    first, second = (task.process for task in site.ecs.tasks.values())
    assert first.ended_at
    assert second.started_at
    assert first.ended_at <= second.started_at
    assert (first.code, second.code) == (75, 0)

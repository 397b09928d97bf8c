"""S3 that answers every request with 503 SlowDown for 20 s, at each stage of a run: the run goes on by itself.
Runs and ECS tasks reach SeaweedFS through support/proxy.py; workers are tiny_worker.py's, and once the real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import dagster as dg
import pytest

from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.slots import POOL
from lakehouse_assets.environment.settings import read_settings
from tests.support.driven import chosen, tiny_site
from tests.support.fakes.ecs import EcsSite, ecs_site
from tests.support.faults import FaultyLake, rows_by_day, taken, tiny
from tests.support.proxy import Proxy, Trouble, Weather, proxy
from tests.support.servers import SeaweedFS
from tests.support.tables import numbers

pytestmark = [
    pytest.mark.server,
    pytest.mark.long("Waits while S3 asks to slow down; test_lost_network.py breaks calls for less time."),
]
SECONDS = 20.0
DAYS = ("2024-01-01", "2024-01-02")
READ, WRITTEN = ("GET", "HEAD"), ("PUT", "POST")
Begins = Callable[[str, str], bool]
STAGES: dict[str, Begins] = {
    "the run looks for receipts": lambda method, path: method in READ and "/00000.json" in path,
    "a worker reads its context": lambda method, path: method in READ and "/context.json" in path,
    "a worker writes its receipt": lambda method, path: method in WRITTEN and "/00000.json" in path,
    "the run reads the forks": lambda method, path: method in READ and "/metadata/snap-" in path,
}


@dataclass
class Hit:
    """A run that meets the 20 s, with an S3 endpoint and an ECS of its own."""

    wire: Proxy
    site: EcsSite
    lake: FaultyLake

    def assert_done(self, table: Table, workers: int) -> None:
        assert self.wire.trouble
        assert self.wire.trouble.hits > 0
        assert rows_by_day(self.lake, table) == dict.fromkeys(DAYS, 3)
        assert self.lake.snapshots(table) == 1
        assert self.site.started() == workers
        assert self.site.running() == 0


@contextmanager
def _slow(weed: SeaweedFS, begins: Begins) -> Iterator[tuple[Proxy, SeaweedFS]]:
    """SeaweedFS as it is seen through a wire of its own, and that wire."""
    with proxy(weed.s3_endpoint) as wire:
        wire.trouble = Trouble(Weather.SLOW_DOWN, begins, SECONDS)
        yield wire, replace(weed, s3_endpoint=wire.uri)


def _lake(instance: dg.DagsterInstance) -> FaultyLake:
    lake = FaultyLake(read_settings(), instance)
    lake.settings.home.mkdir()
    return lake


def test_light_workers(weed: SeaweedFS, tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """All stages at once, a run in a process of its own for each: one after the other they would take minutes."""
    instance.event_log_storage.set_concurrency_slots(POOL, 2 * len(STAGES))
    tables = {stage: tiny(identifier=f"slow.stage_{number}") for number, stage in enumerate(STAGES)}
    with ExitStack() as stack:
        hits, runs = {}, {}
        for number, (stage, begins) in enumerate(STAGES.items()):
            wire, behind = stack.enter_context(_slow(weed, begins))
            site = stack.enter_context(tiny_site("ecs", behind, tmp_path / str(number)))
            hits[stage] = Hit(wire, site, _lake(instance))
            runs[stage] = hits[stage].lake.start(*DAYS, table=tables[stage].identifier)
            stack.callback(runs[stage].kill)
        assert {stage: run.wait(240) for stage, run in runs.items()} == dict.fromkeys(STAGES, 0)
        for stage, hit in hits.items():
            hit.assert_done(tables[stage], workers=2)
    assert taken(instance) == 0


@pytest.mark.spark
def test_a_spark_worker_that_writes(weed: SeaweedFS, tmp_path: Path, instance: dg.DagsterInstance) -> None:
    instance.event_log_storage.set_concurrency_slots(POOL, 2)
    table = numbers(identifier="slow.spark")
    with (
        _slow(weed, lambda method, path: method in WRITTEN and "/data/" in path) as (wire, behind),
        ecs_site(behind, tmp_path) as site,
        chosen(site, tmp_path / "home"),
    ):
        hit = Hit(wire, site, _lake(instance))
        assert hit.lake.run(table, *DAYS).success
        hit.assert_done(table, workers=1)
    assert taken(instance) == 0

"""The process that drives workers on AWS is killed, at every stage: the resumed run starts no twin and loses nothing.
Processes and SIGKILL are real, the services fakes over HTTP; workers are tests/support/tiny_worker.py's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from lakehouse_assets.drive.slots import POOL
from lakehouse_assets.environment.settings import read_settings
from tests.support.deaths import DAYS, Stage, killed, resumed
from tests.support.driven import Site, tiny_site
from tests.support.faults import FaultyLake, rows_by_day, taken, tiny, wait_for
from tests.support.servers import SeaweedFS
from tests.support.twins import twins

pytestmark = pytest.mark.server
# Each launcher has its own way to find a worker again; notes and receipts are handled alike for all. A worker that was
# requested by a process that died before the answer is the hardest to find.
CASES = twins(
    [
        ("ecs", Stage.UNHEARD),
        *(("ecs", stage) for stage in Stage if stage is not Stage.UNHEARD),
        *(
            (compute, stage)
            for compute in ("emr", "emr_serverless", "emr_eks")
            for stage in (Stage.UNHEARD, Stage.HEARD)
        ),
    ],
    "Deaths between the same steps; test_emr.py and unit/drive let runs die at each of them, in one process.",
)


@pytest.fixture
def site(compute: str, weed: SeaweedFS, tmp_path: Path) -> Iterator[Site]:
    with tiny_site(compute, weed, tmp_path) as site:
        yield site


@pytest.mark.slow("Runs that die are processes, and so are their workers, which live on.")
@pytest.mark.parametrize(("compute", "stage"), CASES, ids=lambda value: getattr(value, "name", value))
def test_a_run_killed_is_gone_on_with(site: Site, stage: Stage, tmp_path: Path, instance: dg.DagsterInstance) -> None:
    instance.event_log_storage.set_concurrency_slots(POOL, 4)
    table = f"deaths.{tmp_path.name}"
    lake = FaultyLake(read_settings(), instance)
    lake.settings.home.mkdir()

    run = killed(lake, site, table, stage)
    assert taken(instance) == 0
    assert rows_by_day(lake, tiny(identifier=table)) == {}

    assert resumed(lake, table, run)
    assert rows_by_day(lake, tiny(identifier=table)) == dict.fromkeys(DAYS, 3)
    assert lake.snapshots(tiny(identifier=table)) == 1
    of_attempts = Counter(key for key, _ in site.workers())
    assert sorted(of_attempts.values()) == [1, 1], of_attempts
    wait_for(lambda: all(process and process.look() == "ended" for _, process in site.workers()))
    assert taken(instance) == 0

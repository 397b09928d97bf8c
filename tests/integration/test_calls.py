"""How often running workers have a run ask their service and S3, at the launchers' own intervals: AWS throttles, bills.
What is asked is in the launchers' unit tests; what a worker's start and end take is in the bench."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest

from lakehouse_assets.drive import liveness, loop, slots, workers
from lakehouse_assets.drive.chunks import Results
from lakehouse_assets.environment.launchers.base import Launcher
from lakehouse_assets.extensions.aws import aws_launcher
from lakehouse_assets.extensions.aws import aws_launcher as s3_pipes
from lakehouse_assets.run.resource import Lakehouse
from tests.support.driven import SITES, TINY, chosen, runs
from tests.support.fakes.ecs import EcsSite
from tests.support.fakes.emr import EmrSite
from tests.support.servers import SeaweedFS, s3_requests
from tests.support.twins import twins

pytestmark = pytest.mark.server

WORKERS = 4
# What docs/measured.md says: a service is asked for all workers together so often, S3 for each of them.
EVERY_SECONDS = 5.0
WATCHED_SECONDS = 60.0


class Fast:
    """In place of the module time: a minute is over in three seconds."""

    pace = 20.0

    def monotonic(self) -> float:
        return time.monotonic() * self.pace

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / self.pace)


class Eager(Lakehouse):
    """Polls as often as the loop turns."""

    def launcher(self, compute: str | None = None) -> Launcher:
        launcher = super().launcher(compute)
        launcher.poll_seconds = 0.2
        return launcher


@dataclass
class Seen:
    """seconds: on the fast clock. service, s3: what they were asked in that time."""

    seconds: float
    service: int
    s3: int


def watched(
    compute: str,
    weed: SeaweedFS,
    folder: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    lakehouse: type[Lakehouse] = Lakehouse,
) -> Seen:
    """What a run asks while its workers are all running and none of them starts, ends or has anything to say."""
    clock, counts = Fast(), list[tuple[float, int, int]]()
    for module in (slots, loop, liveness, workers, aws_launcher, s3_pipes):
        monkeypatch.setattr(module, "time", clock)
    with (
        SITES[compute](weed, folder, command=TINY) as site,
        chosen(site, folder / "home"),
        runs(folder / "home", instance) as run,
    ):
        run.lakehouse = lakehouse
        if isinstance(site, EmrSite):
            site.cluster.parameters["StepConcurrencyLevel"] = WORKERS
        elif not isinstance(site, EcsSite):
            site.emr.capacity = WORKERS
        run.hold()
        begun: list[float] = []

        def look(state: Results) -> None:
            """Nothing is asked meanwhile: the loop waits."""
            now = clock.monotonic()
            if len(run.started()) < WORKERS:
                return
            begun.append(now)
            # Two polls on, what the workers said as they began has been read.
            if not counts and now - begun[0] > 2 * EVERY_SECONDS:
                asked = site.service.calls.total(), s3_requests(weed.metrics)
                counts.append((clock.monotonic(), *asked))
            elif len(counts) == 1 and now - counts[0][0] > WATCHED_SECONDS:
                counts.append((now, site.service.calls.total(), s3_requests(weed.metrics)))
                run.release()

        staging = run.drive("attend", chunks=WORKERS, look=look)
        assert len(staging.receipts) == WORKERS
        assert site.started() == WORKERS
    (start, *before), (end, *after) = counts
    return Seen(end - start, *(later - sooner for later, sooner in zip(after, before, strict=True)))


@pytest.mark.parametrize("compute", twins(SITES, "The intervals are chosen in one place for all launchers."))
def test_running_workers_have_their_service_asked_once_for_all_and_s3_once_for_each_every_five_seconds(
    compute: str, weed: SeaweedFS, tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(compute, weed, tmp_path, instance, monkeypatch)
    turns = seen.seconds / EVERY_SECONDS + 1
    assert 1 <= seen.service <= turns
    assert WORKERS <= seen.s3 <= WORKERS * turns


def test_s3_is_not_asked_more_often_where_the_service_is(
    weed: SeaweedFS, tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched("ecs", weed, tmp_path, instance, monkeypatch, Eager)
    turns = seen.seconds / EVERY_SECONDS + 1
    assert seen.service > turns
    assert WORKERS <= seen.s3 <= WORKERS * turns

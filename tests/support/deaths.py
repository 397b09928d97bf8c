"""Runs killed by SIGKILL at each stage of asking for workers, watching them and taking their receipts.
The killed process is tests/support/faults.py's; the services live on in this one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

from lakehouse_assets.drive.chunks import Journal
from lakehouse_assets.drive.liveness import reap
from lakehouse_assets.environment.aws import bucket_and_key
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.extensions.aws.aws_launcher import PolledS3Reader
from lakehouse_assets.run import table_run
from lakehouse_assets.run.progress import listening
from lakehouse_assets.run.resource import Lakehouse
from tests.support.driven import Site, hurried
from tests.support.faults import FaultyLake, Signs, from_failure, order, tiny, wait_for

DAYS = ("2024-01-01", "2024-01-02")
LAST = len(DAYS) - 1


class Stage(StrEnum):
    """Where a run dies; where it asks for a worker, its first worker runs already, but for UNHEARD."""

    UNNOTED = "before an attempt is noted"
    NOTED = "noted, before it is submitted"
    UNHEARD = "submitted, the answer under way"
    HEARD = "submitted, before its id is noted"
    POLLING = "polling"
    UNSEEN = "receipts there, not seen"
    SEEN = "receipts seen, nothing published"


# Of these the workers are done when the run dies; of the others they still run when the next one looks.
DONE = (Stage.UNSEEN, Stage.SEEN)


def killed(lake: FaultyLake, site: Site, table: str, stage: Stage) -> str:
    """A run of DAYS in a process of its own, which dies at the stage; returns its id."""
    if stage not in DONE:
        Signs(lake).hold(*DAYS)
    if stage is Stage.UNHEARD:
        site.service.silent.add(site.asks)
    child = lake.start(*DAYS, table=table, dies_at=stage)
    if stage is Stage.UNHEARD:
        wait_for(site.started)
        child.kill()
        site.service.silent.clear()
    assert child.wait(300) == -signal.SIGKILL
    (run,) = reap(lake.instance)
    return run


def resumed(lake: FaultyLake, table: str, run: str) -> bool:
    """Whether the run's re-execution from failure, in this process, ended well."""

    def release(_: object) -> None:  # told when its workers were looked for
        Signs(lake).hold()

    with listening(release):
        return lake.run(tiny(identifier=table), DAYS[0], DAYS[-1], tags=from_failure(run)).success


@contextmanager
def doomed(stage: Stage) -> Iterator[None]:
    """This process dies at the stage, but for UNHEARD, which only the service can know."""
    launcher = type(Lakehouse(read_settings()).launcher())
    match stage:
        case Stage.UNNOTED:
            _die_before(Journal, "record", lambda _, chunk, record: chunk == LAST)
        case Stage.NOTED:
            _die_before(launcher, "submit", lambda _, attempt, environment: attempt.ordinal == LAST)
        case Stage.HEARD:
            _die_before(Journal, "record", lambda _, chunk, record: chunk == LAST and record.id)
        case Stage.POLLING:
            _die_before(launcher, "poll", lambda _, handles: len(handles) == len(DAYS) == _begun())
        case Stage.UNSEEN:
            PolledS3Reader.read = lambda _: _die() if _receipts() == len(DAYS) else None  # type: ignore[method-assign]
        case Stage.SEEN:
            _die_before(table_run, "publish", lambda *_: True)
    with hurried():
        yield


def _die_before(owner: Any, name: str, when: Callable[..., object]) -> None:
    method = getattr(owner, name)

    def deadly(*arguments: Any, **options: Any) -> Any:
        if when(*arguments):
            _die()
        return method(*arguments, **options)

    setattr(owner, name, deadly)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _begun() -> int:
    started = Path(os.environ["LAKEHOUSE_HOME"], "started")
    return len(started.read_text().splitlines()) if started.exists() else 0


def _receipts() -> int:
    """How many of this run's receipts are durable."""
    lakehouse = Lakehouse(read_settings())
    bucket, prefix = bucket_and_key(f"{lakehouse.settings.staging}/{order().table}/")
    keys = [told["Key"] for told in lakehouse.s3().list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", ())]
    return sum(Path(key).stem.isdecimal() for key in keys)

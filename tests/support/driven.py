"""Chunks of one run token driven by the real loop, as a run's op does it, with workers on a site of a fake service.
No pytest here: benchmarks and processes of their own use it too. What the workers do is tiny_worker.py's."""

# No `from __future__ import annotations` here: Dagster compares the context's annotation itself.

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dagster as dg
from pyiceberg.io import load_file_io

from lakehouse_assets.drive import chunks as chunk
from lakehouse_assets.drive.chunks import Chunk, Journal, Results
from lakehouse_assets.drive.loop import driving
from lakehouse_assets.drive.slots import POOL
from lakehouse_assets.environment.catalog import catalog_properties
from lakehouse_assets.environment.env_reader import public
from lakehouse_assets.environment.launchers.base import Attempt
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.extensions.aws import aws_launcher, ecs
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.step.window import Window
from lakehouse_assets.wire.work import Assignment
from tests.support.attempts import attempt_at
from tests.support.fakes.ecs import EcsSite, ecs_site
from tests.support.fakes.emr import EmrSite, emr_site
from tests.support.fakes.emr_eks import emr_eks_site
from tests.support.fakes.emr_serverless import emr_serverless_site
from tests.support.fakes.job_runs import JobRunsSite
from tests.support.faults import FaultyLakehouse, taken
from tests.support.servers import SeaweedFS
from tests.support.without_pandas import COMMAND

Site = EcsSite | EmrSite | JobRunsSite
SITES = {"ecs": ecs_site, "emr": emr_site, "emr_serverless": emr_serverless_site, "emr_eks": emr_eks_site}
TINY = (*COMMAND, "tests.support.tiny_worker")
TABLE, TOKEN = "demo.tiny", "token"

Hook = Callable[[Results], None]


class Death(BaseException):
    """Nobody catches it."""


@contextmanager
def tiny_site(compute: str, weed: SeaweedFS, folder: Path) -> Iterator[Site]:
    """A service whose machines run tiny_worker.py, chosen by this process's environment; nothing waits long.
    Its home is ``<folder>/home``."""
    with SITES[compute](weed, folder, command=TINY) as site, chosen(site, folder / "home"), hurried():
        yield site


@contextmanager
def chosen(site: Site, home: Path) -> Iterator[None]:
    """Workers started from this process run on the site."""
    with patch.dict(os.environ, site.environment | {"LAKEHOUSE_HOME": str(home)}):
        yield


@contextmanager
def hurried() -> Iterator[None]:
    """This process asks and tries again after tenths of a second, where it would wait seconds for a real service."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(ecs, "FIND_WAITS", (0.0, 0.2, 0.5)))
        stack.enter_context(patch.object(aws_launcher, "READ_SECONDS", 0.2))
        stack.enter_context(patch.object(chunk, "FIRST_WAIT_SECONDS", 0.1))
        yield


@dataclass
class Run:
    """Runs of one token, each with a launcher of its own, as another process would have. lakehouse: makes it. dead:
    what runs that died left open."""

    home: Path
    instance: dg.DagsterInstance
    lakehouse: Callable[[Settings], Lakehouse] = FaultyLakehouse
    dead: list[AbstractContextManager[Any]] = field(default_factory=list)

    def drive(
        self,
        step: str,
        *,
        chunks: int = 1,
        keys: int = 1,
        look: Hook = lambda state: None,
        dies: bool = False,
        timeout: timedelta | None = None,
    ) -> Results:
        """So many chunks of so many keys each. step: a function of tiny_worker.py. look: called in the loop.
        dies: the process ends without a word when ``look`` raises."""
        parts = [Chunk(n, tuple(f"2024-01-{n + 1:02}-{key:04}" for key in range(keys))) for n in range(chunks)]
        firsts = {chunk.ordinal: replace(self._attempt(step, chunk), timeout=timeout) for chunk in parts}
        results = Results()

        @dg.asset
        def tiny(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
            nonlocal results
            launcher = self.lakehouse(read_settings()).launcher()
            driven = driving(context, launcher, self.journal, look)
            if dies:
                self.dead.append(driven)  # its sessions stay open until close(), as its process would leave them
                driven.__enter__().run(parts, firsts, keep_on=True)
            with driven as drive:
                results = drive.results
                drive.run(parts, firsts, keep_on=True)
            return dg.MaterializeResult()

        dg.materialize([tiny], instance=self.instance)
        return results

    def die_while_it_runs(self) -> None:
        """A process that ends without a word while its worker runs."""
        self.hold()

        def look(state: Results) -> None:
            if self.started():
                raise Death

        try:
            self.drive("attend", look=look, dies=True)
        except Death:
            return
        raise AssertionError("the run outlived its death")

    @property
    def journal(self) -> Journal:
        settings = read_settings()
        io = load_file_io(catalog_properties(settings), settings.staging)
        return Journal(io, f"{settings.staging}/{TABLE}/{TOKEN}")

    def record_unconfirmed(self, number: int) -> None:
        """The record of a run that died between asking for the first chunk's worker and reading the answer."""
        journal = self.journal
        record = replace(journal.last([0])[0], number=number, id=None)
        journal.io.delete(journal.record_location(0, with_id=True))
        journal.record(0, record)

    def age_record(self, *, minutes: float) -> None:
        """Have the first chunk's record be so old."""
        record = self.journal.last([0])[0]
        self.journal.record(0, replace(record, at=(datetime.now(UTC) - timedelta(minutes=minutes)).isoformat()))

    def hold(self) -> None:
        """Workers wait before they leave their receipt."""
        (self.home / "hold").touch()

    def release(self) -> None:
        (self.home / "hold").unlink()

    def started(self) -> list[str]:
        """Of each worker that began, its process id."""
        return (self.home / "started").read_text().split() if (self.home / "started").exists() else []

    def once(self, do: Callable[[], Any], workers: int = 1) -> Hook:
        """A hook that does something as soon as so many workers have begun, once."""
        done: list[bool] = []

        def look(state: Results) -> None:
            if len(self.started()) >= workers and not done:
                done.append(True)
                do()

        return look

    def taken(self) -> int:
        return taken(self.instance)

    def close(self) -> None:
        """What runs that died left open, while there is still an S3 to close it with."""
        for driven in self.dead:
            with suppress(Death):
                driven.__exit__(Death, Death(), None)

    def _attempt(self, step: str, chunk: Chunk) -> Attempt:
        settings = read_settings()
        assignment = Assignment(
            table=TABLE,
            step=step,
            token=TOKEN,
            chunk=chunk.ordinal,
            window=Window(keys=chunk.keys),
            fork_base="base",
            receipt=self.journal.receipt_location(chunk.ordinal),
            code_version="1",
            code="1",
            compute=settings.compute,
            catalog=public(catalog_properties(settings)),
        )
        return attempt_at(assignment, tags={"lakehouse:partitions": "2024-01-01..2024-01-31 (31)"})


@contextmanager
def runs(home: Path, instance: dg.DagsterInstance) -> Iterator[Run]:
    """Runs on a pool of 4, in a new home."""
    instance.event_log_storage.set_concurrency_slots(POOL, 4)
    home.mkdir()
    run = Run(home, instance)
    try:
        yield run
    finally:
        run.close()


def soon(holds: Callable[[], bool], seconds: float = 60) -> bool:
    """Whether it comes to hold while it is waited for."""
    deadline = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return held

"""EMR and EMR Serverless driven by the real loop: found again, lost, terminated; and with real Spark on executors.
Both services are fakes over HTTP whose jobs really run; S3 and the catalog are SeaweedFS."""

# No `from __future__ import annotations` here: Dagster compares the context's annotation itself.

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyarrow.parquet import ParquetFile
from pyiceberg.io import load_file_io
from pyiceberg.table import Table

from lakehouse_assets.lakehouse import drive as drive_module
from lakehouse_assets.lakehouse.attempts import Attempts, Made
from lakehouse_assets.lakehouse.drive import Drive
from lakehouse_assets.lakehouse.plan import Chunk
from lakehouse_assets.lakehouse.receipts import Receipts
from lakehouse_assets.lakehouse.resource import Lakehouse
from lakehouse_assets.lakehouse.slots import POOL, Slots
from lakehouse_assets.lakehouse.staging import Staging
from lakehouse_assets.worker.assignment import Assignment, Receipt, Window
from resources.catalog import catalog_properties
from resources.launchers import remote
from resources.launchers.base import Attempt
from resources.launchers.code import ship
from resources.package import content_hash
from resources.secrets import public
from resources.settings import read_settings
from tests.conftest import Lake, failure_text
from tests.fakes.emr import EmrSite, emr_site
from tests.fakes.emr_serverless import EmrServerlessSite, emr_serverless_site
from tests.fakes.spark_node import DISTRIBUTED, s3_of
from tests.fakes.wire import Fault
from tests.servers import PLAIN_BUCKET, SeaweedFS
from tests.tables import numbers

pytestmark = pytest.mark.server
SITES = {"emr": emr_site, "emr_serverless": emr_serverless_site}
TINY = (sys.executable, "-m", "tests.tiny_worker")
Site = EmrSite | EmrServerlessSite
Hook = Callable[[Staging], None]


def use(site: Site, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (site.environment | {"LAKEHOUSE_HOME": str(home)}).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=list(SITES))
def compute(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def site(compute: str, weed: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A service whose machines run tests/tiny_worker.py."""
    monkeypatch.setattr(remote, "READ_SECONDS", 0.2)
    monkeypatch.setattr(drive_module, "FIRST_WAIT_SECONDS", 0.1)
    with SITES[compute](weed, tmp_path, command=TINY) as site:
        use(site, tmp_path / "home", monkeypatch)
        yield site


class Death(BaseException):
    """Nobody catches it."""


@dataclass
class Run:
    """Runs of one token, each with a launcher of its own, as another process would have."""

    home: Path
    instance: dg.DagsterInstance
    dead: list[Drive] = field(default_factory=list)

    def drive(self, step: str, *, chunks: int = 1, look: Hook = lambda state: None, dies: bool = False) -> Staging:
        """look: called in the loop. dies: the process ends without a word when ``look`` raises."""
        settings = read_settings()
        properties = catalog_properties(settings)
        parts = [Chunk(n, (f"2024-01-{n + 1:02}",)) for n in range(chunks)]
        receipts = Receipts(load_file_io(properties, settings.staging), f"{settings.staging}/demo.tiny")
        self.attempts = Attempts(receipts.io, receipts.folder("token"))
        staging = Staging()

        def first(chunk: Chunk) -> Attempt:
            assignment = Assignment(
                table="demo.tiny",
                step=step,
                token="token",
                chunk=chunk.ordinal,
                window=Window(keys=chunk.keys),
                fork_base="base",
                receipt=receipts.location("token", chunk.ordinal),
                code_version="1",
                compute=settings.compute,
                catalog=public(properties),
            )
            return Attempt(assignment, tags={"lakehouse:partitions": "2024-01-01..2024-01-31 (31)"})

        def found() -> Mapping[int, Receipt]:
            return {r.chunk: r for r in receipts.find("token", chunks)}

        @dg.asset
        def tiny(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
            launcher = Lakehouse(settings).launcher()
            launcher.poll_seconds = 0.1
            slots = Slots(context.instance, context.run.run_id, "tiny")
            drive = Drive(context, launcher, slots, found, look, self.attempts)
            firsts = {chunk.ordinal: first(chunk) for chunk in parts}
            if dies:
                self.dead.append(drive)  # its sessions stay open till the test's end: nobody is there to close them
                drive.run(parts, firsts, staging, True)
            with drive:
                drive.run(parts, firsts, staging, True)
            return dg.MaterializeResult()

        dg.materialize([tiny], instance=self.instance)
        return staging

    def die_while_it_runs(self) -> None:
        """A process that ends without a word while its worker runs."""
        self.hold()

        def look(state: Staging) -> None:
            if self.started():
                raise Death

        with pytest.raises(Death):
            self.drive("attend", look=look, dies=True)

    def hold(self) -> None:
        (self.home / "hold").touch()

    def release(self) -> None:
        (self.home / "hold").unlink()

    def started(self) -> list[str]:
        return (self.home / "started").read_text().split() if (self.home / "started").exists() else []

    def once(self, do: Callable[[], Any], workers: int = 1) -> Hook:
        """A hook that does something as soon as so many workers have begun, once."""
        done: list[bool] = []

        def look(state: Staging) -> None:
            if len(self.started()) >= workers and not done:
                done.append(True)
                do()

        return look


@pytest.fixture
def run(site: Site, tmp_path: Path, instance: dg.DagsterInstance) -> Iterator[Run]:
    instance.event_log_storage.set_concurrency_slots(POOL, 4)
    (tmp_path / "home").mkdir()
    run = Run(tmp_path / "home", instance)
    yield run
    for drive in run.dead:
        drive.__exit__(Death)


def test_a_worker_leaves_its_receipt_and_tells_what_it_used(run: Run, site: Site) -> None:
    staging = run.drive("attend")
    assert sorted(staging.receipts) == [0] and not staging.failures
    assert staging.links[0].startswith("https://us-east-1.console.aws.amazon.com/emr/home?region=us-east-1#/")
    (used,) = staging.usages
    assert used.estimated_usd > 0 and used.source
    assert site.started() == 1


def test_workers_lost_are_made_again_once(run: Run, site: Site) -> None:
    run.hold()

    def interrupt() -> None:
        site.interrupt()
        run.release()

    staging = run.drive("attend", look=run.once(interrupt))
    assert sorted(staging.receipts) == [0] and not staging.failures
    assert site.started() == len(run.started()) == 2


def test_an_answer_lost_for_long_starts_no_twin(run: Run, site: Site) -> None:
    """What was done is done once, though the service says so to nobody for a while."""
    operation = "AddJobFlowSteps" if isinstance(site, EmrSite) else "StartJobRun"
    site.service.fail(operation, Fault("InternalFailure", "", 500, done=True))
    site.service.fail("ListSteps", Fault("InternalFailure", "", 500), times=6)
    site.service.fail(operation, Fault("InternalFailure", "", 500, done=True), times=6)
    staging = run.drive("attend")
    assert sorted(staging.receipts) == [0] and not staging.failures
    assert site.started() == len(run.started()) == 1


def test_an_error_of_the_step_is_told_and_not_tried_again(run: Run, site: Site) -> None:
    (failure,) = run.drive("complain").failures
    assert (failure.message, failure.traceback) == ("KeyError: 'carrier'", "  line 1\n")
    assert site.started() == 1


def test_a_worker_that_ends_well_and_left_nothing_has_failed_and_its_log_is_shown(run: Run, site: Site) -> None:
    (failure,) = run.drive("leave").failures
    assert "left no receipt" in failure.message
    assert "I leave nothing" in failure.log
    assert site.started() == 1


def test_a_log_that_is_not_in_s3_yet_is_said_to_come(run: Run, site: Site) -> None:
    site.emr.logs_come = False
    (failure,) = run.drive("leave").failures
    assert "stderr.gz is not there yet" in failure.log


def test_a_terminated_run_ends_its_workers_and_nothing_else(run: Run, site: Site) -> None:
    run.hold()

    def interrupt() -> None:
        raise dg.DagsterExecutionInterruptedError

    with pytest.raises(dg.DagsterExecutionInterruptedError):
        run.drive("attend", chunks=2, look=run.once(interrupt, workers=2))
    assert site.running() == 0 and site.started() == 2
    assert site.service.calls["TerminateJobFlows"] == 0
    if isinstance(site, EmrSite):
        assert site.cluster.state in ("RUNNING", "WAITING")


def test_a_run_terminated_while_it_asks_for_a_worker_ends_it(
    run: Run, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = type(Lakehouse(read_settings()).launcher())
    submit = launcher.submit

    def interrupted(self: Any, *arguments: Any) -> None:
        submit(self, *arguments)
        raise dg.DagsterExecutionInterruptedError

    monkeypatch.setattr(launcher, "submit", interrupted)
    run.hold()
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        run.drive("attend")
    assert site.running() == 0 and site.started() == 1


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "unheard"])
def test_a_run_that_died_finds_its_worker_again(run: Run, site: Site, noted: bool) -> None:
    run.die_while_it_runs()
    if not noted:
        launcher = type(Lakehouse(read_settings()).launcher()).__name__
        run.attempts.note(0, Made(1, launcher))
    staging = run.drive("attend", look=run.once(run.release))
    assert sorted(staging.receipts) == [0] and not staging.failures
    assert site.started() == len(run.started()) == 1


def test_a_worker_lost_while_nobody_looked_is_made_again_once(run: Run, site: Site) -> None:
    run.die_while_it_runs()
    site.interrupt()
    run.release()
    staging = run.drive("attend")
    assert sorted(staging.receipts) == [0] and not staging.failures
    assert site.started() == len(run.started()) == 2


def test_code_is_shipped_once_for_each_content(weed: SeaweedFS, tmp_path: Path) -> None:
    s3 = s3_of(weed)
    prefix = f"{weed.plain}/{tmp_path.name}/code"
    shipped = ship(s3, prefix)
    assert shipped.package == f"{prefix}/{content_hash()}/lakehouse_assets.zip"

    def state() -> dict[str, Any]:
        listed = s3.list_objects_v2(Bucket=PLAIN_BUCKET, Prefix=f"{tmp_path.name}/code/")["Contents"]
        return {entry["Key"]: entry["LastModified"] for entry in listed}

    before = state()
    assert len(before) == 2
    time.sleep(1.1)  # S3's times are in whole seconds
    assert ship(s3, prefix) == shipped
    assert state() == before


@pytest.mark.spark
@pytest.mark.parametrize("compute", list(SITES))
def test_executors_of_a_real_cluster_write_the_table_with_the_shipped_code(
    compute: str, weed: SeaweedFS, tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance.event_log_storage.set_concurrency_slots(POOL, 2)
    # Each task writes what it computed: a file's rows tell its executor.
    table = replace(
        numbers(identifier=f"{compute}.numbers", properties={"write.distribution-mode": "none"}),
        step="tests.executor_steps:places",
    )
    with SITES[compute](weed, tmp_path / "site", master=DISTRIBUTED) as site:
        use(site, tmp_path / "home", monkeypatch)
        lake = Lake(read_settings(), instance)
        done = lake.run(table, "2024-01-01", "2024-01-03")
        assert done.success, failure_text(done)
        assert site.started() == 1 and lake.snapshots(table) == 1
        written = [
            _texts(lake.table(table), path) for path in lake.table(table).inspect.files()["file_path"].to_pylist()
        ]
        rows = sorted((str(row["day"]), row["n"]) for row in lake.rows(table).to_pylist())
    assert rows == [(f"2024-01-{day:02}", n) for day in (1, 2, 3) for n in range(3)]
    assert all(len(places) == 1 for places in written)
    executors, code = zip(*(text.split() for places in written for text in places), strict=True)
    assert len(set(executors)) == 2
    assert {Path(place).name for place in code} == {"lakehouse_assets.zip"}, code


def _texts(table: Table, path: str) -> set[str]:
    with table.io.new_input(path).open() as file:
        return set(ParquetFile(file).read(["text"])["text"].to_pylist())

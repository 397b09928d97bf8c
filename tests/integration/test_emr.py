"""EMR, EMR Serverless and EMR on EKS driven by the real loop: found again, lost, terminated; and with real Spark.
The services are fakes over HTTP whose jobs really run; S3 and the catalog are SeaweedFS."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyarrow.parquet import ParquetFile
from pyiceberg.table import Table

from lakehouse_assets.drive.chunks import Results
from lakehouse_assets.drive.slots import POOL
from lakehouse_assets.environment.machine import content_hash
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.extensions.aws.job_runs import ship, zipped
from lakehouse_assets.run.resource import WORKER, Lakehouse
from tests.conftest import Lake, failure_text
from tests.support.driven import SITES, Run, Site, chosen, runs, tiny_site
from tests.support.fakes.emr import EmrSite
from tests.support.fakes.spark_node import DISTRIBUTED, s3_of
from tests.support.fakes.wire import Fault
from tests.support.servers import PLAIN_BUCKET, SeaweedFS
from tests.support.tables import numbers
from tests.support.twins import twins

pytestmark = pytest.mark.server
ON_EMR = ("emr", "emr_serverless", "emr_eks")


@pytest.fixture(
    params=twins(ON_EMR, "unit/environment/test_job_runs.py holds how jobs are driven, test_ecs.py the same deaths.")
)
def compute(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def site(compute: str, weed: SeaweedFS, tmp_path: Path) -> Iterator[Site]:
    with tiny_site(compute, weed, tmp_path) as site:
        yield site


@pytest.fixture
def run(site: Site, tmp_path: Path, instance: dg.DagsterInstance) -> Iterator[Run]:
    with runs(tmp_path / "home", instance) as run:
        yield run


def test_a_worker_leaves_its_receipt_and_tells_what_it_used(run: Run, site: Site) -> None:
    staging = run.drive("attend")
    assert sorted(staging.receipts) == [0]
    assert not staging.failures
    assert staging.links[0].startswith("https://us-east-1.console.aws.amazon.com/emr/home?region=us-east-1")
    (used,) = staging.usages
    assert used.estimated_usd > 0
    assert used.source
    assert site.started() == 1


def test_workers_lost_are_made_again_once(run: Run, site: Site) -> None:
    run.hold()

    def interrupt() -> None:
        site.interrupt()
        run.release()

    staging = run.drive("attend", look=run.once(interrupt))
    assert sorted(staging.receipts) == [0]
    assert not staging.failures
    assert site.started() == len(run.started()) == 2


def test_an_answer_lost_for_long_starts_no_twin(run: Run, site: Site) -> None:
    """What was done is done once, though the service says so to nobody for a while."""
    operation = "AddJobFlowSteps" if isinstance(site, EmrSite) else "StartJobRun"
    site.service.fail(operation, Fault("InternalFailure", "", 500, done=True))
    site.service.fail("ListSteps", Fault("InternalFailure", "", 500), times=6)
    site.service.fail(operation, Fault("InternalFailure", "", 500, done=True), times=6)
    staging = run.drive("attend")
    assert sorted(staging.receipts) == [0]
    assert not staging.failures
    assert site.started() == len(run.started()) == 1


def test_an_error_of_the_step_is_told_and_not_tried_again(run: Run, site: Site) -> None:
    (failure,) = run.drive("complain").failures
    assert (failure.message, failure.traceback) == ("KeyError: 'carrier'", "  line 1\n")
    assert site.started() == 1


@pytest.mark.parametrize("compute", ON_EMR, indirect=True)
def test_a_worker_that_ends_well_and_left_nothing_has_failed_and_its_log_is_shown(run: Run, site: Site) -> None:
    (failure,) = run.drive("leave").failures
    assert "left no receipt" in failure.message
    assert "I leave nothing" in failure.log
    assert site.started() == 1


def test_a_log_that_is_not_in_s3_yet_is_said_to_come(run: Run, site: Site, compute: str) -> None:
    site.emr.logs_come = False
    (failure,) = run.drive("leave").failures
    assert "stderr.gz does not exist yet" in failure.log
    assert ("update-role-trust-policy" in failure.log) == (compute == "emr_eks")


def test_a_terminated_run_ends_its_workers_and_nothing_else(run: Run, site: Site) -> None:
    run.hold()

    def interrupt() -> None:
        raise dg.DagsterExecutionInterruptedError

    with pytest.raises(dg.DagsterExecutionInterruptedError):
        run.drive("attend", chunks=2, look=run.once(interrupt, workers=2))
    assert site.running() == 0
    assert site.started() == 2
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
    assert site.running() == 0
    assert site.started() == 1


def test_a_worker_that_waits_for_a_machine_has_its_time_before_it(run: Run, site: Site) -> None:
    places = site.cluster.parameters if isinstance(site, EmrSite) else vars(site.emr)
    name = "StepConcurrencyLevel" if isinstance(site, EmrSite) else "capacity"
    places[name] = 0
    run.hold()
    waited: list[float] = []

    def look(state: Results) -> None:
        if state.running:
            waited.append(time.monotonic())
        if waited and waited[-1] - waited[0] > 3:
            places[name] = 1

    (failure,) = run.drive("attend", look=look, timeout=timedelta(seconds=1)).failures
    assert "still running after 0:00:01 (worker_timeout)" in failure.message
    (worker,) = site.emr.steps() if isinstance(site, EmrSite) else site.emr.jobs.values()
    assert worker.started  # it was not ended where it waited


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "unconfirmed"])
def test_a_run_that_died_finds_its_worker_again(run: Run, site: Site, noted: bool) -> None:
    run.die_while_it_runs()
    if not noted:
        run.record_unconfirmed(1)
    staging = run.drive("attend", look=run.once(run.release))
    assert sorted(staging.receipts) == [0]
    assert not staging.failures
    assert site.started() == len(run.started()) == 1


def test_a_worker_lost_while_nobody_looked_is_made_again_once(run: Run, site: Site) -> None:
    run.die_while_it_runs()
    site.interrupt()
    run.release()
    staging = run.drive("attend")
    assert sorted(staging.receipts) == [0]
    assert not staging.failures
    assert site.started() == len(run.started()) == 2


def test_code_is_shipped_once_for_each_content(weed: SeaweedFS, tmp_path: Path) -> None:
    s3 = s3_of(weed)
    prefix = f"{weed.plain}/{tmp_path.name}/code"
    shipped = ship(s3, prefix, WORKER, ())
    assert shipped.package == f"{prefix}/{content_hash()}/code.zip"

    def state() -> dict[str, Any]:
        listed = s3.list_objects_v2(Bucket=PLAIN_BUCKET, Prefix=f"{tmp_path.name}/code/")["Contents"]
        return {entry["Key"]: entry["LastModified"] for entry in listed}

    before = state()
    assert len(before) == 2
    time.sleep(1.1)  # S3's times are in whole seconds
    assert ship(s3, prefix, WORKER, ()) == shipped
    assert state() == before


@pytest.mark.long("Executors that are processes of their own, for changes of what is shipped.")
@pytest.mark.spark
@pytest.mark.parametrize(
    ("compute", "step", "packages"),
    twins(
        [("emr", "places_of_own", {"code.zip", "own.zip"}), ("emr_serverless", "places", {"code.zip"})],
        "The code is shipped alike to both.",
    ),
    ids=["emr-own package", "emr_serverless"],
)
def test_executors_of_a_real_cluster_write_the_table_with_the_shipped_code(
    compute: str,
    step: str,
    packages: set[str],
    weed: SeaweedFS,
    tmp_path: Path,
    instance: dg.DagsterInstance,
) -> None:
    instance.event_log_storage.set_concurrency_slots(POOL, 2)
    s3_of(weed).put_object(Bucket=PLAIN_BUCKET, Key="own.zip", Body=zipped([("own.py", b"")]))
    own = {"spark.submit.pyFiles": f"s3://{PLAIN_BUCKET}/own.zip"} if "own.zip" in packages else {}
    # Each task writes what it computed: a file's rows tell its executor.
    table = replace(
        numbers(identifier=f"{compute}.numbers", properties={"write.distribution-mode": "none"}, spark_conf=own),
        step=f"tests.support.executor_steps:{step}",
        worker_timeout=timedelta(minutes=30),
    )
    with SITES[compute](weed, tmp_path / "site", master=DISTRIBUTED) as site, chosen(site, tmp_path / "home"):
        lake = Lake(read_settings(), instance)
        done = lake.run(table, "2024-01-01", "2024-01-03")
        assert done.success, failure_text(done)
        assert site.started() == 1
        assert lake.snapshots(table) == 1
        if compute == "emr_serverless":
            (job,) = site.emr.jobs.values()
            assert job.request["executionTimeoutMinutes"] == 30
            assert job.request["tags"]["lakehouse:run"] == done.run_id
        written = [
            _texts(lake.table(table), path) for path in lake.table(table).inspect.files()["file_path"].to_pylist()
        ]
        rows = sorted((str(row["day"]), row["n"]) for row in lake.rows(table).to_pylist())
    assert rows == [(f"2024-01-{day:02}", n) for day in (1, 2, 3) for n in range(3)]
    assert all(len(places) == 1 for places in written)
    executors, *code = zip(*(text.split() for places in written for text in places), strict=True)
    assert len(set(executors)) == 2
    assert {Path(place).name for places in code for place in places} == packages, code


def _texts(table: Table, path: str) -> set[str]:
    with table.io.new_input(path).open() as file:
        return set(ParquetFile(file).read(["text"])["text"].to_pylist())

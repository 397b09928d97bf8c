"""EMR Serverless's launcher over HTTP: what a job is asked for, what its failure means, what it used, where its log is.
What it does as EMR on EKS's does is test_job_runs.py's; with real Spark it is run in tests/integration/test_emr.py."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakehouse_assets.environment.sizes import SERVERLESS, Size
from lakehouse_assets.extensions.aws import job_runs
from lakehouse_assets.extensions.aws.emr_serverless import used
from tests.support.fakes.emr_serverless_service import APPLICATION
from tests.support.fakes.wire import Fault
from tests.support.job_run_launchers import Site, sleeping_site
from tests.unit.extensions.aws.test_emr_launcher import CODE, PIPES, attempt


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with sleeping_site("emr_serverless", tmp_path, monkeypatch) as site:
        yield site


# What is asked for


def test_a_job_runs_the_shipped_code_with_quoted_settings(site: Site) -> None:
    tags = {"lakehouse:run": "r", "lakehouse:partitions": "2024-01-01..2024-03-01 (61)"}
    handle = site.launcher().submit(attempt(size=Size(4, 16, 50), tags=tags, timeout=timedelta(hours=2)), PIPES)
    request = site.job(handle).request
    driver = request["jobDriver"]["sparkSubmit"]
    assert driver["entryPoint"] == CODE.entry_point
    assert driver["entryPointArguments"] == ["--dagster-pipes-context", "eJx1", "--dagster-pipes-messages", "eJx2"]
    options = shlex.split(driver["sparkSubmitParameters"])
    assert options[-2:] == ["--py-files", CODE.package]
    given = {options[i + 1] for i, option in enumerate(options) if option == "--conf"}
    assert given >= {"spark.executor.memory=3g", "spark.driver.memory=14894m", "spark.x=a b"}
    assert given >= {"spark.emr-serverless.driver.disk=50G", "spark.emr-serverless.executor.disk=50G"}
    assert (request["name"], request["clientToken"]) == (attempt().title, attempt().key)
    assert request["executionTimeoutMinutes"] == 120
    assert request["tags"] == {"lakehouse:run": "r", "lakehouse:partitions": "2024-01-01..2024-03-01 61"}


@pytest.mark.parametrize(("vcpus", "gib"), [(v, gib) for v, fitting in SERVERLESS.items() for gib in fitting])
def test_heap_and_overhead_together_are_the_workers_memory(vcpus: float, gib: int) -> None:
    """AWS makes a worker of whole GiB that holds both; a MiB more would cost the next size, or be refused."""
    conf = job_runs.sized(Size(vcpus, gib))
    heap = int(conf["spark.executor.memory"].removesuffix("m"))
    assert (conf["spark.executor.cores"], conf["spark.driver.memory"]) == (f"{vcpus:g}", f"{heap}m")
    assert gib * 1024 - 1 <= heap + max(heap * 0.1, 384) <= gib * 1024


@pytest.mark.parametrize(
    ("timeout", "minutes"), [(None, 10_080), (timedelta(days=30), 10_080), (timedelta(seconds=61), 2)]
)
def test_a_job_never_has_the_twelve_hours_it_gets_unasked(site: Site, timeout: timedelta | None, minutes: int) -> None:
    handle = site.launcher().submit(attempt(timeout=timeout), PIPES)
    assert site.job(handle).request["executionTimeoutMinutes"] == minutes


# What ends mean


@pytest.mark.parametrize(
    ("details", "says", "again"),
    [
        ("Job failed. ExitCode: 137. Last few exceptions: java.lang.OutOfMemoryError", "more memory_gib", False),
        ("ApplicationMaxCapacityExceededException: [memory: 48 GB]", "maximumCapacity", True),
        ("Worker could not be allocated: insufficient capacity", "capacity", True),
        ("Job failed due to an internal error", "internal error", True),
        ("Job failed. Last few exceptions: AnalysisException", "AnalysisException", False),
        ("Job failed. ExitCode: 75. Last few exceptions: User application exited with 75", "its network", True),
        ("Job failed. ExitCode: 1. Last few exceptions: ExitCode: 75", "exceptions: ExitCode: 75", False),
    ],
)
def test_why_a_job_failed_decides_whether_it_is_made_again(site: Site, details: str, says: str, again: bool) -> None:
    launcher = site.launcher()
    handle = launcher.submit(attempt(), PIPES)
    site.fake.fail(site.job(handle), details)
    (ended,) = launcher.poll([handle]).values()
    assert says in ended.reason
    assert details in ended.reason
    assert ended.transient is again


def test_usage_is_what_was_billed_and_before_that_what_was_used(site: Site) -> None:
    launcher = site.launcher()
    handle = launcher.submit(attempt(), PIPES)
    site.fake.tick()
    site.fake.cancel(site.job(handle))
    usage = launcher.usage(handle)
    assert usage
    assert usage.source.startswith("billedResourceUtilization")
    assert usage.gib_hours == 4 * usage.vcpu_hours
    hours = {"vCPUHour": 1.0, "memoryGBHour": 4.0, "storageGBHour": 0.0}
    estimate = used({"totalResourceUtilization": hours})
    assert estimate
    assert estimate.source.startswith("totalResourceUtilization")
    assert estimate.estimated_usd == pytest.approx(0.052624 + 4 * 0.0057785)
    assert used({}) is None


@pytest.mark.parametrize(
    ("parameters", "storage", "billed"),
    [
        ("--conf spark.executor.cores=4", 20.0, 0.0),
        ("--conf spark.emr-serverless.driver.disk=50G --conf spark.emr-serverless.executor.disk=50G", 100.0, 60.0),
        ("--conf spark.emr-serverless.driver.disk=20G --conf spark.emr-serverless.executor.disk=20G", 40.0, 0.0),
    ],
)
def test_the_storage_that_every_worker_has_is_free_before_it_was_billed(
    parameters: str, storage: float, billed: float
) -> None:
    hours = {"vCPUHour": 1.0, "memoryGBHour": 4.0, "storageGBHour": storage}
    job = {"jobDriver": {"sparkSubmit": {"sparkSubmitParameters": parameters}}, "totalResourceUtilization": hours}
    estimate = used(job)
    assert estimate
    assert estimate.estimated_usd == pytest.approx(0.052624 + 4 * 0.0057785 + billed * 0.000111)
    assert used({"billedResourceUtilization": hours}).estimated_usd == pytest.approx(
        0.052624 + 4 * 0.0057785 + storage * 0.000111
    ), "what is billed is beyond it already"


@pytest.mark.parametrize(
    ("configuration", "stream"),
    [
        ({}, "stderr"),
        ({"logGroupName": "/team", "logStreamNamePrefix": "lake"}, "stderr"),
        ({"logTypes": {"SPARK_DRIVER": ["STDOUT", "STDERR"], "SPARK_EXECUTOR": ["STDOUT"]}}, "stderr"),
        ({"logTypes": {"SPARK_DRIVER": ["STDOUT"]}}, "stdout"),
    ],
    ids=["as it is", "named", "both", "stdout"],
)
def test_the_tail_in_cloudwatch_is_the_drivers_end_asked_for_once(
    site: Site, configuration: dict[str, Any], stream: str
) -> None:
    site.fake.monitoring = {"cloudWatchLoggingConfiguration": {"enabled": True, **configuration}}
    site.node.command = ("sh", "-c", "seq 1 200")
    launcher = site.launcher()
    handle = launcher.submit(attempt(), PIPES)
    site.ticked(lambda: site.job(handle).ended)
    assert launcher.tail(handle).split() == [str(n) for n in range(151, 201)]
    assert site.logs.calls == {"GetLogEvents": 1}
    group = configuration.get("logGroupName", "/aws/emr-serverless")
    prefix = f"{configuration.get('logStreamNamePrefix', '')}/applications/{APPLICATION}/jobs/{handle.id}"
    site.logs.fail("GetLogEvents", Fault("AccessDeniedException", "not authorized to perform logs:GetLogEvents"))
    job = launcher.tail(handle)
    assert f"group {group}, stream {prefix}/SPARK_DRIVER/{stream}: " in job
    assert "logs:GetLogEvents" in job


def test_a_log_elsewhere_is_pointed_to(site: Site) -> None:
    launcher = site.launcher()
    handle = launcher.submit(attempt(), PIPES)
    executors = {"enabled": True, "logTypes": {"SPARK_EXECUTOR": ["STDERR"]}}
    for monitoring in (
        {},
        {"cloudWatchLoggingConfiguration": {"enabled": False}},
        {"cloudWatchLoggingConfiguration": executors},
    ):
        site.fake.monitoring = monitoring
        assert "in the console" in launcher.tail(handle)
    assert not site.logs.calls
    assert launcher.link(handle).endswith(f"#/serverless/applications/{APPLICATION}/job-runs/{handle.id}")

"""EMR Serverless's launcher over HTTP against a strict service whose jobs are processes: one job per attempt, its end.
With real Spark it is run in tests/integration/test_emr.py."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakehouse_assets.environment.aws import client
from lakehouse_assets.environment.launchers import aws_launcher, emr_serverless, spark_submit
from lakehouse_assets.environment.launchers.base import Handle, NotStarted
from lakehouse_assets.environment.launchers.emr_serverless import EmrServerlessLauncher, used
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.environment.sizes import SERVERLESS, Size
from tests.support.fakes.emr_serverless_service import APPLICATION, ROLE, FakeEmrServerless, Job
from tests.support.fakes.logs import FakeLogs
from tests.support.fakes.plain_node import PlainNode
from tests.support.fakes.wire import Fault, Service, serving
from tests.unit.environment.test_emr_launcher import CODE, LOST_ANSWER, PIPES, THROTTLED, attempt


class Site:
    """EMR Serverless with sleeping jobs, and launchers that use it."""

    def __init__(self, service: Service, fake: FakeEmrServerless, node: PlainNode, logs: Service) -> None:
        self.service, self.fake, self.node, self.logs = service, fake, node, logs

    def launcher(self, application: str = APPLICATION) -> EmrServerlessLauncher:
        environment = {
            "LAKEHOUSE_COMPUTE": "emr_serverless",
            "LAKEHOUSE_EMR_SERVERLESS_APPLICATION": application,
            "LAKEHOUSE_EMR_SERVERLESS_ROLE": ROLE,
            "LAKEHOUSE_CODE": "s3://bucket/code",
            "LAKEHOUSE_STAGING": "s3://bucket/staging",
        }
        settings = read_settings(environment)
        return EmrServerlessLauncher(settings, settings.computes["emr_serverless"], "worker")

    def job(self, handle: Handle) -> Job:
        return self.fake.jobs[handle.id]

    def ticked(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            self.fake.tick()
            time.sleep(0.01)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    node = PlainNode(tmp_path)
    fake = FakeEmrServerless(node, "s3://bucket/logs")  # type: ignore[arg-type]
    for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "eu-west-1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setattr(emr_serverless, "ship", lambda *_: CODE)
    monkeypatch.setattr(aws_launcher, "STOP_WAITS", (0.0, 0.05, 0.1))
    with serving(Service("emr-serverless", fake)) as service, serving(Service("logs", FakeLogs(fake.lines))) as logs:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EMR_SERVERLESS", service.url)
        monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH_LOGS", logs.url)
        yield Site(service, fake, node, logs)
        for job in fake.having("RUNNING"):
            fake.cancel(job)


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
    conf = spark_submit.sized(Size(vcpus, gib))
    heap = int(conf["spark.executor.memory"].removesuffix("m"))
    assert (conf["spark.executor.cores"], conf["spark.driver.memory"]) == (f"{vcpus:g}", f"{heap}m")
    assert gib * 1024 - 1 <= heap + max(heap * 0.1, 384) <= gib * 1024


@pytest.mark.parametrize(
    ("timeout", "minutes"), [(None, 10_080), (timedelta(days=30), 10_080), (timedelta(seconds=61), 2)]
)
def test_a_job_never_has_the_twelve_hours_it_gets_unasked(site: Site, timeout: timedelta | None, minutes: int) -> None:
    handle = site.launcher().submit(attempt(timeout=timeout), PIPES)
    assert site.job(handle).request["executionTimeoutMinutes"] == minutes


# Exactly one


@pytest.mark.parametrize("fault", [THROTTLED, LOST_ANSWER], ids=["throttled", "answer lost"])
def test_one_job_whatever_becomes_of_the_answer(site: Site, fault: Fault) -> None:
    site.service.fail("StartJobRun", fault)
    handle = site.launcher().submit(attempt(), PIPES)
    assert list(site.fake.jobs) == [handle.id]


def test_the_same_attempt_has_the_same_job_for_another_process_and_another_attempt_its_own(site: Site) -> None:
    handle = site.launcher().submit(attempt(), PIPES)
    assert site.launcher().submit(attempt(), PIPES) == handle
    assert site.launcher().find(attempt()) == handle
    assert site.launcher().find(attempt(number=2)) is None
    assert site.launcher().submit(attempt(number=2), PIPES) != handle


def test_a_run_that_resumes_another_finds_its_job_though_its_tags_differ(site: Site) -> None:
    handle = site.launcher().submit(attempt(tags={"lakehouse:run": "first"}), PIPES)
    assert site.launcher().submit(attempt(tags={"lakehouse:run": "second"}), PIPES) == handle
    assert len(site.fake.jobs) == 1


def test_a_job_among_hundreds_is_found(site: Site) -> None:
    launcher = site.launcher()
    handles = [launcher.submit(attempt(chunk), PIPES) for chunk in range(120)]
    site.service.calls.clear()
    assert launcher.find(attempt(3)) == handles[3]
    assert site.service.calls == {"ListJobRuns": 3}


def test_what_the_service_refuses_is_told(site: Site) -> None:
    with pytest.raises(NotStarted, match="Application 00gone does not exist") as refused:
        site.launcher("00gone").submit(attempt(), PIPES)
    assert not refused.value.transient
    site.service.fail("StartJobRun", Fault("ValidationException", "vCPU quota reached"))
    with pytest.raises(NotStarted, match="quota") as refused:
        site.launcher().submit(attempt(), PIPES)
    assert refused.value.transient


# What ends mean


def test_polling_is_one_call_for_all_that_run(site: Site) -> None:
    launcher = site.launcher()
    handles = [launcher.submit(attempt(chunk), PIPES) for chunk in range(30)]
    site.fake.tick()
    site.service.calls.clear()
    assert launcher.poll(handles) == {}
    assert site.service.calls == {"ListJobRuns": 1}
    site.fake.lag = 60
    assert launcher.poll(handles[:2]) == {}  # what a list does not know is asked for by itself
    assert site.service.calls["GetJobRun"] == 2


def test_a_job_that_waits_for_capacity_has_not_begun(site: Site) -> None:
    launcher = site.launcher()
    site.fake.capacity = 1
    handles = [launcher.submit(attempt(chunk), PIPES) for chunk in range(2)]
    site.ticked(lambda: site.fake.having("RUNNING"))
    launcher.poll(handles)
    begun = [launcher.began(handle) is not None for handle in handles]
    assert begun == [site.job(handle).state == "RUNNING" for handle in handles]
    assert sum(begun) == 1


@pytest.mark.parametrize(("command", "says"), [(["true"], "SUCCESS"), (["false"], "failed: .*ExitCode: 1")])
def test_the_end_of_a_job_is_told(site: Site, command: list[str], says: str) -> None:
    site.node.command = command
    launcher = site.launcher()
    handle = launcher.submit(attempt(), PIPES)
    site.ticked(lambda: site.job(handle).ended)
    (ended,) = launcher.poll([handle]).values()
    assert re.search(says, ended.reason)
    assert not ended.transient


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


def test_a_job_cancelled_in_the_console_is_not_made_again(site: Site) -> None:
    launcher = site.launcher()
    handle = launcher.submit(attempt(), PIPES)
    site.fake.cancel(site.job(handle))
    (ended,) = launcher.poll([handle]).values()
    assert "cancelled, in the console" in ended.reason
    assert not ended.transient


def test_a_job_that_nobody_knows_is_gone(site: Site) -> None:
    (ended,) = site.launcher().poll([Handle("00fgone")]).values()
    assert f"unknown to the application {APPLICATION}" in ended.reason


def test_throttling_ends_nobody(site: Site) -> None:
    launcher = site.launcher()
    handle = launcher.submit(attempt(), PIPES)
    site.service.fail("ListJobRuns", THROTTLED)
    assert launcher.poll([handle]) == {}


# Ending them


def test_cancelling_ends_the_jobs_meant_and_no_others(site: Site) -> None:
    launcher = site.launcher()
    handles = [launcher.submit(attempt(chunk), PIPES) for chunk in range(4)]
    site.fake.tick()
    launcher.cancel([handles[0], handles[2]])
    assert [site.job(h).state for h in handles] == ["CANCELLED", "RUNNING", "CANCELLED", "PENDING"]
    launcher.cancel([*handles[:2], Handle("00fgone")])
    assert [site.job(h).state for h in handles] == ["CANCELLED", "CANCELLED", "CANCELLED", "PENDING"]


def test_what_was_throttled_is_cancelled_later_and_what_can_not_be_is_named(site: Site) -> None:
    launcher = site.launcher()
    handles = [launcher.submit(attempt(chunk), PIPES) for chunk in range(3)]
    launcher._emr = client("emr-serverless", attempts=1)
    site.service.fail("CancelJobRun", THROTTLED, times=2)
    launcher.cancel(handles[:2])
    assert [site.job(h).state for h in handles] == ["CANCELLED", "CANCELLED", "SUBMITTED"]
    site.service.fail("CancelJobRun", Fault("AccessDeniedException", "not allowed", 403))
    with pytest.raises(RuntimeError, match=f"1 workers on EMR Serverless may still run.*{handles[2].id}.*not allowed"):
        launcher.cancel(handles[2:])


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

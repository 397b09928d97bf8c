"""What ECS is asked, and what becomes of its refusals, its lateness, its losses; real clients over HTTP to the fake.
Workers that stage something are tests/integration/test_ecs.py's."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import dagster as dg
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from moto import mock_aws

from lakehouse_assets.environment.launchers.base import Attempt, Handle, NotStarted
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.environment.sizes import Size
from lakehouse_assets.extensions.aws import aws_launcher
from lakehouse_assets.extensions.aws import ecs as answers
from lakehouse_assets.extensions.aws import ecs as module
from lakehouse_assets.extensions.aws.aws_launcher import AttemptContextInjector, PolledS3Reader
from lakehouse_assets.extensions.aws.ecs import EcsLauncher, run_task
from tests.conftest import ROOT
from tests.support.fakes.ecs_rules import CLUSTER, FAMILY, IMAGE, PREFIX
from tests.support.fakes.ecs_service import FakeEcs
from tests.support.fakes.logs import FakeLogs
from tests.support.fakes.task_metadata import task_metadata
from tests.support.fakes.wire import Fault, Service, serving
from tests.support.servers import REGION

ARN = f"{PREFIX}:task/{CLUSTER}/0123456789abcdef0123456789abcdef"
SLEEP = ("sleep", "600")
PIPES = {"DAGSTER_PIPES_CONTEXT": "eJyr", "DAGSTER_PIPES_MESSAGES": "eJyt"}


# what ECS is asked


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return read_settings(
        {
            "LAKEHOUSE_HOME": str(tmp_path / "home"),
            "LAKEHOUSE_COMPUTE": "ecs",
            "LAKEHOUSE_STAGING": "s3://plain/staging",
            "LAKEHOUSE_ECS_CLUSTER": CLUSTER,
            "LAKEHOUSE_ECS_TASK_DEFINITION": FAMILY,
            "LAKEHOUSE_ECS_SUBNETS": "subnet-0a1b2c",
            "LAKEHOUSE_ECS_CAPACITY": "FARGATE_SPOT=3,FARGATE=1",
        }
    )


def attempt(number: int = 1, size: Size = Size(), **tags: str) -> Attempt:  # noqa: B008  frozen
    return Attempt("token", "demo.t", 0, "work", {"kind": "any"}, number=number, size=size, tags=tags)


def test_the_same_attempt_is_the_same_request_and_changes_no_settings(settings: Settings) -> None:
    before = deepcopy(settings)
    first = run_task(settings.computes["ecs"], attempt(run="r"), PIPES, SLEEP)
    first["overrides"]["containerOverrides"].append("changed by a caller")
    backwards = dict(reversed(PIPES.items()))
    again = run_task(settings.computes["ecs"], attempt(run="r"), backwards, SLEEP)
    assert again == run_task(settings.computes["ecs"], attempt(run="r"), PIPES, SLEEP) != first
    assert again["clientToken"] == again["startedBy"] == attempt().key
    assert settings == before


def test_the_tables_size_wins_over_the_settings(settings: Settings) -> None:
    ecs = replace(settings.computes["ecs"], size=Size(2, 8, 30))
    assert run_task(ecs, attempt(), PIPES, SLEEP)["overrides"].items() >= {"cpu": "2048", "memory": "8192"}.items()
    own = run_task(ecs, attempt(size=Size(4, 30)), PIPES, SLEEP)["overrides"]
    assert (own["cpu"], own["memory"], own["ephemeralStorage"]) == ("4096", "30720", {"sizeInGiB": 30})


def test_without_sizes_the_task_definitions_stand(settings: Settings) -> None:
    assert run_task(settings.computes["ecs"], attempt(), PIPES, SLEEP)["overrides"].keys() == {"containerOverrides"}


def test_a_size_fargate_does_not_have_is_refused_before_ecs_is_asked(settings: Settings) -> None:
    with pytest.raises(NotStarted, match="3 vCPUs") as refused:
        run_task(settings.computes["ecs"], attempt(size=Size(3, 8)), PIPES, SLEEP)
    assert not refused.value.transient


def test_tags_are_made_to_fit(settings: Settings) -> None:
    given = attempt(**{"lakehouse:partitions": "2024-01-01..2024-01-31 (31) für é*" + "x" * 300})
    (tag,) = run_task(settings.computes["ecs"], given, PIPES, SLEEP)["tags"]
    assert tag["key"] == "lakehouse:partitions"
    assert tag["value"].startswith("2024-01-01..2024-01-31 31 fr x")
    assert len(tag["value"]) == 256


# what becomes of its answers


class Site:
    def __init__(self, folder: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.fake = FakeEcs(folder, {"PATH": "/usr/bin:/bin"})
        self.service = Service("ecs", self.fake)
        self.logs = Service("logs", FakeLogs(self.fake.lines))
        self.settings = settings

    def client(self, service: Service, retries: int = 6) -> Any:
        return boto3.client(
            service.model.service_name,
            endpoint_url=service.url,
            region_name=REGION,
            aws_access_key_id="k",
            aws_secret_access_key="s",
            config=Config(retries={"mode": "standard", "total_max_attempts": retries}),
        )

    def launcher(self, *command: str, retries: int = 6, settings: Settings | None = None) -> EcsLauncher:
        clients = {"ecs": self.client(self.service, retries), "logs": self.client(self.logs)}
        for where in (module, aws_launcher):
            self.monkeypatch.setattr(where, "client", clients.__getitem__)
        settings = settings or self.settings
        return EcsLauncher(settings, settings.computes["ecs"], command or SLEEP)

    def end_of(self, launcher: EcsLauncher, handle: Handle) -> Any:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if ended := launcher.poll([handle]):
                return ended[handle.id]
            time.sleep(0.02)
        raise AssertionError("the task has not ended")


@pytest.fixture
def site(tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    for where, name in ((module, "FIND_WAITS"), (aws_launcher, "STOP_WAITS")):
        monkeypatch.setattr(where, name, (0.0, 0.1, 0.3))
    site = Site(tmp_path, settings, monkeypatch)
    with serving(site.service), serving(site.logs):
        yield site
        site.fake.end()


def test_a_task_runs_the_command_with_the_variables_and_is_told_of(site: Site) -> None:
    launcher = site.launcher("sh", "-c", "env; exit 3")
    handle = launcher.submit(attempt(asset="demo/t"), PIPES)
    end = site.end_of(launcher, handle)
    assert "status 3" in end.reason
    assert not end.transient
    lines = launcher.tail(handle).splitlines()
    assert {f"{name}={value}" for name, value in PIPES.items()} <= set(lines)
    assert "PYTHONUNBUFFERED=1" in lines
    assert "DAGSTER_HOME" not in launcher.tail(handle)
    used = launcher.usage(handle)
    assert used is not None
    assert used.vcpu_hours == pytest.approx(1 / 60)
    assert "Fargate Spot" in used.source
    assert launcher.began(handle) is not None
    assert site.fake.tasks[handle.id].request["tags"] == [{"key": "asset", "value": "demo/t"}]


def test_a_worker_takes_its_tasks_size_for_its_machine(site: Site) -> None:
    script = "from lakehouse_assets.environment.machine import cores, memory_bytes; print(cores(), memory_bytes())"
    launcher = site.launcher("env", f"PYTHONPATH={ROOT}", sys.executable, "-c", script)
    with task_metadata(site.fake.metadata) as site.fake.metadata_url:
        handle = launcher.submit(attempt(size=Size(0.5, 1)), PIPES)
        site.end_of(launcher, handle)
    assert launcher.tail(handle) == f"1 {2**30}"


def test_the_tail_is_the_logs_end_asked_for_once(site: Site) -> None:
    launcher = site.launcher("seq", "1", "200")
    handle = launcher.submit(attempt(), PIPES)
    site.end_of(launcher, handle)
    assert launcher.tail(handle).split() == [str(n) for n in range(151, 201)]
    launcher.tail(handle)
    assert site.logs.calls == {"GetLogEvents": 2}
    assert site.service.calls["DescribeTaskDefinition"] == 1


def test_a_log_that_can_not_be_had_says_why(site: Site) -> None:
    handle = site.launcher().submit(attempt(), PIPES)
    assert "log stream does not exist" in site.launcher().tail(Handle(ARN))
    site.logs.fail("GetLogEvents", Fault("AccessDeniedException", "not allowed"))
    assert "not allowed" in site.launcher().tail(handle)
    del site.fake.definition["containerDefinitions"][0]["logConfiguration"]
    assert "no awslogs configuration" in site.launcher().tail(handle)


def test_the_same_attempt_starts_one_task(site: Site) -> None:
    first = site.launcher().submit(attempt(), PIPES)
    assert site.launcher().submit(attempt(), PIPES) == first == site.launcher().find(attempt())
    assert site.launcher().submit(attempt(2), PIPES) != first
    assert len(site.fake.tasks) == 2


def test_the_same_attempt_with_other_settings_finds_its_task(site: Site) -> None:
    first = site.launcher().submit(attempt(), PIPES)
    other = replace(site.settings, computes={"ecs": replace(site.settings.computes["ecs"], size=Size(2, 8))})
    assert site.launcher(settings=other).submit(attempt(), PIPES) == first
    assert len(site.fake.tasks) == 1


def test_an_attempt_that_stopped_is_not_made_again(site: Site) -> None:
    launcher = site.launcher("true")
    handle = launcher.submit(attempt(), PIPES)
    site.end_of(launcher, handle)
    assert launcher.find(attempt()) is None
    assert launcher.submit(attempt(), PIPES) == handle
    assert handle.id in launcher.poll([handle])


def test_an_answer_that_was_lost_starts_no_second_task(site: Site) -> None:
    site.service.fail("RunTask", Fault("ServerException", "try again", 500, done=True))
    site.launcher().submit(attempt(), PIPES)
    assert len(site.fake.tasks) == 1
    assert site.service.calls["RunTask"] == 2


@pytest.mark.parametrize("lag", [0.0, 0.2])
def test_a_task_whose_answers_were_all_lost_is_found(site: Site, lag: float) -> None:
    site.fake.lag = lag
    site.service.fail("RunTask", Fault("ServerException", "try again", 500, done=True))
    launcher = site.launcher(retries=1)
    handle = launcher.submit(attempt(), PIPES)
    assert handle.id in site.fake.tasks
    assert launcher.poll([handle]) == {}  # lists and DescribeTasks need not know it at the same time


@pytest.mark.parametrize(
    ("reason", "advice", "transient"),
    [
        (
            "Capacity is unavailable at this time. Please try again later or in a different availability zone",
            "SUBNETS",
            1,
        ),
        ("RESOURCE:ENI", "network interface", 1),
        ("RESOURCE:MEMORY", "smaller workers", 1),
        ("AGENT", "not connected", 1),
        ("No Container Instances were found in your capacity provider.", "LAKEHOUSE_ECS_CAPACITY", 1),
        ("ATTRIBUTE", "LAKEHOUSE_ECS_TASK_DEFINITION", 0),
    ],
)
def test_a_task_that_was_not_placed_was_not_started(site: Site, reason: str, advice: str, transient: int) -> None:
    site.fake.refusals.append(reason)
    with pytest.raises(NotStarted) as refused:
        site.launcher().submit(attempt(), PIPES)
    assert reason in str(refused.value)
    assert advice in str(refused.value)
    assert refused.value.transient == bool(transient)
    assert site.launcher().submit(attempt(2), PIPES)


@pytest.mark.parametrize(
    ("code", "message", "advice"),
    [
        ("AccessDeniedException", "User: x is not authorized to perform: ecs:RunTask on cluster y", "iam:PassRole"),
        ("InvalidParameterException", "Error retrieving subnet information for [subnet-0a]", "LAKEHOUSE_ECS_SUBNETS"),
        ("InvalidParameterException", "Error retrieving security group information", "LAKEHOUSE_ECS_SECURITY_GROUPS"),
        ("InvalidParameterException", "The specified capacity provider x was not found", "LAKEHOUSE_ECS_CAPACITY"),
        ("ClientException", "TaskDefinition is inactive", "LAKEHOUSE_ECS_TASK_DEFINITION"),
        ("ExpiredTokenException", "The security token included in the request is expired", "have expired"),
    ],
)
def test_a_refusal_names_what_to_mend(site: Site, code: str, message: str, advice: str) -> None:
    site.service.fail("RunTask", Fault(code, message))
    with pytest.raises(NotStarted) as refused:
        site.launcher().submit(attempt(), PIPES)
    assert code in str(refused.value)
    assert message in str(refused.value)
    assert advice in str(refused.value)
    assert not refused.value.transient


@pytest.mark.parametrize(
    ("change", "variable"),
    [
        ({"cluster": "other"}, "LAKEHOUSE_ECS_CLUSTER"),
        ({"container": "other"}, "LAKEHOUSE_ECS_CONTAINER"),
        ({"task_definition": "other:1"}, "LAKEHOUSE_ECS_TASK_DEFINITION"),
        ({"subnets": ()}, "LAKEHOUSE_ECS_"),
    ],
)
def test_a_wrong_setting_is_named(site: Site, change: dict[str, Any], variable: str) -> None:
    wrong = replace(site.settings, computes={"ecs": replace(site.settings.computes["ecs"], **change)})
    with pytest.raises(NotStarted, match=variable) as refused:
        site.launcher(settings=wrong).submit(attempt(), PIPES)
    assert not refused.value.transient


@pytest.mark.parametrize(
    "fault",
    [
        Fault("ThrottlingException", "Rate exceeded"),
        Fault("ServerException", "Service Unavailable", 500),
        Fault("ClientException", "You've reached the limit on the number of vCPUs you can run concurrently"),
    ],
    ids=lambda fault: fault.code,
)
def test_what_passes_is_tried_again_later(site: Site, fault: Fault) -> None:
    site.service.fail("RunTask", fault)
    with pytest.raises(NotStarted) as refused:
        site.launcher(retries=1).submit(attempt(), PIPES)
    assert refused.value.transient
    assert not site.fake.tasks


def test_a_network_that_fails_is_tried_again_later(site: Site) -> None:
    launcher = site.launcher(retries=1)
    launcher._ecs = boto3.client(
        "ecs",
        endpoint_url="http://127.0.0.1:1",
        region_name=REGION,
        aws_access_key_id="k",
        aws_secret_access_key="s",
        config=Config(retries={"total_max_attempts": 1}),
    )
    with pytest.raises(NotStarted, match=r"127\.0\.0\.1:1") as refused:
        launcher.submit(attempt(), PIPES)
    assert refused.value.transient


def test_an_s3_that_fails_before_ecs_is_asked_keeps_the_attempts_key_and_ends_no_run(site: Site) -> None:
    """An earlier try may have started a worker: with another key there would be two."""
    nobody = boto3.client(
        "s3",
        endpoint_url="http://127.0.0.1:9",
        config=Config(retries={"total_max_attempts": 1}),
        aws_access_key_id="k",
        aws_secret_access_key="s",
    )
    injector = AttemptContextInjector(nobody, nobody, "bucket", "prefix")
    with pytest.raises(NotStarted) as refused, injector.inject_context({}):
        raise AssertionError("not reached")
    assert refused.value.transient
    assert refused.value.unconfirmed
    with PolledS3Reader(nobody, "bucket", "prefix").read_messages(None) as place:
        assert place["bucket"] == "bucket"  # it is read when it is left: in vain


def test_who_is_interrupted_while_it_asks_leaves_the_context_to_the_worker_there_may_be() -> None:
    with mock_aws():
        s3 = boto3.client("s3", region_name=REGION, aws_access_key_id="k", aws_secret_access_key="s")
        s3.create_bucket(Bucket="bucket")
        injector = AttemptContextInjector(s3, s3, "bucket", "prefix")
        with pytest.raises(dg.DagsterExecutionInterruptedError), injector.inject_context({"run": 1}) as place:
            raise dg.DagsterExecutionInterruptedError
        assert json.load(s3.get_object(Bucket=place["bucket"], Key=place["key"])["Body"]) == {"run": 1}
        with injector.inject_context({}):
            pass
        assert "Contents" not in s3.list_objects_v2(Bucket="bucket")


def test_missing_credentials_are_missing_later_too(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    ecs = boto3.session.Session().client("ecs", endpoint_url=site.service.url, region_name=REGION)
    monkeypatch.setattr(module, "client", lambda service: ecs)
    with pytest.raises(NotStarted, match="credentials") as refused:
        EcsLauncher(site.settings, site.settings.computes["ecs"], SLEEP).submit(attempt(), PIPES)
    assert not refused.value.transient


def test_throttling_is_waited_out(site: Site) -> None:
    site.service.fail("RunTask", Fault("ThrottlingException", "Rate exceeded"), times=2)
    site.launcher().submit(attempt(), PIPES)
    assert site.service.calls["RunTask"] == 3
    assert len(site.fake.tasks) == 1


def test_many_are_described_a_hundred_at_a_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MISSING_SECONDS", 0.0)
    handles = [Handle(f"{ARN[:-3]}{n:03}") for n in range(250)]
    ended = site.launcher().poll(handles)
    assert len(ended) == 250
    assert all(end.transient for end in ended.values())
    assert site.service.calls == {"DescribeTasks": 3}


def test_a_task_ecs_does_not_know_yet_has_not_ended(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.fake.lag = 0.3
    launcher = site.launcher("true")
    handle = launcher.submit(attempt(), PIPES)
    assert launcher.poll([handle]) == {}
    assert "status 0" in site.end_of(launcher, handle).reason
    site.fake.forget()
    assert launcher.poll([handle]) == {}
    monkeypatch.setattr(module, "MISSING_SECONDS", 0.0)
    assert launcher.poll([handle])[handle.id].transient


def test_while_ecs_is_in_trouble_nobody_has_ended(site: Site) -> None:
    launcher = site.launcher("true", retries=1)
    handle = launcher.submit(attempt(), PIPES)
    site.service.fail("DescribeTasks", Fault("ServerException", "Service Unavailable", 500))
    assert launcher.poll([handle]) == {}
    assert "status 0" in site.end_of(launcher, handle).reason


def test_a_task_can_be_cancelled_before_it_started(site: Site) -> None:
    site.fake.delay = 600
    launcher = site.launcher()
    handle = launcher.submit(attempt(), PIPES)
    assert launcher.poll([handle]) == {}
    assert launcher.find(attempt()) == handle
    assert launcher.began(handle) is None
    launcher.cancel([handle])
    assert "terminated" in site.end_of(launcher, handle).reason
    assert launcher.usage(handle) is None


def test_a_task_that_is_not_started_for_minutes_is_stopped_and_counts_as_lost(site: Site) -> None:
    site.fake.delay = 600
    launcher = site.launcher()
    handle = launcher.submit(attempt(), PIPES)
    site.fake.tasks[handle.id].created -= answers.START_LIMIT.total_seconds() + 1
    end = launcher.poll([handle])[handle.id]
    assert end.transient
    assert "LAKEHOUSE_ECS_SUBNETS" in end.reason
    assert site.fake.tasks[handle.id].stopping


def test_lost_to_spot_without_an_exit_code(site: Site) -> None:
    launcher = site.launcher()
    handle = launcher.submit(attempt(), PIPES)
    site.fake.interrupt()
    assert site.fake.tasks[handle.id].describe()["containers"][0].keys() & {"exitCode"} == set()
    assert "Spot" in (end := site.end_of(launcher, handle)).reason
    assert end.transient


def test_out_of_memory(site: Site) -> None:
    launcher = site.launcher()
    handle = launcher.submit(attempt(), PIPES)
    site.fake.run_out_of_memory()
    assert "1 vCPUs and 4 GiB" in (end := site.end_of(launcher, handle)).reason
    assert not end.transient


def test_a_task_that_failed_to_start(site: Site) -> None:
    site.fake.start_failures.append("CannotPullContainerError: not found")
    launcher = site.launcher()
    handle = launcher.submit(attempt(), PIPES)
    assert IMAGE in site.end_of(launcher, handle).reason
    assert launcher.usage(handle) is None


def test_cancelling_stops_the_tasks_and_those_that_ended_are_no_error(site: Site) -> None:
    launcher = site.launcher()
    running, ended = launcher.submit(attempt(1), PIPES), site.launcher("true").submit(attempt(2), PIPES)
    site.end_of(launcher, ended)
    site.service.fail("StopTask", Fault("ThrottlingException", "Rate exceeded"), times=2)
    launcher.cancel([running, ended, Handle(ARN)])
    assert "terminated" in site.end_of(launcher, running).reason
    assert site.fake.running() == []


def test_one_that_can_not_be_cancelled_keeps_no_other_running(site: Site) -> None:
    launcher = site.launcher(retries=1)
    handles = [launcher.submit(attempt(n), PIPES) for n in (1, 2)]
    site.service.fail("StopTask", Fault("AccessDeniedException", "not allowed"))
    with pytest.raises(RuntimeError, match=r"1 workers on ECS may still be running.*not allowed") as failed:
        launcher.cancel(handles)
    (running,) = site.fake.running()  # whichever was asked first
    assert running.arn in str(failed.value)


# the fake is no kinder than ECS


def test_the_fake_refuses_what_ecs_refuses(site: Site) -> None:
    ecs = site.client(site.service)
    good = run_task(site.settings.computes["ecs"], attempt(), PIPES, SLEEP)
    long = deepcopy(good)
    long["overrides"]["containerOverrides"][0]["environment"].append({"name": "X", "value": "x" * 8192})
    assert len(json.dumps(good["overrides"])) < 8192
    for wrong in (
        long,
        good | {"tags": [{"key": "a", "value": "(1)"}]},
        good | {"launchType": "FARGATE"},
        good | {"startedBy": "a b"},
        good | {"overrides": {"cpu": "1024", "memory": "9216"}},
        good | {"overrides": {"ephemeralStorage": {"sizeInGiB": 20}}},
    ):
        with pytest.raises(ecs.exceptions.InvalidParameterException):
            ecs.run_task(**wrong)
    with pytest.raises(ecs.exceptions.InvalidParameterException):
        ecs.list_tasks(cluster=CLUSTER, startedBy="x", desiredStatus="STOPPED")
    with pytest.raises(ecs.exceptions.InvalidParameterException):
        ecs.describe_tasks(cluster=CLUSTER, tasks=[ARN] * 101)
    with pytest.raises(ecs.exceptions.ClusterNotFoundException):
        ecs.stop_task(task=ARN)
    ecs.run_task(**good)
    with pytest.raises(ecs.exceptions.ConflictException) as conflict:
        ecs.run_task(**good | {"tags": [{"key": "a", "value": "b"}]})
    assert conflict.value.response["resourceIds"] == [*site.fake.tasks]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"taskArns": [], "failure": []}, "Unknown parameter"),
        ({"taskArns": "none"}, "Invalid type"),
        (Fault("TaskNotFoundException", "which ListTasks does not have"), "ListTasks has no TaskNotFoundException"),
    ],
)
def test_the_fake_answers_nothing_that_ecs_can_not(
    site: Site, wrong: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(**_: Any) -> Any:
        if isinstance(wrong, Fault):
            raise wrong
        return wrong

    monkeypatch.setattr(site.fake, "list_tasks", answer)
    with pytest.raises(ClientError, match=f"FakeIsWrong.*{says}"):
        site.client(site.service).list_tasks(cluster=CLUSTER)


def test_the_fake_answers_no_word_that_ecs_does_not_know(site: Site) -> None:
    handle = site.launcher().submit(attempt(), PIPES)
    site.fake.tasks[handle.id].stopping = ("SpotInterupted", "Your Spot Task was interrupted.")
    with pytest.raises(ClientError, match=r"FakeIsWrong.*SpotInterupted"):
        site.client(site.service).describe_tasks(cluster=CLUSTER, tasks=[handle.id])

"""EMR's launcher over HTTP against a strict EMR whose steps are processes: one step per attempt, and what ends mean.
With real Spark it is run in tests/integration/test_emr.py."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lakehouse_assets.environment.catalog_in_spark import spark_catalogs
from lakehouse_assets.environment.launchers.base import Attempt, Handle, NotStarted
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.environment.sizes import Size
from lakehouse_assets.extensions.aws import aws_launcher, emr
from lakehouse_assets.extensions.aws.emr import EmrLauncher
from lakehouse_assets.extensions.aws.job_runs import Shipped
from lakehouse_assets.extensions.aws.prices import emr_machine
from tests.support.fakes.emr_service import Cluster, FakeEmr, Step
from tests.support.fakes.plain_node import PlainNode
from tests.support.fakes.wire import Fault, Service, serving

CODE = Shipped("s3://bucket/code/0/code.zip", "s3://bucket/code/0/worker.py")
PIPES = {"DAGSTER_PIPES_CONTEXT": "eJx1", "DAGSTER_PIPES_MESSAGES": "eJx2"}
THROTTLED = Fault("ThrottlingException", "Rate exceeded")
LOST_ANSWER = Fault("InternalFailure", "", 500, done=True)


class Site:
    """EMR with sleeping steps, and launchers that use it."""

    def __init__(self, service: Service, fake: FakeEmr, node: PlainNode) -> None:
        self.service, self.fake, self.node = service, fake, node

    def cluster(self, name: str = "lakehouse", **differences: object) -> Cluster:
        instances = {"KeepJobFlowAliveWhenNoSteps": True}
        parameters = {"Name": name, "Instances": instances, "StepConcurrencyLevel": 4, **differences}
        return self.fake.clusters[self.fake.run_job_flow(**parameters)["JobFlowId"]]

    def launcher(self, cluster: str) -> EmrLauncher:
        environment = {
            "LAKEHOUSE_COMPUTE": "emr",
            "LAKEHOUSE_EMR_CLUSTER": cluster,
            "LAKEHOUSE_CODE": "s3://bucket/code",
            "LAKEHOUSE_STAGING": "s3://bucket/staging",
        }
        settings = read_settings(environment)
        return EmrLauncher(settings, settings.computes["emr"], "worker")

    def step(self, handle: Handle) -> Step:
        return next(step for step in self.fake.steps() if step.id == handle.id.partition("/")[2])

    def ticked(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            self.fake.tick()
            time.sleep(0.01)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    node = PlainNode(tmp_path)
    fake = FakeEmr(node, "s3n://bucket/logs/")  # type: ignore[arg-type]
    monkeypatch.setattr(emr, "ship", lambda *_: CODE)
    monkeypatch.setattr(emr, "FIND_WAITS", (0.0, 0.05, 0.05))
    monkeypatch.setattr(emr, "CLUSTER_WAITS", (0.01, 0.02))
    monkeypatch.setattr(aws_launcher, "STOP_WAITS", (0.0, 0.05, 0.1))
    for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "eu-west-1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    with serving(Service("emr", fake)) as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EMR", service.url)
        yield Site(service, fake, node)
        for step in fake.steps("RUNNING"):
            fake.cancel(step)


def attempt(chunk: int = 0, number: int = 1, token: str = "run-1", **differences: object) -> Attempt:
    conf = {"spark.executor.memory": "3g", "spark.x": "a b"}
    return Attempt(token, "demo.numbers", chunk, "work", {"kind": "any"}, conf, number, **differences)  # type: ignore[arg-type]


# What is asked for


def test_a_step_runs_spark_submit_with_the_shipped_code_and_pipes_parameters(site: Site) -> None:
    cluster = site.cluster()
    handle = site.launcher(cluster.id).submit(attempt(size=Size(4, 16)), PIPES)
    step = site.step(handle)
    assert handle.id == f"{cluster.id}/{step.id}"
    assert step.config["Name"] == attempt().title
    assert step.config["ActionOnFailure"] == "CONTINUE"
    args = step.config["HadoopJarStep"]["Args"]
    assert args[:3] == ["spark-submit", "--deploy-mode", "client"]
    assert args[-7:] == [
        "--py-files",
        CODE.package,
        CODE.entry_point,
        "--dagster-pipes-context",
        "eJx1",
        "--dagster-pipes-messages",
        "eJx2",
    ]
    given = {args[i + 1] for i, argument in enumerate(args) if argument == "--conf"}
    # The table's own setting wins over its size.
    assert given >= {"spark.executor.memory=3g", "spark.driver.memory=14894m", "spark.executor.cores=4", "spark.x=a b"}


def test_a_command_that_no_step_can_hold_is_refused_with_advice(site: Site) -> None:
    long = replace(attempt(), spark_conf={"spark.x": "y" * 11_000})
    with pytest.raises(NotStarted, match="spark-defaults") as refused:
        site.launcher(site.cluster().id).submit(long, PIPES)
    assert not refused.value.transient
    assert not site.fake.steps()


# Exactly one


@pytest.mark.parametrize(
    ("fault", "lag"), [(THROTTLED, 0.0), (LOST_ANSWER, 0.0), (LOST_ANSWER, 0.5)], ids=["throttled", "lost", "lags"]
)
def test_one_step_whatever_becomes_of_the_answer(site: Site, fault: Fault, lag: float) -> None:
    cluster, launcher = site.cluster(), site.launcher("name:lakehouse")
    site.service.fail("AddJobFlowSteps", fault)
    site.fake.lag = lag
    if fault is THROTTLED or lag:
        with pytest.raises(NotStarted) as refused:
            launcher.submit(attempt(), PIPES)
        assert refused.value.transient
        assert refused.value.unconfirmed
        time.sleep(lag)
    handle = launcher.submit(attempt(), PIPES)
    assert [step.id for step in cluster.steps] == [handle.id.partition("/")[2]]


def test_the_same_attempt_has_the_same_step_for_another_process_and_another_attempt_its_own(site: Site) -> None:
    cluster = site.cluster()
    handle = site.launcher(cluster.id).submit(attempt(), PIPES)
    assert site.launcher(cluster.id).submit(attempt(), PIPES) == handle
    assert site.launcher(cluster.id).find(attempt()) == handle
    assert site.launcher(cluster.id).find(attempt(number=2)) is None
    assert site.launcher(cluster.id).submit(attempt(number=2), PIPES) != handle
    assert len(cluster.steps) == 2


def test_a_step_is_found_that_lists_know_a_moment_later(site: Site) -> None:
    cluster = site.cluster()
    handle = site.launcher(cluster.id).submit(attempt(), PIPES)
    site.fake.lag = 0.08
    assert site.launcher(cluster.id).find(attempt()) == handle


def test_a_step_among_hundreds_is_found_and_old_pages_are_read_once(site: Site) -> None:
    cluster = site.cluster()
    cluster.steps += [
        Step({"Name": f"other {i}", "HadoopJarStep": {"Jar": "x"}}, state="COMPLETED") for i in range(170)
    ]
    launcher = site.launcher(cluster.id)
    for chunk in range(5):
        launcher.submit(attempt(chunk), PIPES)
    assert site.service.calls["ListSteps"] == 4 + 4  # four pages, then one for each
    assert launcher.find(attempt(0)) is not None


def test_steps_beyond_the_clusters_concurrency_wait(site: Site) -> None:
    cluster = site.cluster(StepConcurrencyLevel=2)
    launcher = site.launcher(cluster.id)
    handles = [launcher.submit(attempt(chunk), PIPES) for chunk in range(3)]
    site.fake.tick()
    assert [site.step(h).state for h in handles] == ["RUNNING", "RUNNING", "PENDING"]
    assert launcher.poll(handles) == {}
    assert [launcher.began(h) for h in handles] == [site.step(handles[0]).started, site.step(handles[1]).started, None]


# Which cluster


def test_a_cluster_is_found_by_name_and_by_tag(site: Site) -> None:
    site.cluster("other")
    cluster = site.cluster("lakehouse", Tags=[{"Key": "team", "Value": "data"}])
    for chosen in ("name:lakehouse", "tag:team=data"):
        assert site.launcher(chosen).submit(attempt(), PIPES).id.startswith(cluster.id)


def test_no_cluster_and_several_are_clear_errors(site: Site) -> None:
    with pytest.raises(NotStarted, match="LAKEHOUSE_EMR_CLUSTER=name:lakehouse: no cluster") as none:
        site.launcher("name:lakehouse").submit(attempt(), PIPES)
    clusters = [site.cluster(), site.cluster()]
    with pytest.raises(NotStarted, match=f"{clusters[1].id}.*{clusters[0].id}") as several:
        site.launcher("name:lakehouse").submit(attempt(), PIPES)
    assert (none.value.transient, several.value.transient) == (True, False)
    site.fake.terminate(clusters[0], "USER_REQUEST", "Terminated by user request")
    assert site.launcher("name:lakehouse").submit(attempt(), PIPES).id.startswith(clusters[1].id)


@contextmanager
def transient(site: Site, folder: Path) -> Iterator[str]:
    file = folder / "cluster.json"
    file.write_text(json.dumps({"Name": "nightly", "ReleaseLabel": "emr-7.11.0", "Instances": {"InstanceCount": 3}}))
    yield f"transient:{file}"


@pytest.mark.parametrize("fault", [None, LOST_ANSWER], ids=["", "answer lost"])
def test_a_run_has_one_transient_cluster_that_ends_when_idle(site: Site, tmp_path: Path, fault: Fault | None) -> None:
    if fault:
        site.service.fail("RunJobFlow", fault)
    with transient(site, tmp_path) as chosen:
        first, again = site.launcher(chosen), site.launcher(chosen)
        ids = {first.submit(attempt(0), PIPES).id, again.submit(attempt(1), PIPES).id}
        (cluster,) = site.fake.clusters.values()
        assert all(id.startswith(cluster.id) for id in ids)
        assert cluster.parameters["Name"] == "nightly run-1"
        assert cluster.parameters["ReleaseLabel"] == "emr-7.11.0"
        assert cluster.parameters["AutoTerminationPolicy"] == {"IdleTimeout": 300}
        assert cluster.parameters["Instances"] == {"InstanceCount": 3, "KeepJobFlowAliveWhenNoSteps": True}
        first.submit(attempt(0, token="run-2"), PIPES)
        assert len(site.fake.clusters) == 2


def test_a_file_that_is_no_cluster_is_named(site: Site, tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("[]")
    with pytest.raises(NotStarted, match=r"transient:.*cluster\.json does not contain parameters of RunJobFlow"):
        site.launcher(f"transient:{tmp_path}/cluster.json").submit(attempt(), PIPES)


def test_a_full_cluster_is_tried_again(site: Site) -> None:
    cluster = site.cluster()
    cluster.steps += [Step({"Name": f"other {i}", "HadoopJarStep": {"Jar": "x"}}) for i in range(256)]
    with pytest.raises(NotStarted, match="no room") as refused:
        site.launcher(cluster.id).submit(attempt(), PIPES)
    assert refused.value.transient


def test_a_cluster_that_ended_takes_no_steps_and_another_of_its_name_does(site: Site) -> None:
    old = site.cluster()
    by_id, by_name = site.launcher(old.id), site.launcher("name:lakehouse")
    by_name.submit(attempt(0), PIPES)
    site.fake.terminate(old, "INSTANCE_FAILURE", "The master failed")
    with pytest.raises(NotStarted, match=r"is TERMINATED_WITH_ERRORS.*LAKEHOUSE_EMR_CLUSTER") as refused:
        by_id.submit(attempt(1), PIPES)
    assert not refused.value.transient
    new = site.cluster()
    with pytest.raises(NotStarted, match="INSTANCE_FAILURE") as refused:
        by_name.submit(attempt(1), PIPES)
    assert refused.value.transient
    assert by_name.submit(attempt(1, 2), PIPES).id.startswith(new.id)


# What ends mean


def test_polling_asks_for_ten_at_once(site: Site) -> None:
    cluster = site.cluster(StepConcurrencyLevel=30)
    launcher = site.launcher(cluster.id)
    handles = [launcher.submit(attempt(chunk), PIPES) for chunk in range(23)]
    site.service.calls.clear()
    assert launcher.poll(handles) == {}
    assert site.service.calls == {"ListSteps": 3}


@pytest.mark.parametrize(
    ("command", "says"), [(["true"], "completed"), (["sh", "-c", "echo KeyError: x; exit 1"], "failed: .*KeyError: x")]
)
def test_the_end_of_a_step_is_told(site: Site, command: list[str], says: str) -> None:
    site.node.command = command
    launcher = site.launcher(site.cluster().id)
    handle = launcher.submit(attempt(), PIPES)
    site.ticked(lambda: site.step(handle).ended)
    (ended,) = launcher.poll([handle]).values()
    assert not ended.transient
    assert re.search(says, ended.reason)


def test_a_step_whose_worker_lost_its_network_is_made_again(site: Site) -> None:
    output = "org.apache.spark.SparkUserAppException: User application exited with 75"
    site.node.command = ["sh", "-c", f"echo {output}; exit 1"]
    launcher = site.launcher(site.cluster().id)
    handle = launcher.submit(attempt(), PIPES)
    site.ticked(lambda: site.step(handle).ended)
    (ended,) = launcher.poll([handle]).values()
    assert ended.transient
    assert "lost its network" in ended.reason


def test_a_step_cancelled_in_the_console_is_not_made_again(site: Site) -> None:
    launcher = site.launcher(site.cluster().id)
    handle = launcher.submit(attempt(), PIPES)
    site.fake.cancel(site.step(handle))
    (ended,) = launcher.poll([handle]).values()
    assert "cancelled in the console" in ended.reason
    assert not ended.transient


@pytest.mark.parametrize(
    ("code", "message", "again"),
    [
        ("INSTANCE_FAILURE", "The master node was terminated", True),
        ("VALIDATION_ERROR", "There is no Spot capacity available that matches your request", True),
        ("BOOTSTRAP_FAILURE", "On the master instance, bootstrap action 1 returned a non-zero return code", False),
        ("USER_REQUEST", "Terminated by user request", False),
    ],
)
def test_a_transient_cluster_that_ends_under_its_steps(
    site: Site, tmp_path: Path, code: str, message: str, again: bool
) -> None:
    with transient(site, tmp_path) as chosen:
        launcher = site.launcher(chosen)
        handles = [launcher.submit(attempt(chunk), PIPES) for chunk in range(3)]
        (lost,) = site.fake.clusters.values()
        site.fake.tick()
        site.service.calls.clear()
        site.fake.terminate(lost, code, message)
        ended = launcher.poll(handles)
        assert site.service.calls == {"ListSteps": 1, "DescribeCluster": 1}
        assert {e.transient for e in ended.values()} == {again}
        assert len(ended) == 3
        assert all(code in e.reason and message in e.reason for e in ended.values())
        assert not launcher.submit(attempt(0, 2), PIPES).id.startswith(lost.id)


def test_a_step_that_emr_does_not_know_is_gone_after_a_while_and_hides_no_other(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = site.launcher(site.cluster().id)
    known, other = (launcher.submit(attempt(chunk), PIPES) for chunk in range(2))
    site.fake.cancel(site.step(known))
    unknown = Handle(known.id[:-1] + "x")
    assert set(launcher.poll([known, unknown, other])) == {known.id}  # lists may lag
    monkeypatch.setattr(emr, "UNKNOWN_SECONDS", 0.0)
    assert "unknown to EMR" in launcher.poll([unknown])[unknown.id].reason


def test_throttling_ends_nobody(site: Site) -> None:
    launcher = site.launcher(site.cluster().id)
    handle = launcher.submit(attempt(), PIPES)
    site.service.fail("ListSteps", THROTTLED, times=1)
    assert launcher.poll([handle]) == {}


# Ending them


def test_cancelling_ends_the_steps_meant_and_no_others(site: Site) -> None:
    cluster = site.cluster(StepConcurrencyLevel=2)
    launcher = site.launcher(cluster.id)
    handles = [launcher.submit(attempt(chunk), PIPES) for chunk in range(4)]
    site.fake.tick()
    site.service.calls.clear()
    launcher.cancel([handles[0], handles[2]])
    assert [site.step(h).state for h in handles] == ["CANCELLED", "RUNNING", "CANCELLED", "PENDING"]
    assert site.service.calls == {"CancelSteps": 1}
    launcher.cancel(handles[:2])  # one ended already
    site.fake.terminate(cluster, "USER_REQUEST", "")
    launcher.cancel(handles)
    assert {site.step(h).state for h in handles} == {"CANCELLED"}


def test_what_was_throttled_is_cancelled_a_moment_later(site: Site) -> None:
    launcher = site.launcher(site.cluster().id)
    launcher._emr = launcher._once
    handle = launcher.submit(attempt(), PIPES)
    site.service.fail("CancelSteps", THROTTLED, times=2)
    launcher.cancel([handle])
    assert site.step(handle).state == "CANCELLED"


def test_those_that_could_not_be_cancelled_are_named_and_keep_no_other_running(site: Site) -> None:
    clusters = [site.cluster(), site.cluster()]
    launchers = [site.launcher(cluster.id) for cluster in clusters]
    handles = [launchers[chunk % 2].submit(attempt(chunk), PIPES) for chunk in range(4)]
    site.fake.stubborn.add(site.step(handles[0]).id)
    unknown = Handle(f"{clusters[1].id}/s-0000000000000")
    with pytest.raises(RuntimeError, match="2 workers on EMR may still be running") as failed:
        launchers[0].cancel([*handles, unknown])
    assert f"{handles[0].id} (Internal error.)" in str(failed.value)
    assert unknown.id in str(failed.value)
    assert [site.step(h).state for h in handles] == ["PENDING", "CANCELLED", "CANCELLED", "CANCELLED"]
    site.fake.cancel(site.step(handles[0]))
    launchers[0].cancel(handles[:1])  # refused, and ended by itself


def test_many_steps_are_cancelled_256_at_a_time(site: Site) -> None:
    cluster, launcher = site.cluster(), site.launcher("name:lakehouse")
    cluster.steps += [Step({"Name": f"ours {i}", "HadoopJarStep": {"Jar": "x"}}) for i in range(300)]
    launcher.cancel([Handle(f"{cluster.id}/{step.id}") for step in cluster.steps])
    assert {step.state for step in cluster.steps} == {"CANCELLED"}
    assert site.service.calls == {"CancelSteps": 2}


def test_a_step_costs_its_share_of_the_cluster(site: Site) -> None:
    launcher = site.launcher(site.cluster().id)
    handles = [launcher.submit(attempt(chunk), PIPES) for chunk in range(2)]
    site.fake.tick()
    launcher.poll(handles)
    step = site.step(handles[0])
    site.fake.cancel(step)
    assert step.started
    assert step.ended
    launcher.poll(handles)
    hours = (step.ended - step.started).total_seconds() / 3600
    usage = launcher.usage(handles[0])
    assert usage
    assert "estimated" in usage.source
    assert "2 instances" in usage.source
    # An m5.xlarge and an r6g.2xlarge, shared by two.
    assert usage.vcpu_hours == pytest.approx(hours * 12 / 2, rel=1e-3)
    assert usage.gib_hours == pytest.approx(hours * 80 / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "vcpus", "gib", "usd"),
    # https://aws.amazon.com/emr/pricing/: the instance's price and EMR's
    [("m5.xlarge", 4, 16, 0.192 + 0.048), ("r5.4xlarge", 16, 128, 1.008 + 0.252), ("c6g.large", 2, 4, 0.068 + 0.017)],
)
def test_prices_of_instances(name: str, vcpus: int, gib: float, usd: float) -> None:
    machine = emr_machine(name)
    assert (machine.vcpus, machine.gib) == (vcpus, gib)
    assert machine.usd == pytest.approx(usd, rel=0.01)


def test_the_link_leads_to_the_cluster(site: Site) -> None:
    handle = site.launcher(site.cluster().id).submit(attempt(), PIPES)
    link = site.launcher("name:lakehouse").link(handle)
    assert link.startswith("https://eu-west-1.console.aws.amazon.com/emr/")
    assert handle.id.partition("/")[0] in link


def test_emrs_jvm_needs_no_driver_of_sqlite() -> None:
    conf = spark_catalogs({"type": "rest", "uri": "https://x", "warehouse": "s3://lake"}, derby=True)
    stage = {name: value for name, value in conf.items() if name.startswith("spark.sql.catalog.stage.")}
    assert stage["spark.sql.catalog.stage.uri"].startswith("jdbc:derby:memory:")
    assert "sqlite" not in str(stage)

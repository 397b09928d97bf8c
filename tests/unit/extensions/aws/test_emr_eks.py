"""EMR on EKS's launcher over HTTP: what a job is asked for, what its failure means, what it used, where its log is.
What it does as EMR Serverless's does is test_job_runs.py's; with real Spark it is run in tests/integration."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakehouse_assets.environment.launchers.base import NotStarted
from lakehouse_assets.environment.sizes import Size
from lakehouse_assets.extensions.aws import job_runs
from lakehouse_assets.extensions.aws.emr_eks import PYTHON_OVERHEAD, name_of, used
from tests.support.fakes.emr_eks_service import NAME, SEE_LOGS, VIRTUAL_CLUSTER
from tests.support.fakes.job_runs import ROLE
from tests.support.job_run_launchers import Site, sleeping_site
from tests.unit.extensions.aws.test_emr_launcher import CODE, PIPES, attempt

NO_NODE = (
    "JobRun timed out before spark driver pod started running due to lack of cluster resources. Last event from "
    "default-scheduler: FailedScheduling, message: 0/2 nodes are available: 1 Insufficient cpu, 2 Insufficient memory."
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with sleeping_site("emr_eks", tmp_path, monkeypatch) as site:
        yield site


# What is asked for


def test_a_job_runs_the_shipped_code_with_quoted_settings(site: Site) -> None:
    tags = {"lakehouse:run": "r", "lakehouse:partitions": "2024-01-01..2024-03-01 (61)"}
    handle = site.launcher().submit(attempt(size=Size(4, 14), tags=tags), PIPES)
    request = site.job(handle).request
    assert (request["executionRoleArn"], request["releaseLabel"]) == (ROLE, "emr-7.9.0-latest")
    driver = request["jobDriver"]["sparkSubmitJobDriver"]
    assert driver["entryPoint"] == CODE.entry_point
    assert driver["entryPointArguments"] == ["--dagster-pipes-context", "eJx1", "--dagster-pipes-messages", "eJx2"]
    options = shlex.split(driver["sparkSubmitParameters"])
    assert options[-2:] == ["--py-files", CODE.package]
    given = {options[i + 1] for i, option in enumerate(options) if option == "--conf"}
    assert given == {
        *("spark.driver.cores=4", "spark.executor.cores=4", "spark.driver.memory=10240m"),
        *("spark.executor.memory=3g", "spark.x=a b"),
    }
    assert request["clientToken"] == attempt().key
    assert request["tags"] == {"lakehouse:run": "r", "lakehouse:partitions": "2024-01-01..2024-03-01 61"}
    assert "retryPolicyConfiguration" not in request


@pytest.mark.parametrize("subject", ["nyc.flights", "a.b", "warehouse.a_table_with_a_very_long_name_indeed"])
def test_a_name_is_one_that_the_service_takes_and_ends_with_the_key(subject: str) -> None:
    asked = replace(attempt(), subject=subject)
    name = name_of(asked)
    assert NAME.fullmatch(name)
    assert name.endswith(f"chunk-0-attempt-1-{asked.key}")


@pytest.mark.parametrize(("vcpus", "gib"), [(1, 2), (4, 14), (8, 32), (16, 120)])
def test_heap_and_overhead_together_are_the_pods_memory(vcpus: float, gib: int) -> None:
    """Kubernetes kills a pod that needs more, and Spark adds 40 % to the heap of Python's applications there."""
    conf = job_runs.sized(Size(vcpus, gib), PYTHON_OVERHEAD)
    heap = int(conf["spark.executor.memory"].removesuffix("m"))
    assert gib * 1024 - 2 <= heap + max(heap * PYTHON_OVERHEAD, 384) <= gib * 1024


def test_a_full_queue_passes(site: Site) -> None:
    site.fake.queue = 1
    launcher = site.launcher()
    launcher.submit(attempt(), PIPES)
    with pytest.raises(NotStarted, match="queue of the virtual cluster is full") as refused:
        launcher.submit(attempt(1), PIPES)
    assert refused.value.transient
    assert not refused.value.unconfirmed


# What ends mean


@pytest.mark.parametrize(
    ("why", "details", "says", "again"),
    [
        ("USER_ERROR", NO_NODE, "larger nodes, the table a smaller size, or the pool lake_workers", True),
        ("USER_ERROR", "Back-off pulling image: ErrImagePull", "check spark.kubernetes.container.image", False),
        ("USER_ERROR", "Pod state: ImagePullBackOff", "its image could not be pulled", False),
        ("USER_ERROR", "Main Spark container terminated: OOMKilled", "more memory_gib", False),
        ("USER_ERROR", "The container exited with 137", "more memory_gib", False),
        ("USER_ERROR", "User application exited with 75", "lost its network", True),
        ("USER_ERROR", "exit code: 75", "lost its network", True),
        ("USER_ERROR", "exit code: 143", "lost its node", True),
        ("USER_ERROR", "DisruptionTarget: DeletionByTaintManager", "not Spot", True),
        ("USER_ERROR", "Not authorized to perform sts:AssumeRoleWithWebIdentity", "update-role-trust-policy", False),
        ("CLUSTER_UNAVAILABLE", "Cluster unreachable", "LAKEHOUSE_EMR_EKS_VIRTUAL_CLUSTER is RUNNING", True),
        ("INTERNAL_ERROR", "Internal error", "a fault in EMR on EKS", True),
        ("VALIDATION_ERROR", "Invalid configuration", "check LAKEHOUSE_EMR_EKS_ROLE", False),
        ("USER_ERROR", f"JobRun failed. {SEE_LOGS}", "failed: JobRun failed.", False),
        ("USER_ERROR", "Caused by: exit code: 751", "failed: Caused by", False),
    ],
)
def test_why_a_job_failed_decides_whether_it_is_made_again(
    site: Site, why: str, details: str, says: str, again: bool
) -> None:
    launcher = site.launcher()
    handle = launcher.submit(attempt(), PIPES)
    site.fake.fail(site.job(handle), details, why)
    (ended,) = launcher.poll([handle]).values()
    assert says in ended.reason
    assert details in ended.reason
    assert ended.transient is again


# What it used


BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def job_with(settings: str) -> dict[str, Any]:
    """A job run of half an hour."""
    driver = {"sparkSubmitParameters": f"{settings} --py-files s3://bucket/code.zip"}
    return {"jobDriver": {"sparkSubmitJobDriver": driver}, "finishedAt": BEGAN + timedelta(minutes=30)}


@pytest.mark.parametrize(
    ("settings", "vcpus", "gib"),
    [
        ("--conf spark.x=1", 3, 3 * 1.4),
        (
            "--conf spark.driver.cores=4 --conf spark.executor.cores=2 --conf spark.executor.instances=5 "
            "--conf spark.driver.memory=10240m --conf spark.executor.memory=10g",
            14,
            6 * 14,
        ),
        ("--conf spark.executor.instances=0 --conf spark.driver.memory=2g --conf spark.driver.memoryOverhead=1g", 1, 3),
        ("--conf spark.dynamicAllocation.enabled=false --conf spark.executor.instances=1", 2, 2 * 1.4),
    ],
)
def test_usage_is_what_the_pods_ask_for_while_they_run(settings: str, vcpus: float, gib: float) -> None:
    usage = used(job_with(settings), BEGAN)
    assert usage
    assert usage.vcpu_hours == pytest.approx(vcpus / 2)
    assert usage.gib_hours == pytest.approx(gib / 2)
    assert usage.estimated_usd == pytest.approx(vcpus / 2 * 0.01012 + gib / 2 * 0.00111125)
    assert re.match(r"estimated: the driver and \d executors.*without the EKS cluster and its nodes", usage.source)


def test_what_nobody_knows_is_not_made_up(site: Site) -> None:
    """How many executors Spark asked for as it went, or how long a job ran that failed while nobody looked."""
    assert used(job_with("--conf spark.dynamicAllocation.enabled=true"), BEGAN) is None
    launcher = site.launcher()
    handle = launcher.submit(attempt(), PIPES)
    site.fake.fail(site.job(handle), NO_NODE, "USER_ERROR")
    assert launcher.usage(handle) is None


def test_a_job_that_completed_while_nobody_looked_has_a_usage(site: Site) -> None:
    site.node.command = ["true"]
    handle = site.launcher().submit(attempt(), PIPES)
    site.ticked(lambda: site.job(handle).ended)
    assert site.launcher().usage(handle).vcpu_hours > 0


# Where a person looks


def test_logs_go_below_the_staging_prefix(site: Site) -> None:
    """That their end is read there is tests/integration/test_emr.py's."""
    handle = site.launcher().submit(attempt(), PIPES)
    monitoring = site.job(handle).request["configurationOverrides"]["monitoringConfiguration"]
    assert monitoring == {"s3MonitoringConfiguration": {"logUri": "s3://bucket/staging/logs"}}


def test_the_link_is_the_virtual_clusters(site: Site) -> None:
    launcher = site.launcher()
    handle = launcher.submit(attempt(), PIPES)
    link = launcher.link(handle)
    assert link.endswith(f"#/eks/clusters/{VIRTUAL_CLUSTER}")
    assert handle.id in link

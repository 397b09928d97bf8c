"""What ECS's answers mean: how a task ended, what it used, where it is seen. Pure, no ECS at all.
What ECS is asked is test_ecs.py's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lakehouse_assets.extensions.aws import ecs as answers
from lakehouse_assets.extensions.aws.prices import FARGATE, FARGATE_SPOT
from tests.support.fakes.ecs_rules import ACCOUNT, CLUSTER, CONTAINER, IMAGE, PREFIX

STARTED = datetime(2024, 1, 1, tzinfo=UTC)
ARN = f"{PREFIX}:task/{CLUSTER}/0123456789abcdef0123456789abcdef"


def task(
    code: str = "EssentialContainerExited",
    reason: str = "",
    exit_code: int | None = None,
    container_reason: str | None = None,
    **more: Any,
) -> Any:
    """A stopped task as DescribeTasks has it."""
    details = {"exitCode": exit_code, "reason": container_reason}
    container = {"name": CONTAINER, "image": IMAGE} | {name: v for name, v in details.items() if v is not None}
    stopped = {"taskArn": ARN, "lastStatus": "STOPPED", "stopCode": code, "stoppedReason": reason}
    return stopped | {"containers": [container], "cpu": "2048", "memory": "8192"} | more


TRANSIENT = {
    "Spot took it": task("SpotInterruption", "Your Spot Task was interrupted."),
    "Spot took it, the worker had an exit code": task("SpotInterruption", "Your Spot Task was interrupted.", 143),
    "Spot's reason alone": task(reason="Your Spot Task was interrupted.", exit_code=143),
    "Spot gives notice": task("TerminationNotice", "Your Spot Task was interrupted."),
    "the instance is gone": task(reason="Host EC2 (instance i-0a1b2c) terminated."),
    "its instance is drained": task(reason="Essential container in task exited", exit_code=143),
    "the hardware is sick": task("InfrastructureHealth", "The infrastructure is unhealthy"),
    "its network is lost": task(reason="Essential container in task exited", exit_code=75),
    "no network interface": task(
        "TaskFailedToStart", "Timeout waiting for network interface provisioning to complete."
    ),
    "no network interface from EC2": task(
        "TaskFailedToStart",
        "Unexpected EC2 error while attempting to Create Network Interface with public IP assignment disabled",
    ),
    "the host could not set it up": task(
        "TaskFailedToStart", "ResourceInitializationError: failed to configure ENI: failed to setup regular eni"
    ),
    # Hundreds start at once: Parameter Store serves 40 calls a second.
    "its secrets are asked for too often": task(
        "TaskFailedToStart",
        "ResourceInitializationError: unable to pull secrets or registry auth: execution resource retrieval failed: "
        "unable to retrieve secrets from ssm: service call has been retried 5 time(s): ThrottlingException: Rate "
        "exceeded",
    ),
    "its image is asked for too often": task(
        "TaskFailedToStart",
        "CannotPullContainerError: pull image manifest has been retried 5 time(s): unexpected status code 429 Too Many "
        "Requests - Server message: toomanyrequests: Rate exceeded",
    ),
    "no capacity on instances": task("TaskFailedToStart", "RESOURCE:ENI"),
    "a fault of ECS": task("", "ServerException: Service Unavailable. Please try again later."),
    "no exit code at all": task(),
}
LASTING = {
    "the image is not there": (
        task(
            "TaskFailedToStart", "CannotPullContainerError: pull image manifest has been retried 5 time(s): not found"
        ),
        [IMAGE, "LAKEHOUSE_ECS_TASK_DEFINITION"],
    ),
    "a secret is not there": (
        task(
            "TaskFailedToStart",
            "ResourceInitializationError: unable to pull secrets or registry auth: execution resource retrieval failed",
        ),
        ["secrets", "execution role"],
    ),
    "the execution role may not read the secret": (
        task(
            "TaskFailedToStart",
            "ResourceInitializationError: unable to pull secrets or registry auth: unable to retrieve secret from asm: "
            "AccessDeniedException: not authorized to perform: secretsmanager:GetSecretValue",
        ),
        ["secretsmanager:GetSecretValue"],
    ),
    "a role can't be assumed": (
        task(
            "TaskFailedToStart",
            f"ECS was unable to assume the role 'arn:aws:iam::{ACCOUNT}:role/gone' that was provided for this task.",
        ),
        ["ecs-tasks.amazonaws.com", "role/gone"],
    ),
    "the log group is not there": (
        task(
            "TaskFailedToStart",
            "ResourceInitializationError: failed to validate logger args: The task cannot find the Amazon CloudWatch "
            "log group defined in the task definition",
        ),
        ["log group", "must exist"],
    ),
    "out of memory": (
        task(exit_code=137, container_reason="OutOfMemoryError: Container killed due to memory usage"),
        ["2 vCPUs and 8 GiB", "LAKEHOUSE_ECS_MEMORY_GIB"],
    ),
    "out of memory by the task": (
        task(reason="OutOfMemoryError: Container killed due to memory usage", exit_code=137),
        ["8 GiB"],
    ),
    "killed": (task(reason="Essential container in task exited", exit_code=137), ["SIGKILL", "memory", "8 GiB"]),
    "exited with 0": (task(reason="Essential container in task exited", exit_code=0), ["exited with status 0"]),
    "exited with 3": (task(reason="Essential container in task exited", exit_code=3), ["status 3", "Essential"]),
    "stopped in the console": (task("UserInitiated", "Task stopped by user", 143), ["Task stopped by user"]),
}


@pytest.mark.parametrize("stopped", TRANSIENT.values(), ids=TRANSIENT)
def test_what_is_nobodys_fault_is_tried_again(stopped: Any) -> None:
    end = answers.ended(stopped, CONTAINER)
    assert end is not None
    assert end.transient
    assert stopped["stoppedReason"] in end.reason


@pytest.mark.parametrize(("stopped", "words"), LASTING.values(), ids=LASTING)
def test_what_would_happen_again_is_told_with_what_to_do(stopped: Any, words: list[str]) -> None:
    end = answers.ended(stopped, CONTAINER)
    assert end is not None
    assert not end.transient
    assert all(word in end.reason for word in words)


def test_a_subnet_without_addresses_is_named_and_tried_again() -> None:
    reason = "Unexpected EC2 error while attempting to Create Network Interface: InsufficientFreeAddressesInSubnet"
    end = answers.ended(task("TaskFailedToStart", reason), CONTAINER)
    assert end is not None
    assert end.transient
    assert "LAKEHOUSE_ECS_SUBNETS" in end.reason


@pytest.mark.parametrize("status", ["PROVISIONING", "PENDING", "ACTIVATING"])
def test_a_task_that_nobody_starts_for_minutes_counts_as_lost(status: str) -> None:
    waits = task(lastStatus=status, createdAt=STARTED)
    assert answers.stuck(waits, STARTED + answers.START_LIMIT) is None
    end = answers.stuck(waits, STARTED + answers.START_LIMIT + timedelta(seconds=1))
    assert end is not None
    assert end.transient
    assert status in end.reason
    assert "LAKEHOUSE_ECS_SUBNETS" in end.reason


def test_a_task_that_runs_is_not_stuck() -> None:
    assert answers.stuck(task(lastStatus="RUNNING", createdAt=STARTED), STARTED + timedelta(days=1)) is None


def test_a_stop_that_somebody_asked_for_is_no_hosts_end() -> None:
    # By StopTask: our own cancelling, or a person's. The worker's exit code is the same.
    end = answers.ended(task("UserInitiated", "Task stopped by user", 143), CONTAINER)
    assert end is not None
    assert end.stopped
    assert not end.transient


def test_a_task_that_has_not_stopped_has_not_ended() -> None:
    for status in ("PROVISIONING", "PENDING", "ACTIVATING", "RUNNING", "DEACTIVATING", "STOPPING", "DEPROVISIONING"):
        assert answers.ended(task(reason="Essential container in task exited", lastStatus=status), CONTAINER) is None


def test_a_sidecars_exit_code_is_not_the_workers() -> None:
    stopped = task(exit_code=3)
    stopped["containers"].insert(0, {"name": "sidecar", "exitCode": 0})
    end = answers.ended(stopped, CONTAINER)
    assert end is not None
    assert "status 3" in end.reason


@pytest.mark.parametrize(("provider", "price"), [("FARGATE", FARGATE), ("FARGATE_SPOT", FARGATE_SPOT)])
def test_usage_is_the_tasks_size_from_its_pull_to_its_stop(provider: str, price: Any) -> None:
    times = {"pullStartedAt": STARTED, "startedAt": STARTED + timedelta(minutes=9)}
    stopped = task(**times, stoppedAt=STARTED + timedelta(minutes=30), capacityProviderName=provider)
    used = answers.usage(stopped | {"ephemeralStorage": {"sizeInGiB": 50}})
    assert used is not None
    assert (used.vcpu_hours, used.gib_hours) == (1.0, 4.0)
    assert used.estimated_usd == pytest.approx(price.vcpu + 4 * price.gib + 15 * price.disk_gib)
    assert price.source in used.source


def test_a_minute_is_billed_at_least() -> None:
    stopped = task(pullStartedAt=STARTED, stoppedAt=STARTED + timedelta(seconds=3), capacityProviderName="FARGATE")
    used = answers.usage(stopped)
    assert used is not None
    assert used.vcpu_hours == pytest.approx(2 / 60)


def test_a_task_that_never_pulled_its_image_costs_nothing() -> None:
    assert answers.usage(task("TaskFailedToStart", "RESOURCE:ENI", stoppedAt=STARTED)) is None


def test_on_instances_only_hours_are_told() -> None:
    stopped = task(startedAt=STARTED, stoppedAt=STARTED + timedelta(hours=1), capacityProviderName="spark-instances")
    used = answers.usage(stopped)
    assert used is not None
    assert (used.vcpu_hours, used.gib_hours, used.estimated_usd) == (2.0, 8.0, 0.0)
    assert "spark-instances runs on instances" in used.source


def test_the_link_leads_to_the_tasks_log_in_its_partitions_console() -> None:
    page = f"/ecs/v2/clusters/{CLUSTER}/tasks/0123456789abcdef0123456789abcdef/logs?region="
    assert answers.link(ARN) == f"https://us-east-1.console.aws.amazon.com{page}us-east-1"
    china = ARN.replace("arn:aws:", "arn:aws-cn:").replace("us-east-1", "cn-north-1")
    assert answers.link(china) == f"https://cn-north-1.console.amazonaws.cn{page}cn-north-1"

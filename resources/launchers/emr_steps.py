"""Describes a step of EMR: what it is started with, what its end means, and what it cost.

These are pure functions of an attempt and of EMR's answers as boto3 returns them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from resources.launchers import spark_submit
from resources.launchers.base import Attempt, Ended, NotStarted, Usage
from resources.launchers.code import Shipped
from resources.launchers.prices import AS_OF, REGION, emr_machine

# https://docs.aws.amazon.com/emr/latest/APIReference/API_AddJobFlowSteps.html
STEP_CHARACTERS, NAME_CHARACTERS = 10_240, 256
# How Spark reports EX_TEMPFAIL, which a worker exits with when it lost its network.
LOST_NETWORK = re.compile(rf"exited with {os.EX_TEMPFAIL}\b")


def step_of(attempt: Attempt, environment: Mapping[str, str], code: Shipped) -> dict[str, Any]:
    """Returns a StepConfig of AddJobFlowSteps. Raises NotStarted when its settings are longer than EMR takes."""
    submit = ["spark-submit", "--deploy-mode", "client", *spark_submit.options(attempt, code.package)]
    args = [*submit, code.entry_point, *spark_submit.arguments(environment)]
    jar = {"Jar": "command-runner.jar", "Args": args}
    if (length := len(jar["Jar"]) + sum(map(len, args))) > STEP_CHARACTERS:
        reason = f"its command has {length} characters, EMR takes {STEP_CHARACTERS}"
        advice = "give the longest of the table's spark_conf and LAKEHOUSE_SPARK__… by the cluster's own spark-defaults"
        raise NotStarted(f"{reason}: {advice}", transient=False)
    # The end of the title is kept: the step is found by the key there.
    return {"Name": attempt.title[-NAME_CHARACTERS:], "ActionOnFailure": "CONTINUE", "HadoopJarStep": jar}


def verdict(status: Mapping[str, Any], cluster: Ended | None) -> Ended:
    """Says what the end of a step means. status: its StepStatus. cluster: how its cluster ended, if it did."""
    state, details = status["State"], status.get("FailureDetails", {})
    if state == "COMPLETED":
        return Ended("completed")
    if cluster is not None:
        return cluster
    if state == "CANCELLED":
        return Ended("was cancelled, in the console or by CancelSteps", stopped=True)
    reason = "; ".join(details[part] for part in ("Reason", "Message", "LogFile") if details.get(part))
    reason = reason or status.get("StateChangeReason", {}).get("Message") or "EMR gives no reason"
    if LOST_NETWORK.search(reason):
        return Ended(f"lost its network, or S3 would not serve it: {reason}", transient=True)
    return Ended(f"{'was interrupted' if state == 'INTERRUPTED' else 'failed'}: {reason}")


def share(hours: float, machines: Mapping[str, int], together: int) -> Usage:
    """Estimates a step's share of what its cluster costs.

    hours: how long it ran. machines: the number of instances by type. together: how many steps ran at once.
    """
    each = [emr_machine(name) for name, count in machines.items() for _ in range(count)]
    return Usage(
        vcpu_hours=hours / together * sum(machine.vcpus for machine in each),
        gib_hours=hours / together * sum(machine.gib for machine in each),
        estimated_usd=hours / together * sum(machine.usd for machine in each),
        source=f"estimated: the step's time on the cluster's {len(each)} instances, shared by up to "
        f"{together} steps of this process at once, at on-demand list prices of {REGION} as of {AS_OF}",
    )

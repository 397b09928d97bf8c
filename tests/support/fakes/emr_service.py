"""EMR on EC2 as its API reference has it: clusters, steps in order and side by side, lists that lag, limits.
Steps really run (spark_node.py); what else there is on a cluster does not."""

from __future__ import annotations

import gzip
import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from tests.support.fakes.agent import Process
from tests.support.fakes.spark_node import SparkNode
from tests.support.fakes.wire import Fault

# https://docs.aws.amazon.com/emr/latest/APIReference/API_Operations.html
PAGE, LISTED_IDS, ACTIVE_STEPS, CANCELLED_IDS, CHARACTERS, NAME = 50, 10, 256, 256, 10_240, 256
ACTIVE = ("STARTING", "BOOTSTRAPPING", "RUNNING", "WAITING")
UNFINISHED = ("PENDING", "RUNNING", "CANCEL_PENDING")
NUMBERS = itertools.count(1)


@dataclass
class Step:
    config: dict[str, Any]
    id: str = field(default_factory=lambda: f"s-{next(NUMBERS):013d}")
    state: str = "PENDING"
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    process: Process | None = None
    started: datetime | None = None
    ended: datetime | None = None
    details: dict[str, str] | None = None

    def summary(self) -> dict[str, Any]:
        line = {"CreationDateTime": self.created, "StartDateTime": self.started, "EndDateTime": self.ended}
        jar = self.config["HadoopJarStep"]
        status = {
            "State": self.state,
            "StateChangeReason": {},
            "Timeline": {name: at for name, at in line.items() if at},
            **({"FailureDetails": self.details} if self.details else {}),
        }
        return {
            "Id": self.id,
            "Name": self.config["Name"],
            "Config": {"Jar": jar["Jar"], "Args": jar.get("Args", []), "Properties": {}},
            "ActionOnFailure": self.config.get("ActionOnFailure", "TERMINATE_CLUSTER"),
            "Status": status,
        }


@dataclass
class Cluster:
    parameters: dict[str, Any]
    id: str = field(default_factory=lambda: f"j-{next(NUMBERS):013d}")
    state: str = "WAITING"
    reason: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    idle_since: float = field(default_factory=time.monotonic)

    @property
    def status(self) -> dict[str, Any]:
        return {"State": self.state, "StateChangeReason": self.reason}

    @property
    def side_by_side(self) -> int:
        return self.parameters.get("StepConcurrencyLevel", 1)


class FakeEmr:
    """The service. lag: seconds for which lists don't know a new step. logs_come: whether logs reach S3.

    ready: the state a cluster is in when it was asked for. stubborn: ids of steps that can't be cancelled.
    """

    def __init__(self, node: SparkNode, log_uri: str) -> None:
        self.node, self.log_uri = node, log_uri
        self.clusters: dict[str, Cluster] = {}
        self.lag, self.logs_come, self.ready = 0.0, True, "WAITING"
        self.stubborn: set[str] = set()
        self.lock = threading.RLock()

    # The API

    def run_job_flow(self, **parameters: Any) -> dict[str, Any]:
        _demand("Instances" in parameters and parameters.get("Name"), "ValidationException", "Name and Instances")
        cluster = Cluster(parameters, state=self.ready)
        with self.lock:
            self.clusters[cluster.id] = cluster
        return {"JobFlowId": cluster.id}

    def list_clusters(self, ClusterStates: Sequence[str] = (), Marker: str = "0", **_: Any) -> dict[str, Any]:
        with self.lock:
            found = [c for c in reversed(self.clusters.values()) if not ClusterStates or c.state in ClusterStates]
        summaries = [{"Id": c.id, "Name": c.parameters["Name"], "Status": c.status} for c in found]
        return _page("Clusters", summaries, Marker)

    def describe_cluster(self, ClusterId: str) -> dict[str, Any]:
        cluster = self._cluster(ClusterId)
        parameters = cluster.parameters
        description = {"Id": cluster.id, "Name": parameters["Name"], "Status": cluster.status, "LogUri": self.log_uri}
        return {
            "Cluster": description | {"Tags": parameters.get("Tags", []), "StepConcurrencyLevel": cluster.side_by_side}
        }

    def list_instances(self, ClusterId: str, **_: Any) -> dict[str, Any]:
        self._cluster(ClusterId)
        instance = {"Id": "ci-1", "InstanceType": "m5.xlarge", "Market": "ON_DEMAND", "Status": {"State": "RUNNING"}}
        return {"Instances": [instance, {**instance, "Id": "ci-2", "InstanceType": "r6g.2xlarge"}]}

    def add_job_flow_steps(self, JobFlowId: str, Steps: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        with self.lock:
            cluster = self.clusters.get(JobFlowId)
            _demand(cluster, "ValidationException", "Specified job flow ID does not exist.")
            assert cluster
            _demand(
                cluster.state in ACTIVE,
                "ValidationException",
                "A job flow that is shutting down, terminated, or finished may not be modified.",
            )
            active = sum(step.state in UNFINISHED for step in cluster.steps)
            _demand(
                active + len(Steps) <= ACTIVE_STEPS,
                "ValidationException",
                "Maximum number of active steps (Running, Pending or Cancel_Pending) for cluster exceeded.",
            )
            for config in Steps:
                _check_step(config, cluster)
            added = [Step(config) for config in Steps]
            cluster.steps += added
        return {"StepIds": [step.id for step in added]}

    def list_steps(
        self, ClusterId: str, StepIds: Sequence[str] = (), StepStates: Sequence[str] = (), Marker: str = "0"
    ) -> dict[str, Any]:
        _demand(len(StepIds) <= LISTED_IDS, "InvalidRequestException", "Maximum number of step ids is 10.")
        cluster = self._cluster(ClusterId)
        with self.lock:
            known = [s for s in cluster.steps if (datetime.now(UTC) - s.created).total_seconds() >= self.lag]
            for id in StepIds:
                _demand(id in {s.id for s in known}, "InvalidRequestException", f"Step id '{id}' is not valid.")
            found = [s for s in known if (not StepIds or s.id in StepIds) and (not StepStates or s.state in StepStates)]
            summaries = [step.summary() for step in found]
        return _page("Steps", summaries if StepIds or StepStates else summaries[::-1], Marker)

    def cancel_steps(
        self, ClusterId: str, StepIds: Sequence[str], StepCancellationOption: str = "SEND_INTERRUPT"
    ) -> dict[str, Any]:
        _demand(len(StepIds) <= CANCELLED_IDS, "InvalidRequestException", "Maximum number of step ids is 256.")
        cluster = self._cluster(ClusterId)
        _demand(cluster.state in ACTIVE, "InvalidRequestException", f"Cluster '{ClusterId}' is not active.")
        answers = []
        for id in StepIds:
            step = next((s for s in cluster.steps if s.id == id), None)
            _demand(step, "InvalidRequestException", f"Step id '{id}' is not valid.")
            assert step
            if id in self.stubborn:
                answers.append({"StepId": id, "Status": "FAILED", "Reason": "Internal error."})
            elif step.state in UNFINISHED:
                self.cancel(step, gently=StepCancellationOption == "SEND_INTERRUPT")
                answers.append({"StepId": id, "Status": "SUBMITTED"})
            else:
                answers.append({"StepId": id, "Status": "FAILED", "Reason": f"Step is in state {step.state}."})
        return {"CancelStepsInfoList": answers}

    # What happens by itself, and what a test lets happen

    def tick(self) -> None:
        """Look at all that runs; start what may run."""
        with self.lock:
            for cluster in self.clusters.values():
                if cluster.state not in ACTIVE:
                    continue
                for step in cluster.steps:
                    if step.state == "RUNNING" and step.process and step.process.look() == "ended":
                        self._finish(cluster, step)
                running = sum(step.state == "RUNNING" for step in cluster.steps)
                waiting = [s for s in cluster.steps if s.state == "PENDING"]
                if cluster.state in ("RUNNING", "WAITING"):
                    for step in waiting[: max(0, cluster.side_by_side - running)]:
                        self._start(cluster, step)
                    self._rest(cluster, running + len(waiting))

    def cancel(self, step: Step, *, gently: bool = False) -> None:
        """As CancelSteps does, or a person in the console."""
        with self.lock:
            if step.process:
                step.process.stop() if gently else step.process.kill()
            step.state, step.ended = "CANCELLED", datetime.now(UTC)

    def terminate(self, cluster: Cluster, code: str, message: str) -> None:
        """The cluster ends, with all that runs on it."""
        with self.lock:
            errors = code not in ("USER_REQUEST", "ALL_STEPS_COMPLETED")
            cluster.state = "TERMINATED_WITH_ERRORS" if errors else "TERMINATED"
            cluster.reason = {"Code": code, "Message": message}
            for step in cluster.steps:
                if step.state in UNFINISHED:
                    was = step.state
                    self.cancel(step)
                    step.state = "CANCELLED" if was == "PENDING" else "INTERRUPTED"

    def end(self) -> None:
        """Nothing runs any more."""
        for step in self.steps("RUNNING"):
            self.cancel(step)

    def steps(self, *states: str) -> list[Step]:
        with self.lock:
            every = [step for cluster in self.clusters.values() for step in cluster.steps]
        return [step for step in every if not states or step.state in states]

    def _start(self, cluster: Cluster, step: Step) -> None:
        name, *arguments = step.config["HadoopJarStep"]["Args"]
        assert name == "spark-submit", f"command-runner.jar has no {name} here"
        folder = self.node.folder / "steps" / step.id
        folder.mkdir(parents=True)
        try:
            step.process = self.node.submit(arguments, folder / "stderr")
        except ClientError as error:  # a file that is not there
            step.state, step.ended = "FAILED", datetime.now(UTC)
            step.details = {"Reason": "Unable to fetch a file.", "Message": str(error)}
            return
        step.process.look()
        step.state, step.started = "RUNNING", datetime.now(UTC)

    def _finish(self, cluster: Cluster, step: Step) -> None:
        assert step.process
        step.ended = datetime.now(UTC)
        place = f"{self.log_uri}{cluster.id}/steps/{step.id}/stderr.gz"
        if step.process.code == 0:
            step.state = "COMPLETED"
        else:
            last = next((line for line in reversed(step.process.tail()) if "Error" in line or "Exception" in line), "")
            step.state = "FAILED"
            step.details = {"Reason": "Unknown Error.", "Message": last, "LogFile": place}
        if self.logs_come:
            self.node.store(place, gzip.compress(Path(step.process.log).read_bytes()))

    def _rest(self, cluster: Cluster, busy: int) -> None:
        if busy:
            cluster.state, cluster.idle_since = "RUNNING", time.monotonic()
            return
        cluster.state = "WAITING"
        idle = cluster.parameters.get("AutoTerminationPolicy", {}).get("IdleTimeout", float("inf"))
        if not cluster.parameters["Instances"].get("KeepJobFlowAliveWhenNoSteps") and cluster.steps:
            self.terminate(cluster, "ALL_STEPS_COMPLETED", "Steps completed")
        elif time.monotonic() - cluster.idle_since > idle:
            self.terminate(cluster, "USER_REQUEST", "Auto-termination policy")

    def _cluster(self, id: str) -> Cluster:
        _demand(id in self.clusters, "InvalidRequestException", f"Cluster id '{id}' is not valid.")
        return self.clusters[id]


def _check_step(config: dict[str, Any], cluster: Cluster) -> None:
    jar = config["HadoopJarStep"]
    characters = len(jar["Jar"]) + sum(map(len, jar.get("Args", [])))
    _demand(len(config["Name"]) <= NAME, "ValidationException", "Step name is longer than 256.")
    _demand(characters <= CHARACTERS, "ValidationException", "HadoopJarStep exceeds 10240 characters.")
    _demand(jar["Jar"] == "command-runner.jar", "ValidationException", f"no {jar['Jar']} here")
    side_by_side = cluster.side_by_side > 1
    _demand(
        not side_by_side or config.get("ActionOnFailure") == "CONTINUE",
        "ValidationException",
        "ActionOnFailure not valid",
    )


def _page(name: str, items: list[Any], marker: str) -> dict[str, Any]:
    start = int(marker)
    more = {"Marker": str(start + PAGE)} if start + PAGE < len(items) else {}
    return {name: items[start : start + PAGE], **more}


def _demand(condition: object, code: str, message: str) -> None:
    if not condition:
        raise Fault(code, message)

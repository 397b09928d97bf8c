"""Runs workers as steps of an EMR cluster. Here, a *step* is what EMR calls a step, not a table's function."""

from __future__ import annotations

import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from lakehouse_assets.environment.aws import batches, client, find_in_time, is_transient
from lakehouse_assets.environment.launchers.base import Attempt, Ended, Handle, NotStarted, Usage
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.extensions.aws.aws_launcher import AwsLauncher, s3_tail
from lakehouse_assets.extensions.aws.computes import Emr, transient_cluster
from lakehouse_assets.extensions.aws.job_runs import Shipped, arguments, options, ship
from lakehouse_assets.extensions.aws.prices import AS_OF, REGION, emr_machine

T = TypeVar("T")
# https://docs.aws.amazon.com/emr/latest/ManagementGuide/emr-overview.html#emr-overview-cluster-lifecycle
ACTIVE = ["STARTING", "BOOTSTRAPPING", "RUNNING", "WAITING"]
# StateChangeReason's codes for faults that another cluster need not have.
LOST = ("INTERNAL_ERROR", "INSTANCE_FAILURE", "INSTANCE_FLEET_TIMEOUT")
CAPACITY = re.compile(r"capacity|insufficient|spot", re.IGNORECASE)
# Seconds before each search for something that may have been created although no answer came.
CLUSTER_WAITS = (1.0, 2.0, 4.0)


def create_once(create: Callable[[], T], find: Callable[[], T | None]) -> T:
    """Creates what would exist twice if the call were repeated, as it takes no client token.

    If the answer was lost, finds what was created. Raises ``create``'s error if that is not found in time; it may have
    been created nevertheless.
    """
    try:
        return create()
    except (ClientError, BotoCoreError) as error:
        if is_transient(error) and (found := find_in_time(find, CLUSTER_WAITS)) is not None:
            return found
        raise


class Clusters:
    """The clusters that the settings name. once: a client that never retries, as in create_once()."""

    def __init__(self, emr: Any, once: Any, settings: Emr) -> None:
        self._emr, self._once, self._settings = emr, once, settings
        self._chosen: dict[str, str] = {}

    def choose(self, token: str) -> str:
        """Returns the id of a run's cluster; starts it if it is transient and does not exist yet.

        Raises NotStarted unless one cluster matches, or if a transient cluster's file is unreadable; else boto3's
        errors.
        """
        # Each run has its own transient cluster; any other cluster serves all runs.
        key = token if self._settings.by == "transient" else ""
        if key not in self._chosen:
            self._chosen[key] = self.find(token) or self._start(token)
        return self._chosen[key]

    def find(self, token: str) -> str | None:
        """Returns the id of a run's cluster; None if it is transient and was not started yet. Raises as choose()."""
        if self._settings.by == "id":
            return self._settings.cluster
        setting = f"LAKEHOUSE_EMR_CLUSTER={self._settings.by}:{self._settings.cluster}"
        clusters = self._emr.get_paginator("list_clusters").paginate(ClusterStates=ACTIVE).search("Clusters[]")
        found: list[tuple[str, str]] = [(c["Id"], c["Name"]) for c in clusters if self._matches(c, token)]
        if self._settings.by == "transient":
            return found[0][0] if found else None
        if not found:
            # Somebody may be starting it, or its successor.
            reason = f"{setting}: no cluster in {', '.join(ACTIVE)}; start one, or name another cluster"
            raise NotStarted(reason, transient=True)
        if len(found) > 1:
            listed = ", ".join(f"{id} ({name})" for id, name in found)
            raise NotStarted(f"{setting}: several clusters match: {listed}; name one by its id", transient=False)
        return found[0][0]

    def describe(self, cluster: str) -> Mapping[str, Any]:
        """Returns EMR's description. Raises as boto3."""
        found: Mapping[str, Any] = self._emr.describe_cluster(ClusterId=cluster)["Cluster"]
        return found

    def forget_if_ended(self, cluster: str) -> Ended | None:
        """Returns why the cluster runs no more steps, and forgets it, so that choose() looks for another; else None."""
        description = self.describe(cluster)
        if description["Status"]["State"] in ACTIVE:
            return None
        self._chosen = {key: chosen for key, chosen in self._chosen.items() if chosen != cluster}
        return cluster_end(self._settings.by, description)

    def _matches(self, cluster: Mapping[str, Any], token: str) -> bool:
        name: str = cluster["Name"]
        match self._settings.by:
            case "name":
                return name == self._settings.cluster
            case "tag":
                key, _, value = self._settings.cluster.partition("=")
                return {"Key": key, "Value": value} in self.describe(cluster["Id"]).get("Tags", [])
            case _:
                return name.endswith(token)

    def _start(self, token: str) -> str:
        parameters = transient_cluster(Path(self._settings.cluster), token)
        return create_once(lambda: str(self._once.run_job_flow(**parameters)["JobFlowId"]), lambda: self.find(token))


def cluster_end(by: str, cluster: Mapping[str, Any]) -> Ended:
    """Returns what a cluster's end means for a step. by: as in Emr."""
    status = cluster["Status"]
    reason = status.get("StateChangeReason", {})
    code, message = reason.get("Code", ""), reason.get("Message", "")
    lost = code in LOST or (code != "USER_REQUEST" and CAPACITY.search(message) is not None)
    details = ": ".join(part for part in (code, message) if part) or "no reason given"
    ended = f"lost its cluster: {cluster['Id']} is {status['State']} ({details})"
    if by == "id":
        return Ended(f"{ended}; set LAKEHOUSE_EMR_CLUSTER to a running cluster")
    if by == "transient":
        # The next attempt starts a new cluster from the same file, which helps only against a fault of this one.
        return Ended(ended if lost else f"{ended}; see its log", lost)
    # By name or tag: the next attempt finds the replacement, or says that there is none.
    return Ended(ended, transient=True)


# The most ids in one call: https://docs.aws.amazon.com/emr/latest/APIReference/API_ListSteps.html, API_CancelSteps.html
LISTED_IDS, CANCELLED_IDS = 10, 256
RUNNING_STATES, MACHINE_STATES = ("PENDING", "RUNNING", "CANCEL_PENDING"), ("BOOTSTRAPPING", "RUNNING")
# What EMR answers if it does not know one of the steps, and if the cluster takes no more steps.
REFUSED = ("InvalidRequestException", "ValidationException")
FULL = re.compile(r"maximum number of (active )?steps", re.IGNORECASE)
# EMR's lists show new steps late: seconds before each search, and how long a step may be unknown.
FIND_WAITS, UNKNOWN_SECONDS = (0.0, 1.0, 1.0), 60.0
# How long a cluster's number of instances, which scaling changes, serves for estimates.
INSTANCES_SECONDS = 600.0


class EmrLauncher(AwsLauncher):
    """Launches steps. Handles are ``<cluster id>/<step id>``."""

    service = "EMR"

    def __init__(self, settings: Settings, emr: Emr, worker: str) -> None:
        super().__init__(settings)
        self._code_prefix, self._worker = emr.code, worker
        self._emr = client("emr")
        self._once = client("emr", attempts=1)
        self._clusters = Clusters(self._emr, self._once, emr)
        self._known: dict[str, dict[str, str]] = defaultdict(dict)  # by cluster: step id → attempt's key
        self._unknown_since: dict[str, float] = {}  # by handle, on time.monotonic()
        self._final: dict[str, Mapping[str, Any]] = {}  # by handle: the status of a step that ended
        self._together: Counter[str] = Counter()  # by handle: the most polled steps that ran at once on its cluster
        self._instances: dict[str, tuple[float, Counter[str]]] = {}  # by cluster: when it was listed, count by type

    @cache  # noqa: B019  a launcher lives as long as its process
    def _code(self, packages: tuple[str, ...]) -> Shipped:
        return ship(self._s3, self._code_prefix, self._worker, packages)

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        """Adds the attempt's step unless it exists. Raises NotStarted."""
        try:
            cluster = self._clusters.choose(attempt.group)
            step = self._step_with(cluster, attempt.key) or self._add(cluster, attempt, environment)
        except (ClientError, BotoCoreError) as error:
            raise NotStarted(str(error), transient=is_transient(error), unconfirmed=is_transient(error)) from error
        return Handle(f"{cluster}/{step}")

    def _find(self, attempt: Attempt) -> Handle | None:
        try:
            cluster = self._clusters.find(attempt.group)
        # The settings name no cluster, or several: submit() will say so.
        except NotStarted:
            return None
        step = find_in_time(lambda: self._step_with(cluster, attempt.key), FIND_WAITS) if cluster else None
        return Handle(f"{cluster}/{step}") if step else None

    def link(self, handle: Handle) -> str:
        """Returns the cluster's URL, with the step's id."""
        region = self._emr.meta.region_name
        cluster, _, step = handle.id.partition("/")
        # The console has no page for a step; its id is for people.
        return f"https://{region}.console.aws.amazon.com/emr/home?region={region}&step={step}#/clusterDetails/{cluster}"

    def _tail(self, handle: Handle) -> str:
        cluster, _, step = handle.id.partition("/")
        uri = self._clusters.describe(cluster).get("LogUri")
        if not uri:
            return f"the cluster {cluster} writes no logs to S3: start it with a LogUri"
        coming = "EMR copies logs every five minutes and when the cluster ends"
        return s3_tail(self._s3, f"{uri.rstrip('/')}/{cluster}/steps/{step}/stderr.gz", coming)

    def _usage(self, handle: Handle) -> Usage | None:
        cluster, _, step = handle.id.partition("/")
        status = self._final.get(handle.id) or self._steps(cluster, [step]).get(step, {}).get("Status", {})
        timeline = status.get("Timeline", {})
        if "StartDateTime" not in timeline:
            return None
        until = timeline.get("EndDateTime") or datetime.now(UTC)
        hours = (until - timeline["StartDateTime"]).total_seconds() / 3600
        machines = self._machines(cluster)
        return share(hours, machines, max(1, self._together[handle.id])) if machines else None

    # start

    def _add(self, cluster: str, attempt: Attempt, environment: Mapping[str, str]) -> str:
        added = {"JobFlowId": cluster, "Steps": [step_of(attempt, environment, self._code(attempt.packages))]}
        try:
            return create_once(
                lambda: str(self._once.add_job_flow_steps(**added)["StepIds"][0]),
                lambda: self._step_with(cluster, attempt.key),
            )
        except ClientError as error:
            if FULL.search(str(error)):
                reason = f"the cluster {cluster} has no room for more steps: {error}"
                raise NotStarted(reason, transient=True) from error
            # If the cluster has ended since it was chosen, the next attempt looks for another.
            if not is_transient(error) and (ended := self._clusters.forget_if_ended(cluster)):
                raise NotStarted(f"it {ended.reason}", transient=ended.transient) from error
            raise

    def _step_with(self, cluster: str, key: str) -> str | None:
        """Returns the id of the step with this key; None if EMR lists none."""
        # EMR lists the newest steps first; all steps older than a known step are known.
        found: dict[str, str] = {}
        for page in self._emr.get_paginator("list_steps").paginate(ClusterId=cluster):
            found |= {step["Id"]: step["Name"].rpartition(" ")[2] for step in page["Steps"]}
            if found.keys() & self._known[cluster].keys():
                break
        self._known[cluster] |= found
        return next((step for step, its_key in self._known[cluster].items() if its_key == key), None)

    # poll

    def _poll(self, handles: Sequence[Handle]) -> dict[str, Ended]:
        ended: dict[str, Ended] = {}
        for cluster, steps in _by_cluster(handles).items():
            found = self._steps(cluster, steps)
            running = {f"{cluster}/{id}": step for id, step in found.items() if step["Status"]["State"] == "RUNNING"}
            for handle, step in running.items():
                self._together[handle] = max(self._together[handle], len(running))
                if started := step["Status"].get("Timeline", {}).get("StartDateTime"):
                    self._begun[handle] = started
            ended |= self._judged(cluster, steps, found)
        return ended

    def _judged(
        self, cluster: str, steps: Sequence[str], found: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[tuple[str, Ended]]:
        """Yields the handle and the end of each step that has ended. found: the steps that EMR knows, by id."""
        # The end of the cluster may be why a step failed. If none has failed, that call is saved.
        states = {step["Status"]["State"] for step in found.values()}
        has_failed = bool(states - {"COMPLETED", *RUNNING_STATES})
        clusters_end = self._clusters.forget_if_ended(cluster) if has_failed else None
        for step in steps:
            handle = f"{cluster}/{step}"
            if step not in found:
                since = self._unknown_since.setdefault(handle, time.monotonic())
                if time.monotonic() - since > UNKNOWN_SECONDS:
                    yield handle, Ended(f"is unknown to EMR: {handle}; its cluster may be in another region or account")
                continue
            self._unknown_since.pop(handle, None)
            status = found[step]["Status"]
            if status["State"] not in RUNNING_STATES:
                self._final[handle] = status
                yield handle, verdict(status, clusters_end)

    def _steps(self, cluster: str, steps: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        """Returns those of the steps that EMR knows, by id."""
        found: dict[str, Mapping[str, Any]] = {}
        for some in batches(steps, LISTED_IDS):
            try:
                listed = self._emr.list_steps(ClusterId=cluster, StepIds=some)["Steps"]
            except ClientError as error:
                if error.response["Error"]["Code"] not in REFUSED:
                    raise
                # A single unknown step makes the whole call fail.
                listed = [] if len(some) == 1 else [s for id in some for s in self._steps(cluster, [id]).values()]
            found |= {step["Id"]: step for step in listed}
        return found

    # end

    def _stop_batches(self, handles: Sequence[Handle]) -> Sequence[Sequence[Handle]]:
        parts = ((c, some) for c, steps in _by_cluster(handles).items() for some in batches(steps, CANCELLED_IDS))
        return [[Handle(f"{cluster}/{step}") for step in some] for cluster, some in parts]

    def _stop(self, handles: Sequence[Handle]) -> dict[str, Exception]:
        # All handles are of one cluster, as _stop_batches() divides them.
        ((cluster, steps),) = _by_cluster(handles).items()
        try:
            option = "TERMINATE_PROCESS"
            answer = self._emr.cancel_steps(ClusterId=cluster, StepIds=steps, StepCancellationOption=option)
        except ClientError as error:
            if is_transient(error):
                raise
            # The steps have ended with their cluster.
            if self._clusters.forget_if_ended(cluster):
                return {}
            if error.response["Error"]["Code"] not in REFUSED or len(handles) == 1:
                raise
            # A single unknown step makes the whole call fail.
            half = len(handles) // 2
            return self._try_stop(handles[:half]) | self._try_stop(handles[half:])
        # A refusal matters only if its step still runs.
        refused = {i["StepId"]: i.get("Reason", "") for i in answer["CancelStepsInfoList"] if i["Status"] == "FAILED"}
        return {
            f"{cluster}/{step}": RuntimeError(refused[step])
            for step, summary in self._steps(cluster, list(refused)).items()
            if summary["Status"]["State"] in ("PENDING", "RUNNING")
        }

    # usage

    def _machines(self, cluster: str) -> Counter[str]:
        """Returns how many instances of each type the cluster has."""
        asked, machines = self._instances.get(cluster, (float("-inf"), Counter()))
        if time.monotonic() - asked > INSTANCES_SECONDS:
            instances = self._emr.get_paginator("list_instances").paginate(ClusterId=cluster).search("Instances[]")
            machines = Counter(i["InstanceType"] for i in instances if i["Status"]["State"] in MACHINE_STATES)
            self._instances[cluster] = (time.monotonic(), machines)
        return machines


def _by_cluster(handles: Sequence[Handle]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for handle in handles:
        cluster, _, step = handle.id.partition("/")
        found[cluster].append(step)
    return found


# https://docs.aws.amazon.com/emr/latest/APIReference/API_AddJobFlowSteps.html
STEP_CHARACTERS, NAME_CHARACTERS = 10_240, 256
# How Spark reports EX_TEMPFAIL, a worker's exit status if it lost its network.
LOST_NETWORK = re.compile(rf"exited with {os.EX_TEMPFAIL}\b")


def step_of(attempt: Attempt, environment: Mapping[str, str], code: Shipped) -> dict[str, Any]:
    """Returns a StepConfig of AddJobFlowSteps. Raises NotStarted if it is too long."""
    # In client mode the driver is the step's process on the primary node: they end together, the step's stderr is the
    # driver's log, and cancelling kills the driver. In cluster mode the driver would go on under YARN:
    # https://docs.aws.amazon.com/emr/latest/ManagementGuide/emr-cancel-steps.html (TERMINATE_PROCESS).
    submit = ["spark-submit", "--deploy-mode", "client", *options(attempt, code.package)]
    args = [*submit, code.entry_point, *arguments(environment)]
    jar = {"Jar": "command-runner.jar", "Args": args}
    if (length := len(jar["Jar"]) + sum(map(len, args))) > STEP_CHARACTERS:
        reason = f"its command has {length} characters, but EMR accepts at most {STEP_CHARACTERS}"
        advice = (
            "move the longest settings of the table's spark_conf and LAKEHOUSE_SPARK__… to the cluster's spark-defaults"
        )
        raise NotStarted(f"{reason}: {advice}", transient=False)
    # If the title is too long, its end is kept: it has the key, by which the step is found again.
    return {"Name": attempt.title[-NAME_CHARACTERS:], "ActionOnFailure": "CONTINUE", "HadoopJarStep": jar}


def verdict(status: Mapping[str, Any], cluster: Ended | None) -> Ended:
    """Returns how a step ended. cluster: how its cluster ended; None if it has not."""
    state, details = status["State"], status.get("FailureDetails", {})
    if state == "COMPLETED":
        return Ended("completed")
    if cluster is not None:
        return cluster
    if state == "CANCELLED":
        return Ended("was cancelled in the console or by CancelSteps", stopped=True)
    reason = "; ".join(details[part] for part in ("Reason", "Message", "LogFile") if details.get(part))
    reason = reason or status.get("StateChangeReason", {}).get("Message") or "EMR gives no reason"
    if LOST_NETWORK.search(reason):
        return Ended(f"lost its network connection, or S3 did not respond: {reason}", transient=True)
    return Ended(f"{'was interrupted' if state == 'INTERRUPTED' else 'failed'}: {reason}")


def share(hours: float, machines: Mapping[str, int], together: int) -> Usage:
    """Estimates a step's share of its cluster's costs.

    together: the most steps of this process that ran on the cluster at once.
    """
    each = [emr_machine(name) for name, count in machines.items() for _ in range(count)]
    return Usage(
        vcpu_hours=hours / together * sum(machine.vcpus for machine in each),
        gib_hours=hours / together * sum(machine.gib for machine in each),
        estimated_usd=hours / together * sum(machine.usd for machine in each),
        source=f"estimated: the step's time on the cluster's {len(each)} instances, shared by up to "
        f"{together} steps of this process at once, at on-demand list prices of {REGION} as of {AS_OF}",
    )

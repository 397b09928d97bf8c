"""Which EMR cluster a run's steps go to: found by id, name or tag, or started for the run; and what ended it.
No steps here."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from resources.aws import passing
from resources.computes import Emr
from resources.launchers.base import Ended, NotStarted

T = TypeVar("T")
# https://docs.aws.amazon.com/emr/latest/ManagementGuide/emr-overview.html#emr-overview-cluster-lifecycle
ACTIVE = ["STARTING", "BOOTSTRAPPING", "RUNNING", "WAITING"]
# Of a cluster's StateChangeReason: trouble that another cluster need not have.
LOST = ("INTERNAL_ERROR", "INSTANCE_FAILURE", "INSTANCE_FLEET_TIMEOUT")
CAPACITY = re.compile(r"capacity|insufficient|spot", re.IGNORECASE)
# A transient cluster that has had no step for so long ends itself, also when nobody is left to end it.
IDLE_SECONDS = 300
# When what was asked for without an answer is looked for: lists may lag behind.
PAUSES = (1.0, 2.0, 4.0)


def made_once(make: Callable[[], T], look: Callable[[], T | None]) -> T:
    """Make something that has no client token, and find it where the answer got lost.

    Raises what ``make`` raised. It may be there all the same: whoever asks again looks first, a good while later.
    """
    try:
        return make()
    except (ClientError, BotoCoreError) as error:
        if passing(error):
            for pause in PAUSES:
                time.sleep(pause)
                if (made := look()) is not None:
                    return made
        raise


class Clusters:
    """The clusters that the settings lead to. once: a client that makes no call twice."""

    def __init__(self, emr: Any, once: Any, settings: Emr) -> None:
        self._emr, self._once, self._settings = emr, once, settings
        self._chosen: dict[str, str] = {}

    def choose(self, token: str) -> str:
        """The id of the cluster that takes the steps of a run. Raises NotStarted; ClientError as boto3 does."""
        if self._settings.by == "id":
            return self._settings.cluster
        key = token if self._settings.by == "transient" else ""
        if key not in self._chosen:
            self._chosen[key] = self.find(token) or self._start(token)
        return self._chosen[key]

    def find(self, token: str) -> str | None:
        """The cluster that is there for a run; None where one would have to be started."""
        if self._settings.by == "id":
            return self._settings.cluster
        told = f"LAKEHOUSE_EMR_CLUSTER={self._settings.by}:{self._settings.cluster}"
        found = list(self._matching(token))
        if self._settings.by == "transient":
            return found[0][0] if found else None
        if not found:
            # Others of the team may be starting it, or its successor.
            raise NotStarted(f"{told}: no cluster in {', '.join(ACTIVE)}; start one, or name another", transient=True)
        if len(found) > 1:
            listed = ", ".join(f"{id} ({name})" for id, name in found)
            raise NotStarted(f"{told}: several clusters match: {listed}; name one by its id", transient=False)
        return found[0][0]

    def describe(self, cluster: str) -> Mapping[str, Any]:
        return self._emr.describe_cluster(ClusterId=cluster)["Cluster"]

    def ended(self, cluster: str) -> Ended | None:
        """Why the cluster runs no more steps, and the next time another one is looked for; None while it does."""
        told = self.describe(cluster)
        if told["Status"]["State"] in ACTIVE:
            return None
        self._chosen = {key: chosen for key, chosen in self._chosen.items() if chosen != cluster}
        return cluster_end(self._settings.by, told)

    def _matching(self, token: str) -> Iterator[tuple[str, str]]:
        for page in self._emr.get_paginator("list_clusters").paginate(ClusterStates=ACTIVE):
            for cluster in page["Clusters"]:
                if self._matches(cluster, token):
                    yield cluster["Id"], cluster["Name"]

    def _matches(self, cluster: Mapping[str, Any], token: str) -> bool:
        match self._settings.by:
            case "name":
                return cluster["Name"] == self._settings.cluster
            case "tag":
                key, _, value = self._settings.cluster.partition("=")
                return {"Key": key, "Value": value} in self.describe(cluster["Id"]).get("Tags", [])
            case _:
                return cluster["Name"].endswith(token)

    def _start(self, token: str) -> str:
        parameters = transient_cluster(Path(self._settings.cluster), token)
        return made_once(lambda: self._once.run_job_flow(**parameters)["JobFlowId"], lambda: self.find(token))


def transient_cluster(file: Path, token: str) -> dict[str, Any]:
    """RunJobFlow's parameters for the cluster of a run: the file's, its name ending with the token, ending when idle.

    Raises NotStarted when the file can't be read.
    """
    try:
        told = json.loads(file.read_text())
        instances = {**told["Instances"], "KeepJobFlowAliveWhenNoSteps": True}
        name = f"{told.get('Name', 'lakehouse')} {token}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotStarted(
            f"LAKEHOUSE_EMR_CLUSTER=transient:{file} holds no parameters of RunJobFlow: {error!r}", transient=False
        ) from error
    policy = {"AutoTerminationPolicy": {"IdleTimeout": IDLE_SECONDS}}
    return {**policy, **told, "Name": name, "Instances": instances}


def cluster_end(by: str, cluster: Mapping[str, Any]) -> Ended:
    """What the end of its cluster means for a step. cluster: as DescribeCluster has it; by: as Emr.by."""
    status = cluster["Status"]
    reason = status.get("StateChangeReason", {})
    code, message = reason.get("Code", ""), reason.get("Message", "")
    lost = code in LOST or (code != "USER_REQUEST" and CAPACITY.search(message) is not None)
    said = ": ".join(part for part in (code, message) if part) or "no reason given"
    ended = f"has no cluster any more: {cluster['Id']} is {status['State']} ({said})"
    if by == "id":
        return Ended(f"{ended}; let LAKEHOUSE_EMR_CLUSTER name a running one, then re-execute from failure")
    if by == "transient":
        return Ended(ended if lost else f"{ended}; see its log, then re-execute from failure", lost)
    # By name or tag: whoever ended it has another one, or none is found in some attempts' time.
    return Ended(ended, transient=True)

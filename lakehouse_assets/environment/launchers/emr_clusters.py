"""Chooses the EMR cluster for a run's steps: found by id, name or tag, or started for the run; says why it ended.

Steps are submitted and watched by emr.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from lakehouse_assets.environment.aws import find_in_time, is_transient
from lakehouse_assets.environment.computes import Emr
from lakehouse_assets.environment.launchers.base import Ended, NotStarted

T = TypeVar("T")
# https://docs.aws.amazon.com/emr/latest/ManagementGuide/emr-overview.html#emr-overview-cluster-lifecycle
ACTIVE = ["STARTING", "BOOTSTRAPPING", "RUNNING", "WAITING"]
# Codes of a StateChangeReason for faults that another cluster need not have.
LOST = ("INTERNAL_ERROR", "INSTANCE_FAILURE", "INSTANCE_FLEET_TIMEOUT")
CAPACITY = re.compile(r"capacity|insufficient|spot", re.IGNORECASE)
# A transient cluster ends itself after this time without a step, unless its file says otherwise: the run that started
# it may be dead by then.
IDLE_SECONDS = 300
# Seconds before each look for something that was created without an answer.
FIND_WAITS = (1.0, 2.0, 4.0)


def create_once(create: Callable[[], T], find: Callable[[], T | None]) -> T:
    """Creates something that has no client token; where the answer was lost, finds what was created.

    Raises what ``create`` raised; it may exist even so, and a later try finds it first.
    """
    try:
        return create()
    except (ClientError, BotoCoreError) as error:
        if is_transient(error) and (found := find_in_time(find, FIND_WAITS)) is not None:
            return found
        raise


class Clusters:
    """The clusters that the settings name. emr, once: boto3 clients; ``once`` repeats no call."""

    def __init__(self, emr: Any, once: Any, settings: Emr) -> None:
        self._emr, self._once, self._settings = emr, once, settings
        self._chosen: dict[str, str] = {}

    def choose(self, token: str) -> str:
        """Returns the id of the cluster that a run's steps go to; starts it where the run has one of its own.

        token: the run's. Raises NotStarted where there is no cluster to choose, where several match, and where the file
        of a run's own can't be read; ClientError and BotoCoreError as boto3 does.
        """
        key = token if self._settings.by == "transient" else ""
        if key not in self._chosen:
            self._chosen[key] = self.find(token) or self._start(token)
        return self._chosen[key]

    def find(self, token: str) -> str | None:
        """Finds the id of a run's cluster; None where it is still to be started. Raises as choose does."""
        if self._settings.by == "id":
            return self._settings.cluster
        setting = f"LAKEHOUSE_EMR_CLUSTER={self._settings.by}:{self._settings.cluster}"
        clusters = self._emr.get_paginator("list_clusters").paginate(ClusterStates=ACTIVE).search("Clusters[]")
        found: list[tuple[str, str]] = [(c["Id"], c["Name"]) for c in clusters if self._matches(c, token)]
        if self._settings.by == "transient":
            return found[0][0] if found else None
        if not found:
            # Others of the team may be starting it, or its successor.
            reason = f"{setting}: no cluster in {', '.join(ACTIVE)}; start one, or name another"
            raise NotStarted(reason, transient=True)
        if len(found) > 1:
            listed = ", ".join(f"{id} ({name})" for id, name in found)
            raise NotStarted(f"{setting}: several clusters match: {listed}; name one by its id", transient=False)
        return found[0][0]

    def describe(self, cluster: str) -> Mapping[str, Any]:
        """Returns what DescribeCluster says of the cluster now. Raises ClientError and BotoCoreError as boto3 does."""
        found: Mapping[str, Any] = self._emr.describe_cluster(ClusterId=cluster)["Cluster"]
        return found

    def ended(self, cluster: str) -> Ended | None:
        """Says why the cluster runs no more steps; None while it does. One that ended is not chosen again."""
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


def transient_cluster(file: Path, token: str) -> dict[str, Any]:
    """Returns RunJobFlow's parameters for a run's own cluster: the file's, with the run's token at the name's end.

    Raises NotStarted when the file can't be read.
    """
    try:
        given = json.loads(file.read_text())
        instances = {**given["Instances"], "KeepJobFlowAliveWhenNoSteps": True}
        name = f"{given.get('Name', 'lakehouse')} {token}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"LAKEHOUSE_EMR_CLUSTER=transient:{file} holds no parameters of RunJobFlow: {error!r}"
        raise NotStarted(reason, transient=False) from error
    policy = {"AutoTerminationPolicy": {"IdleTimeout": IDLE_SECONDS}}
    return {**policy, **given, "Name": name, "Instances": instances}


def cluster_end(by: str, cluster: Mapping[str, Any]) -> Ended:
    """Says what the end of its cluster means for a step. cluster: as DescribeCluster returns it. by: as in Emr."""
    status = cluster["Status"]
    reason = status.get("StateChangeReason", {})
    code, message = reason.get("Code", ""), reason.get("Message", "")
    lost = code in LOST or (code != "USER_REQUEST" and CAPACITY.search(message) is not None)
    details = ": ".join(part for part in (code, message) if part) or "no reason given"
    ended = f"has no cluster any more: {cluster['Id']} is {status['State']} ({details})"
    if by == "id":
        return Ended(f"{ended}; let LAKEHOUSE_EMR_CLUSTER name a running one")
    if by == "transient":
        return Ended(ended if lost else f"{ended}; see its log", lost)
    # By name or tag: the next attempt finds the cluster that replaced this one; where nothing did, it says so.
    return Ended(ended, transient=True)

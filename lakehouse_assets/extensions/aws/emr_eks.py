"""Runs workers as job runs of EMR on EKS: drivers and executors are Kubernetes pods."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lakehouse_assets.environment.launchers.base import Attempt, Ended, Handle, Usage
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.extensions.aws.aws_launcher import s3_tail, tags
from lakehouse_assets.extensions.aws.computes import EmrEks
from lakehouse_assets.extensions.aws.job_runs import (
    OVERHEAD_MIB,
    JobRun,
    JobRunsLauncher,
    Shipped,
    arguments,
    options,
)
from lakehouse_assets.extensions.aws.prices import EMR_EKS

# https://docs.aws.amazon.com/emr-on-eks/latest/APIReference/API_StartJobRun.html
NAME_CHARACTERS = 64
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._/#-]+")
# What Spark adds to a Python application's heap on Kubernetes, as a share (memoryOverheadFactor):
# https://spark.apache.org/docs/4.1.0/running-on-kubernetes.html
PYTHON_OVERHEAD = 0.4
# StartJobRun's errors that pass: the queue of a virtual cluster with a schedulerConfiguration is full, or throttling.
REFUSED_FOR_NOW = re.compile("queue|quota|throttl|rate exceeded", re.IGNORECASE)
# How the texts of Kubernetes, Spark and EMR introduce an exit code.
EXIT = r"exit(?:ed with|[ -]?code:?) ?"
TRUST = "its trust policy must name the cluster: aws emr-containers update-role-trust-policy"


@dataclass(frozen=True)
class Failure:
    """A kind of failure."""

    sign: str
    """Matches ``failureReason: stateDetails``, ignoring case."""
    says: str
    """Continues a sentence that begins with "the worker"."""
    fix: str = ""
    """What a person can do about it."""
    transient: bool = False


# The first match counts. The details, 256 characters at most, are undocumented words of Kubernetes, Spark and EMR.
FAILURES = (
    # EX_TEMPFAIL: the worker lost its network.
    Failure(rf"{EXIT}{os.EX_TEMPFAIL}\b", "lost its network connection, or S3 did not respond", transient=True),
    Failure(
        "ErrImagePull|ImagePullBackOff|InvalidImageName|pull(ing)? image",
        "did not start, because its image could not be pulled",
        "check spark.kubernetes.container.image, and that the cluster's nodes may pull from its registry",
    ),
    # Where no driver runs after 15 minutes (job-start-timeout):
    # https://docs.aws.amazon.com/emr/latest/EMR-on-EKS-DevelopmentGuide/emr-eks-job-submitter-container-defaults.html
    Failure(
        "FailedScheduling|lack of cluster resources|nodes are available|no nodes",
        "found no node with enough room",
        "give the cluster more or larger nodes, the table a smaller size, or the pool lake_workers a lower limit",
        transient=True,
    ),
    Failure(rf"OOMKilled|OutOfMemory|{EXIT}137\b", "ran out of memory", "give the table a size with more memory_gib"),
    # A node that is drained or taken away: SIGTERM, or a reason of the pod's condition DisruptionTarget,
    # https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions.
    Failure(
        rf"{EXIT}143\b|evicted|EvictionByEvictionAPI|PreemptionByScheduler|DeletionBy(TaintManager|PodGC)"
        "|TerminationByKubelet|NodeLost|node (is )?(shut|not ready)",
        "lost its node",
        "drivers are safer on nodes that are not Spot",
        transient=True,
    ),
    Failure("AssumeRole|web ?identity|trust policy", "could not assume LAKEHOUSE_EMR_EKS_ROLE", TRUST),
    Failure(
        "^CLUSTER_UNAVAILABLE",
        "failed because the EKS cluster did not answer",
        "check that LAKEHOUSE_EMR_EKS_VIRTUAL_CLUSTER is RUNNING, and that EMR still has access to its namespace",
        transient=True,
    ),
    Failure("^INTERNAL_ERROR", "failed because of a fault in EMR on EKS", transient=True),
    Failure(
        "^VALIDATION_ERROR",
        "was refused",
        "check LAKEHOUSE_EMR_EKS_ROLE, LAKEHOUSE_EMR_EKS_RELEASE and the table's spark_conf",
    ),
)


class EmrEksLauncher(JobRunsLauncher):
    """Launches job runs on a virtual cluster."""

    service, api, holder = "EMR on EKS", "emr-containers", "virtual cluster"
    running_states = ("PENDING", "SUBMITTED", "RUNNING", "CANCEL_PENDING")
    token_used = "ValidationException"
    refused_for_now = REFUSED_FOR_NOW

    def __init__(self, settings: Settings, eks: EmrEks, worker: str) -> None:
        super().__init__(settings, eks.code, worker, virtualClusterId=eks.virtual_cluster)
        self._settings = eks
        self._log_uri = f"{settings.staging}/logs"

    def _start(self, attempt: Attempt, environment: Mapping[str, str]) -> str:
        eks = self._settings
        job = job_of(attempt, environment, self._code(attempt.packages), self._log_uri)
        started = self._emr.start_job_run(executionRoleArn=eks.role, releaseLabel=eks.release, **self._place, **job)
        return str(started["id"])

    def _search(self, attempt: Attempt) -> Mapping[str, Any]:
        return {"name": name_of(attempt)}

    def _get(self, handle: Handle) -> JobRun:
        job: JobRun = self._emr.describe_job_run(id=handle.id, **self._place)["jobRun"]
        return job

    def _cancel(self, handle: Handle) -> object:
        return self._emr.cancel_job_run(id=handle.id, **self._place)

    def _verdict(self, job: JobRun) -> Ended:
        return verdict(job)

    def link(self, handle: Handle) -> str:
        """Returns the virtual cluster's URL, with the job run's id."""
        region, cluster = self._emr.meta.region_name, self._settings.virtual_cluster
        # No address of a job run's page is known. The console ignores the id, which is for people.
        return (
            f"https://{region}.console.aws.amazon.com/emr/home?region={region}&job={handle.id}#/eks/clusters/{cluster}"
        )

    def _tail(self, handle: Handle) -> str:
        pod = f"spark-{handle.id}/spark-{handle.id}-driver"
        place = f"{self._settings.virtual_cluster}/jobs/{handle.id}/containers/{pod}/stderr.gz"
        coming = (
            "EMR on EKS copies it while the job runs and at its end. If it never appears, the driver didn't start, or "
            f"LAKEHOUSE_EMR_EKS_ROLE can't be assumed or may not write there; {TRUST}"
        )
        return s3_tail(self._s3, f"{self._log_uri}/{place}", coming)

    def _usage(self, handle: Handle) -> Usage | None:
        job = self._final.get(handle.id) or self._get(handle)
        # A job run that completed did run, even if no poll saw it. A job run that ended otherwise may never have run.
        began = self.began(handle) or (job["createdAt"] if job["state"] == "COMPLETED" else None)
        return used(job, began) if began else None


def name_of(attempt: Attempt) -> str:
    """Returns the title's end, in allowed characters: it has the key, so that the job run can be found by this name."""
    return NOT_IN_NAMES.sub("-", attempt.title)[-NAME_CHARACTERS:]


def job_of(attempt: Attempt, environment: Mapping[str, str], code: Shipped, log_uri: str) -> dict[str, Any]:
    """Returns StartJobRun's parameters, equal for the same attempt, as a client token demands.

    By default the service does not restart the driver: only the poll loop retries.
    """
    return {
        "clientToken": attempt.key,
        "name": name_of(attempt),
        "tags": tags(attempt),
        "configurationOverrides": {"monitoringConfiguration": {"s3MonitoringConfiguration": {"logUri": log_uri}}},
        "jobDriver": {
            "sparkSubmitJobDriver": {
                "entryPoint": code.entry_point,
                "entryPointArguments": arguments(environment),
                "sparkSubmitParameters": shlex.join(options(attempt, code.package, PYTHON_OVERHEAD)),
            }
        },
    }


def verdict(job: JobRun) -> Ended:
    """Says how a job run ended. job: DescribeJobRun's jobRun."""
    state, details = job["state"], job.get("stateDetails") or "no details given"
    if state == "COMPLETED":
        return Ended("completed")
    if state == "CANCELLED":
        return Ended(f"was cancelled in the console or by CancelJobRun ({details})", stopped=True)
    text = f"{job.get('failureReason', '')}: {details}"
    failures = (one for one in FAILURES if re.search(one.sign, text, re.IGNORECASE))
    found = next(failures, Failure("", "failed"))
    return Ended("; ".join(filter(None, (f"{found.says}: {details}", found.fix))), transient=found.transient)


def used(job: JobRun, began: datetime) -> Usage | None:
    """Estimates usage from what the pods request; None while it runs or if Spark chose the number of executors.

    began: when a poll first saw the job run at work, as the service tells only when it ended.
    """
    parts = shlex.split(job["jobDriver"]["sparkSubmitJobDriver"]["sparkSubmitParameters"])
    conf = dict(parts[n + 1].split("=", 1) for n, part in enumerate(parts) if part == "--conf")
    if "finishedAt" not in job or conf.get("spark.dynamicAllocation.enabled", "").lower() == "true":
        return None
    # The times are by two clocks, so the difference may be negative.
    hours = max(0.0, (job["finishedAt"] - began).total_seconds() / 3600)
    # By default Spark starts two executors.
    executors = _amount(conf.get("spark.executor.instances", "2"))
    pods = {"driver": 1.0, "executor": executors}
    vcpus = hours * sum(count * _amount(conf.get(f"spark.{who}.cores", "1")) for who, count in pods.items())
    gib = hours * sum(count * _pod_mib(conf, who) / 1024 for who, count in pods.items())
    source = (
        f"estimated: the driver and {executors:g} executors, from their Spark settings and running time; without the "
        f"EKS cluster and its nodes; {EMR_EKS.source}"
    )
    return Usage(vcpus, gib, EMR_EKS.usd(vcpus, gib), source)


def _pod_mib(conf: Mapping[str, str], who: str) -> float:
    """Returns the memory that a pod requests: its heap, and what Spark adds. who: driver or executor."""
    heap = _amount(conf.get(f"spark.{who}.memory", "1g"))
    added = conf.get(f"spark.{who}.memoryOverhead")
    return heap + (_amount(added) if added else max(PYTHON_OVERHEAD * heap, OVERHEAD_MIB))


# MiB of one unit; without a unit, Spark reads MiB.
UNITS = {"": 1, "k": 1 / 1024, "m": 1, "g": 1024, "t": 1024**2}
AMOUNT = re.compile(r"(\d+)([kmgt]?)b?", re.IGNORECASE)


def _amount(text: str) -> float:
    """Reads a count, or MiB, as Spark does; 0 if invalid."""
    found = AMOUNT.fullmatch(text.strip())
    return int(found[1]) * UNITS[found[2].lower()] if found else 0.0

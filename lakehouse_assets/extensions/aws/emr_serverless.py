"""Runs workers as job runs of EMR Serverless."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from lakehouse_assets.environment.launchers.base import Attempt, Ended, Handle, Usage
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.extensions.aws.aws_launcher import cloudwatch_tail, s3_tail, tags
from lakehouse_assets.extensions.aws.computes import EmrServerless
from lakehouse_assets.extensions.aws.job_runs import JobRun, JobRunsLauncher, Shipped, arguments, options
from lakehouse_assets.extensions.aws.prices import EMR_SERVERLESS

# https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_StartJobRun.html
NAME_CHARACTERS = 256
# The longest timeout that a batch job may have. A job without a timeout would get one of 12 hours.
LONGEST = timedelta(days=7)
# Reasons that pass, so that a later attempt may succeed: no capacity in the application or the account, throttling,
# faults of the service.
TRANSIENT = re.compile("capacity|insufficient|quota|limit exceeded|throttl|rate exceeded|internal error", re.IGNORECASE)
# How the service reports EX_TEMPFAIL, a worker's exit status if it lost its network.
LOST_NETWORK = re.compile(rf"ExitCode: {os.EX_TEMPFAIL}\b")
# https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/logging.html#jobs-log-storage-cw
LOG_GROUP = "/aws/emr-serverless"
MEMORY = re.compile(r"OutOfMemory|exit ?code:? 137|memory usage exceeded", re.IGNORECASE)


class EmrServerlessLauncher(JobRunsLauncher):
    """Launches job runs of an application."""

    service, api, holder = "EMR Serverless", "emr-serverless", "application"
    running_states = ("SUBMITTED", "QUEUED", "PENDING", "SCHEDULED", "RUNNING", "CANCELLING")
    token_used = "ConflictException"
    refused_for_now = TRANSIENT

    def __init__(self, settings: Settings, serverless: EmrServerless, worker: str) -> None:
        super().__init__(settings, serverless.code, worker, applicationId=serverless.application)
        self._role, self._application = serverless.role, serverless.application

    def _start(self, attempt: Attempt, environment: Mapping[str, str]) -> str:
        job = job_of(attempt, environment, self._code(attempt.packages))
        return str(self._emr.start_job_run(executionRoleArn=self._role, **self._place, **job)["jobRunId"])

    def _search(self, attempt: Attempt) -> Mapping[str, Any]:
        # No job runs for longer.
        return {"createdAtAfter": datetime.now(UTC) - LONGEST}

    def _get(self, handle: Handle) -> JobRun:
        job: JobRun = self._emr.get_job_run(jobRunId=handle.id, **self._place)["jobRun"]
        return job

    def _cancel(self, handle: Handle) -> object:
        return self._emr.cancel_job_run(jobRunId=handle.id, **self._place)

    def _verdict(self, job: JobRun) -> Ended:
        return verdict(job)

    def link(self, handle: Handle) -> str:
        """Returns the job run's URL."""
        region = self._emr.meta.region_name
        place = f"serverless/applications/{self._application}/job-runs/{handle.id}"
        return f"https://{region}.console.aws.amazon.com/emr/home?region={region}#/{place}"

    def _tail(self, handle: Handle) -> str:
        monitoring = self._monitoring(handle)
        place = f"applications/{self._application}/jobs/{handle.id}/SPARK_DRIVER"
        if uri := monitoring.get("s3MonitoringConfiguration", {}).get("logUri"):
            coming = "EMR Serverless copies logs from time to time"
            return s3_tail(self._s3, f"{uri.rstrip('/')}/{place}/stderr.gz", coming)
        watch = monitoring.get("cloudWatchLoggingConfiguration", {})
        if watch.get("enabled") and (kind := logged_output(watch)):
            stream = f"{watch.get('logStreamNamePrefix', '').rstrip('/')}/{place}/{kind}"
            return cloudwatch_tail(self._logs, watch.get("logGroupName", LOG_GROUP), stream)
        return (
            "its log is in EMR Serverless's own storage: read it in the console. To see it here, give the application "
            "a cloudWatchLoggingConfiguration or s3MonitoringConfiguration"
        )

    def _usage(self, handle: Handle) -> Usage | None:
        job = self._final.get(handle.id) or self._get(handle)
        # The service tells what it bills only a moment after the end, so ask again.
        if "billedResourceUtilization" not in job:
            job = self._get(handle)
        return used(job)

    def _monitoring(self, handle: Handle) -> Mapping[str, Any]:
        """Returns where the job run's logs go: by its own configuration, or else by its application's."""
        job = self._final.get(handle.id) or self._get(handle)
        own: Mapping[str, Any] = job.get("configurationOverrides", {}).get("monitoringConfiguration", {})
        application = {} if own else self._emr.get_application(**self._place)["application"]
        return own or application.get("monitoringConfiguration", {})


def job_of(attempt: Attempt, environment: Mapping[str, str], code: Shipped) -> dict[str, Any]:
    """Returns StartJobRun's parameters, equal for the same attempt, as a client token demands."""
    timeout = min(attempt.timeout or LONGEST, LONGEST)
    parameters = [*disks(attempt), *options(attempt, code.package)]
    return {
        "clientToken": attempt.key,
        # If the title is too long, its end is kept: it has the key, by which the job run is found again.
        "name": attempt.title[-NAME_CHARACTERS:],
        "tags": tags(attempt),
        "executionTimeoutMinutes": max(1, math.ceil(timeout / timedelta(minutes=1))),
        "jobDriver": {
            "sparkSubmit": {
                "entryPoint": code.entry_point,
                "entryPointArguments": arguments(environment),
                "sparkSubmitParameters": shlex.join(parameters),
            }
        },
    }


def disks(attempt: Attempt) -> list[str]:
    """Returns options for the disks, such as 200G; none for a size that leaves them open.

    https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/jobs-spark.html
    """
    if (gib := attempt.size.disk_gib) is None:
        return []
    return [p for who in ("driver", "executor") for p in ("--conf", f"spark.emr-serverless.{who}.disk={gib}G")]


def logged_output(configuration: Mapping[str, Any]) -> str:
    """Returns which output of the driver is in CloudWatch: "stderr" if it is there, else "stdout", else "" for neither.

    configuration: a CloudWatchLoggingConfiguration; without logTypes, the service logs both outputs.
    """
    types = configuration.get("logTypes") or {"SPARK_DRIVER": ["STDERR"]}
    driver = {kind.lower() for kind in types.get("SPARK_DRIVER", [])}
    return next((kind for kind in ("stderr", "stdout") if kind in driver), "")


def verdict(job: Mapping[str, Any]) -> Ended:
    """Says how a job run ended. job: GetJobRun's jobRun."""
    state, details = job["state"], job["stateDetails"] or "no details given"
    if state == "SUCCESS":
        return Ended("ended with SUCCESS")
    if state == "CANCELLED":
        end = f"was cancelled in the console, by CancelJobRun or by its timeout ({details})"
        return Ended(end, stopped=True)
    if MEMORY.search(details):
        return Ended(f"ran out of memory: {details}; give the table a size with more memory_gib")
    # After "Last few exceptions" AWS quotes the step's error, which may mention networks and capacity too.
    own = details.partition("Last few exceptions")[0]
    if LOST_NETWORK.search(own):
        return Ended(f"lost its network connection, or S3 did not respond: {details}", transient=True)
    # A driver that ended with an exit code had its capacity.
    if "ExitCode" not in details and TRANSIENT.search(own):
        end = f"failed for lack of capacity: {details}; see the application's maximumCapacity"
        return Ended(end, transient=True)
    return Ended(f"failed: {details}")


def used(job: Mapping[str, Any]) -> Usage | None:
    """Returns a job run's usage as billed if the service tells it, else in total; None if it tells neither."""
    # Of the storage, the billed hours contain only what is charged; of the total hours, only a share is charged.
    for name, charged_share in (
        ("billedResourceUtilization", 1.0),
        ("totalResourceUtilization", _beyond_included(job)),
    ):
        if hours := job.get(name):
            vcpus, gib = hours.get("vCPUHour", 0.0), hours.get("memoryGBHour", 0.0)
            storage = charged_share * hours.get("storageGBHour", 0.0)
            return Usage(vcpus, gib, EMR_SERVERLESS.usd(vcpus, gib, storage), f"{name}: {EMR_SERVERLESS.source}")
    return None


def _beyond_included(job: Mapping[str, Any]) -> float:
    """Returns the share of the storage that is charged, beyond the included size; 0 if disks() asked for no size."""
    parameters = job.get("jobDriver", {}).get("sparkSubmit", {}).get("sparkSubmitParameters", "")
    asked = re.search(r"spark\.emr-serverless\.executor\.disk=(\d+)G", parameters)
    return max(0.0, 1 - EMR_SERVERLESS.included_disk_gib / int(asked[1])) if asked else 0.0

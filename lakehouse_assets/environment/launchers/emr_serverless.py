"""Runs workers as job runs of an EMR Serverless application, which decides about capacity.

Slots and retries are the poll loop's business.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from lakehouse_assets.environment.aws import client, is_transient
from lakehouse_assets.environment.computes import EmrServerless
from lakehouse_assets.environment.launchers.aws_launcher import AwsLauncher, cloudwatch_tail, s3_tail
from lakehouse_assets.environment.launchers.base import Attempt, Ended, Handle, NotStarted, Usage
from lakehouse_assets.environment.launchers.prices import EMR_SERVERLESS
from lakehouse_assets.environment.launchers.spark_submit import Shipped, arguments, options, ship
from lakehouse_assets.environment.settings import Settings

# https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_ListJobRuns.html, API_StartJobRun.html
PAGE, NAME_CHARACTERS, TAG_CHARACTERS = 50, 256, 256
NOT_IN_TAGS = re.compile(r"[^A-Za-z0-9 /_.:=+@-]")
RUNNING_STATES = ("SUBMITTED", "QUEUED", "PENDING", "SCHEDULED", "RUNNING", "CANCELLING")
# The longest timeout a batch job may have; without one it would get 12 hours.
LONGEST = timedelta(days=7)
# Reasons that pass: no capacity in the application or the account, throttling, faults of the service.
TRANSIENT = re.compile("capacity|insufficient|quota|limit exceeded|throttl|rate exceeded|internal error", re.IGNORECASE)
# How the service reports EX_TEMPFAIL, which a worker exits with when it lost its network.
LOST_NETWORK = re.compile(rf"ExitCode: {os.EX_TEMPFAIL}\b")
# https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/logging.html#jobs-log-storage-cw
LOG_GROUP = "/aws/emr-serverless"
MEMORY = re.compile(r"OutOfMemory|exit ?code:? 137|memory usage exceeded", re.IGNORECASE)


class EmrServerlessLauncher(AwsLauncher):
    """Runs workers as job runs on EMR Serverless. Handles are job run ids."""

    service = "EMR Serverless"

    def __init__(self, settings: Settings, serverless: EmrServerless, worker: str) -> None:
        """Makes the service's client. worker: the module that workers run."""
        super().__init__(settings)
        self._settings = serverless
        self._application = serverless.application
        self._worker = worker
        self._emr = client("emr-serverless")
        self._final: dict[str, Mapping[str, Any]] = {}  # by id: job runs that ended, as GetJobRun returned them

    @cache  # noqa: B019  a launcher lives as long as its process
    def _code(self, packages: tuple[str, ...]) -> Shipped:
        return ship(self._s3, self._settings.code, self._worker, packages)

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        """Starts the attempt's job run, or finds the one that was started for it before. Raises NotStarted."""
        try:
            job = job_of(attempt, environment, self._code(attempt.packages))
            role = self._settings.role
            return Handle(
                self._emr.start_job_run(applicationId=self._application, executionRoleArn=role, **job)["jobRunId"]
            )
        except (ClientError, BotoCoreError) as error:
            # The token was used by a request with other parameters: its tags differ when a run resumes another one.
            if _code(error) == "ConflictException" and (found := self.find(attempt)):
                return found
            transient = is_transient(error) or TRANSIENT.search(str(error)) is not None
            raise NotStarted(str(error), transient=transient, unconfirmed=is_transient(error)) from error

    def _find(self, attempt: Attempt) -> Handle | None:
        recent = self._list(createdAtAfter=datetime.now(UTC) - LONGEST)  # no job runs for longer
        return next((Handle(job["id"]) for job in recent if job.get("name", "").endswith(attempt.key)), None)

    def _stop(self, handles: Sequence[Handle]) -> dict[str, Exception]:
        (handle,) = handles
        try:
            self._emr.cancel_job_run(applicationId=self._application, jobRunId=handle.id)
        except ClientError as error:  # also for a job that has ended
            gone = _code(error) == "ResourceNotFoundException"
            if not gone and self._get(handle)["state"] in RUNNING_STATES:
                raise
        return {}

    def link(self, handle: Handle) -> str:
        """Returns the URL of the job run in the console."""
        region = self._emr.meta.region_name
        place = f"serverless/applications/{self._application}/job-runs/{handle.id}"
        return f"https://{region}.console.aws.amazon.com/emr/home?region={region}#/{place}"

    def _tail(self, handle: Handle) -> str:
        monitoring = self._monitoring(handle)
        place = f"applications/{self._application}/jobs/{handle.id}/SPARK_DRIVER"
        if uri := monitoring.get("s3MonitoringConfiguration", {}).get("logUri"):
            coming = "EMR Serverless copies logs now and then"
            return s3_tail(self._s3, f"{uri.rstrip('/')}/{place}/stderr.gz", coming)
        watch = monitoring.get("cloudWatchLoggingConfiguration", {})
        if watch.get("enabled") and (kind := logged_output(watch)):
            stream = f"{watch.get('logStreamNamePrefix', '').rstrip('/')}/{place}/{kind}"
            return cloudwatch_tail(self._logs, watch.get("logGroupName", LOG_GROUP), stream)
        return (
            "its log is in EMR Serverless's own storage, to be read in the console; with a "
            "cloudWatchLoggingConfiguration or s3MonitoringConfiguration of the application it is shown here"
        )

    def _usage(self, handle: Handle) -> Usage | None:
        job = self._final.get(handle.id) or self._get(handle)
        if "billedResourceUtilization" not in job:  # known a moment after the end
            job = self._get(handle)
        return used(job)

    # poll

    def _poll(self, handles: Sequence[Handle]) -> dict[str, Ended]:
        """Lists all running jobs, PAGE in each call; a call for each of the others finds out how it ended."""
        running = {job["id"]: job["state"] for job in self._list(states=list(RUNNING_STATES))}
        for handle in handles:
            if running.get(handle.id) == "RUNNING":
                # When it was first seen: lists have no time. The service itself ends a job that takes too long.
                self._begun.setdefault(handle.id, datetime.now(UTC))
        ends = {handle.id: self._end(handle) for handle in handles if handle.id not in running}
        return {id: end for id, end in ends.items() if end}

    def _end(self, handle: Handle) -> Ended | None:
        try:
            job = self._get(handle)
        except ClientError as error:
            if _code(error) != "ResourceNotFoundException":
                raise
            return Ended(f"is unknown to the application {self._application}: {error}")
        if job["state"] in RUNNING_STATES:
            return None
        self._final[handle.id] = job
        return verdict(job)

    def _list(self, **which: Any) -> Iterator[Mapping[str, Any]]:
        pages = self._emr.get_paginator("list_job_runs").paginate(
            applicationId=self._application, PaginationConfig={"PageSize": PAGE}, **which
        )
        yield from pages.search("jobRuns[]")

    def _get(self, handle: Handle) -> Mapping[str, Any]:
        job: Mapping[str, Any] = self._emr.get_job_run(applicationId=self._application, jobRunId=handle.id)["jobRun"]
        return job

    def _monitoring(self, handle: Handle) -> Mapping[str, Any]:
        """Returns the monitoringConfiguration of the job's logs: its own, else the application's."""
        job = self._final.get(handle.id) or self._get(handle)
        own: Mapping[str, Any] = job.get("configurationOverrides", {}).get("monitoringConfiguration", {})
        application = {} if own else self._emr.get_application(applicationId=self._application)["application"]
        return own or application.get("monitoringConfiguration", {})


def job_of(attempt: Attempt, environment: Mapping[str, str], code: Shipped) -> dict[str, Any]:
    """Returns StartJobRun's parameters, equal for the same attempt, as a client token demands."""
    timeout = min(attempt.timeout or LONGEST, LONGEST)
    parameters = [*disks(attempt), *options(attempt, code.package)]
    return {
        "clientToken": attempt.key,
        # The end of the title is kept: the job is found by the key there.
        "name": attempt.title[-NAME_CHARACTERS:],
        "tags": {name: NOT_IN_TAGS.sub("", value)[:TAG_CHARACTERS] for name, value in attempt.tags.items()},
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
    """Returns the options that size the workers' disks, such as 200G; empty where the attempt sets no size.

    https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/jobs-spark.html
    """
    if (gib := attempt.size.disk_gib) is None:
        return []
    return [p for who in ("driver", "executor") for p in ("--conf", f"spark.emr-serverless.{who}.disk={gib}G")]


def logged_output(configuration: Mapping[str, Any]) -> str:
    """Says which output of the driver is in CloudWatch: ``stderr``, else ``stdout``, else none (empty).

    configuration: a CloudWatchLoggingConfiguration; without types both are.
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
        end = f"was cancelled, in the console, by CancelJobRun or by its timeout ({details})"
        return Ended(end, stopped=True)
    if MEMORY.search(details):
        return Ended(f"ran out of memory: {details}; give the table a size with more memory_gib")
    if LOST_NETWORK.search(details.partition("Last few exceptions")[0]):
        return Ended(f"lost its network, or S3 did not serve it: {details}", transient=True)
    # After "Last few exceptions" AWS quotes what the step raised, which may mention capacity as well.
    if "ExitCode" not in details and TRANSIENT.search(details.partition("Last few exceptions")[0]):
        end = f"failed because capacity was missing: {details}; see the application's maximumCapacity"
        return Ended(end, transient=True)
    return Ended(f"failed: {details}")


def used(job: Mapping[str, Any]) -> Usage | None:
    """Returns what a job run used: as billed where that is known already, else in total. job: as for verdict()."""
    # The billed hours of storage leave out what is included in the price, the total ones don't.
    for name, beyond in (("billedResourceUtilization", 1.0), ("totalResourceUtilization", _beyond_included(job))):
        if hours := job.get(name):
            vcpus, gib = hours.get("vCPUHour", 0.0), hours.get("memoryGBHour", 0.0)
            storage = beyond * hours.get("storageGBHour", 0.0)
            return Usage(vcpus, gib, EMR_SERVERLESS.usd(vcpus, gib, storage), f"{name}: {EMR_SERVERLESS.source}")
    return None


def _beyond_included(job: Mapping[str, Any]) -> float:
    """Returns the share of the workers' storage that is billed; 0 where disks() set none: the price includes it."""
    parameters = job.get("jobDriver", {}).get("sparkSubmit", {}).get("sparkSubmitParameters", "")
    asked = re.search(r"spark\.emr-serverless\.executor\.disk=(\d+)G", parameters)
    return max(0.0, 1 - EMR_SERVERLESS.included_disk_gib / int(asked[1])) if asked else 0.0


def _code(error: Exception) -> str:
    return error.response["Error"]["Code"] if isinstance(error, ClientError) else ""

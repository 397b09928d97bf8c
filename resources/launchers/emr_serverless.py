"""Workers as job runs of an EMR Serverless application.
Its capacity is the application's; no slots, no retries, no verdict by receipt."""

from __future__ import annotations

import logging
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from resources.aws import client, passing
from resources.launchers import cloudwatch_log, s3_log, spark_submit
from resources.launchers.base import Attempt, Ended, Handle, NotStarted, Usage
from resources.launchers.code import Shipped, ship
from resources.launchers.prices import EMR_SERVERLESS
from resources.launchers.remote import RemoteLauncher
from resources.settings import Settings

logger = logging.getLogger(__name__)

# https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_ListJobRuns.html, API_StartJobRun.html
PAGE, NAME_CHARACTERS, TAG_CHARACTERS = 50, 256, 256
NOT_IN_TAGS = re.compile(r"[^A-Za-z0-9 /_.:=+@-]")
RUNNING_STATES = ("SUBMITTED", "QUEUED", "PENDING", "SCHEDULED", "RUNNING", "CANCELLING")
# The longest timeout a batch job may have; without one it would get 12 hours.
LONGEST = timedelta(days=7)
# A job is looked for by its name when nobody heard of its id: so shortly ago that older ones need not be listed.
LOOKED_FOR = timedelta(days=7)
# Trouble that passes: the application's or the account's capacity, throttling, the service's own.
PASSING = re.compile(r"capacity|insufficient|quota|limit exceeded|throttl|rate exceeded|internal error", re.IGNORECASE)
# The worker's EX_TEMPFAIL, see worker/pipes.py.
CUT_OFF = re.compile(rf"ExitCode: {os.EX_TEMPFAIL}\b")
# https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/logging.html#jobs-log-storage-cw
LOG_GROUP = "/aws/emr-serverless"
MEMORY = re.compile(r"OutOfMemory|exit ?code:? 137|memory usage exceeded", re.IGNORECASE)


class EmrServerlessLauncher(RemoteLauncher):
    """Job runs on EMR Serverless. Handles are job run ids."""

    service = "EMR Serverless"

    def __init__(
        self, settings: Settings, worker: str, *, poll_seconds: float = 5.0, code: Shipped | None = None
    ) -> None:
        """settings: with ``emr_serverless``. worker: its module. code: where its code lies, if
        that is known already."""
        assert settings.emr_serverless is not None, "read_settings reads what its compute needs"
        super().__init__(settings)
        self.poll_seconds = poll_seconds
        self._settings = settings.emr_serverless
        self._application = settings.emr_serverless.application
        self._emr = client("emr-serverless")
        self._logs: Any = None
        self._worker = worker
        self._code = code
        self._told: dict[str, Mapping[str, Any]] = {}  # job runs that ended, as GetJobRun had them

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        try:
            self._code = self._code or ship(self._s3, self._settings.code, self._worker)
            job = job_of(attempt, environment, self._code)
            told = self._emr.start_job_run(applicationId=self._application, executionRoleArn=self._settings.role, **job)
            return Handle(told["jobRunId"])
        except (ClientError, BotoCoreError) as error:
            # The token is taken by a request that differed: by its tags, when another run resumed this one's work.
            if _code(error) == "ConflictException" and (found := self.find(attempt)):
                return found
            transient = passing(error) or PASSING.search(str(error)) is not None
            raise NotStarted(str(error), transient=transient, unheard=passing(error)) from error

    def _find(self, attempt: Attempt) -> Handle | None:
        for job in self._list(createdAtAfter=datetime.now(UTC) - LOOKED_FOR):
            if job.get("name", "").endswith(attempt.key):
                return Handle(job["id"])
        return None

    def _stop(self, handles: Sequence[Handle]) -> dict[str, Exception]:
        (handle,) = handles
        try:
            self._emr.cancel_job_run(applicationId=self._application, jobRunId=handle.id)
        except ClientError as error:
            # A job that ended is refused, as not being in a state to be cancelled.
            gone = _code(error) == "ResourceNotFoundException"
            if not gone and self._get(handle)["state"] in RUNNING_STATES:
                raise
        return {}

    def link(self, handle: Handle) -> str:
        region = self._emr.meta.region_name
        place = f"serverless/applications/{self._application}/job-runs/{handle.id}"
        return f"https://{region}.console.aws.amazon.com/emr/home?region={region}#/{place}"

    def tail(self, handle: Handle) -> str:
        try:
            monitoring = self._monitoring(handle)
        except (ClientError, BotoCoreError) as error:
            return f"the log's place can't be found: {error}"
        place = f"applications/{self._application}/jobs/{handle.id}/SPARK_DRIVER"
        if uri := monitoring.get("s3MonitoringConfiguration", {}).get("logUri"):
            coming = "EMR Serverless copies logs now and then"
            return s3_log.tail(self._s3, f"{uri.rstrip('/')}/{place}/stderr.gz", coming)
        watch = monitoring.get("cloudWatchLoggingConfiguration", {})
        if watch.get("enabled") and (kind := watched(watch)):
            self._logs = self._logs or client("logs")
            stream = f"{watch.get('logStreamNamePrefix', '').rstrip('/')}/{place}/{kind}"
            return cloudwatch_log.tail(self._logs, watch.get("logGroupName", LOG_GROUP), stream)
        return (
            "its log is in EMR Serverless's own storage, to be read in the console; the application's "
            "cloudWatchLoggingConfiguration or s3MonitoringConfiguration brings it here"
        )

    def usage(self, handle: Handle) -> Usage | None:
        try:
            told = self._told.get(handle.id) or self._get(handle)
            if "billedResourceUtilization" not in told:  # known a moment behind the end
                told = self._get(handle)
        except (ClientError, BotoCoreError) as error:
            logger.warning("what %s used is unknown: %s", handle.id, error)
            return None
        return used(told)

    # poll

    def _poll(self, handles: Sequence[Handle]) -> dict[str, Ended]:
        """One list of all that runs; each that is not in it is asked for by itself, which is at its end only."""
        running = {job["id"]: job["state"] for job in self._list(states=list(RUNNING_STATES))}
        for handle in handles:
            if running.get(handle.id) == "RUNNING":
                # As it was seen: lists don't tell, and the service itself ends a job that takes too long.
                self._begun.setdefault(handle.id, datetime.now(UTC))
        return dict(self._judged([handle for handle in handles if handle.id not in running]))

    def _judged(self, handles: Sequence[Handle]) -> Iterator[tuple[str, Ended]]:
        for handle in handles:
            try:
                told = self._get(handle)
            except ClientError as error:
                if _code(error) != "ResourceNotFoundException":
                    raise
                yield handle.id, Ended(f"is unknown to the application {self._application}: {error}")
                continue
            if told["state"] not in RUNNING_STATES:
                self._told[handle.id] = told
                yield handle.id, verdict(told)

    def _list(self, **which: Any) -> Iterator[Mapping[str, Any]]:
        pages = self._emr.get_paginator("list_job_runs").paginate(
            applicationId=self._application, PaginationConfig={"PageSize": PAGE}, **which
        )
        for page in pages:
            yield from page["jobRuns"]

    def _get(self, handle: Handle) -> Mapping[str, Any]:
        return self._emr.get_job_run(applicationId=self._application, jobRunId=handle.id)["jobRun"]

    def _monitoring(self, handle: Handle) -> Mapping[str, Any]:
        """Where the job's logs go: by its own configuration, else the application's."""
        told = self._told.get(handle.id) or self._get(handle)
        if own := told.get("configurationOverrides", {}).get("monitoringConfiguration"):
            return own
        application = self._emr.get_application(applicationId=self._application)["application"]
        return application.get("monitoringConfiguration", {})


def job_of(attempt: Attempt, environment: Mapping[str, str], code: Shipped) -> dict[str, Any]:
    """StartJobRun's parameters for an attempt: the same whenever it is made, as its client token demands."""
    timeout = min(attempt.timeout or LONGEST, LONGEST)
    conf = disks(attempt)
    parameters = [*conf, *spark_submit.options(attempt, code.package)]
    return {
        "clientToken": attempt.key,
        # From the end: the key is there, by which the job is found.
        "name": attempt.title[-NAME_CHARACTERS:],
        "tags": {name: NOT_IN_TAGS.sub("", value)[:TAG_CHARACTERS] for name, value in attempt.tags.items()},
        "executionTimeoutMinutes": max(1, math.ceil(timeout / timedelta(minutes=1))),
        "jobDriver": {
            "sparkSubmit": {
                "entryPoint": code.entry_point,
                "entryPointArguments": spark_submit.arguments(environment),
                "sparkSubmitParameters": shlex.join(parameters),
            }
        },
    }


def disks(attempt: Attempt) -> list[str]:
    """https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/jobs-spark.html: as 20G to 200G."""
    if (gib := attempt.size.disk_gib) is None:
        return []
    return [p for who in ("driver", "executor") for p in ("--conf", f"spark.emr-serverless.{who}.disk={gib}G")]


def watched(configuration: Mapping[str, Any]) -> str:
    """The driver's output that goes to CloudWatch: stderr, or stdout where that alone does; empty where none does.

    configuration: a CloudWatchLoggingConfiguration; without types both go.
    """
    types = configuration.get("logTypes") or {"SPARK_DRIVER": ["STDERR"]}
    driver = {kind.lower() for kind in types.get("SPARK_DRIVER", [])}
    return next((kind for kind in ("stderr", "stdout") if kind in driver), "")


def verdict(told: Mapping[str, Any]) -> Ended:
    """What the end of a job run means. told: GetJobRun's jobRun."""
    state, details = told["state"], told["stateDetails"] or "no details given"
    if state == "SUCCESS":
        return Ended("ended with SUCCESS")
    if state == "CANCELLED":
        return Ended(
            f"was cancelled, in the console, by CancelJobRun or by its timeout ({details}); re-execute from failure to "
            "do its part again",
            stopped=True,
        )
    if MEMORY.search(details):
        return Ended(f"ran out of memory: {details}; give the table a size with more memory_gib")
    if CUT_OFF.search(details.partition("Last few exceptions")[0]):
        return Ended(f"lost its network, or S3 did not serve it: {details}", transient=True)
    # Behind it AWS quotes what the step raised, which may speak of capacity as well.
    if "ExitCode" not in details and PASSING.search(details.partition("Last few exceptions")[0]):
        return Ended(f"failed for want of capacity: {details}; see the application's maximumCapacity", transient=True)
    return Ended(f"failed: {details}")


def used(told: Mapping[str, Any]) -> Usage | None:
    """What a job run used: as billed where that is known already, else as used. told: GetJobRun's jobRun."""
    # What is billed is beyond the included storage already, what is used is all of it.
    for name, beyond in (("billedResourceUtilization", 1.0), ("totalResourceUtilization", _beyond_included(told))):
        if hours := told.get(name):
            vcpus, gib = hours.get("vCPUHour", 0.0), hours.get("memoryGBHour", 0.0)
            storage = beyond * hours.get("storageGBHour", 0.0)
            return Usage(vcpus, gib, EMR_SERVERLESS.usd(vcpus, gib, storage), f"{name}: {EMR_SERVERLESS.source}")
    return None


def _beyond_included(told: Mapping[str, Any]) -> float:
    """The share of the workers' storage that is billed: of what disks() asked for, else they have the included."""
    parameters = told.get("jobDriver", {}).get("sparkSubmit", {}).get("sparkSubmitParameters", "")
    asked = re.search(r"spark\.emr-serverless\.executor\.disk=(\d+)G", parameters)
    return max(0.0, 1 - EMR_SERVERLESS.included_disk_gib / int(asked[1])) if asked else 0.0


def _code(error: Exception) -> str:
    return error.response["Error"]["Code"] if isinstance(error, ClientError) else ""

"""EMR Serverless as its API reference has it: job runs of one application, client tokens, states, lists that lag.
Jobs really run (spark_node.py); capacity is a number of jobs at once."""

from __future__ import annotations

import gzip
import itertools
import re
import shlex
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support.fakes.agent import Process
from tests.support.fakes.spark_node import SparkNode
from tests.support.fakes.wire import Fault

# https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_StartJobRun.html
PAGE, NAME, PARAMETERS, LONGEST_MINUTES, DEFAULT_MINUTES, TAGS = 50, 256, 102_400, 10_080, 720, 200
TOKEN = re.compile(r"[A-Za-z0-9._-]{1,64}")
TAG_KEY, TAG_VALUE = re.compile(r"[A-Za-z0-9 /_.:=+@-]{1,128}"), re.compile(r"[A-Za-z0-9 /_.:=+@-]{0,256}")
UNFINISHED = ("SUBMITTED", "PENDING", "SCHEDULED", "RUNNING", "CANCELLING", "QUEUED")
APPLICATION = "00f1abcdexample"
ROLE = "arn:aws:iam::123456789012:role/worker"
NUMBERS = itertools.count(1)


@dataclass
class Job:
    request: dict[str, Any]
    id: str = field(default_factory=lambda: f"00f{next(NUMBERS):013d}")
    state: str = "SUBMITTED"
    details: str = "SUBMITTED"
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    started: datetime | None = None
    ended: datetime | None = None
    process: Process | None = None

    def summary(self) -> dict[str, Any]:
        return {
            "applicationId": APPLICATION,
            **({"name": self.request["name"]} if "name" in self.request else {}),
            "arn": f"arn:aws:emr-serverless:us-east-1:123456789012:/applications/{APPLICATION}/jobruns/{self.id}",
            "createdBy": "arn:aws:iam::123456789012:user/somebody",
            "createdAt": self.created,
            "updatedAt": self.ended or self.started or self.created,
            "executionRole": self.request["executionRoleArn"],
            "state": self.state,
            "stateDetails": self.details,
            "releaseLabel": "emr-7.11.0",
        }

    def whole(self) -> dict[str, Any]:
        description = self.summary() | {"jobRunId": self.id, "jobDriver": self.request["jobDriver"]}
        description["executionTimeoutMinutes"] = self.request.get("executionTimeoutMinutes", DEFAULT_MINUTES)
        description["tags"] = self.request.get("tags", {})
        if "configurationOverrides" in self.request:
            description["configurationOverrides"] = self.request["configurationOverrides"]
        if self.started:
            description["startedAt"] = self.started
        if self.started and self.ended:
            seconds = (self.ended - self.started).total_seconds()
            description |= {"endedAt": self.ended, "totalExecutionDurationSeconds": round(seconds)}
            hours = seconds / 3600
            description["billedResourceUtilization"] = {
                "vCPUHour": 8 * hours,
                "memoryGBHour": 32 * hours,
                "storageGBHour": 0.0,
            }
        return description


class FakeEmrServerless:
    """The service. lag: seconds for which lists don't know a new job. capacity: jobs at once. logs_come: whether logs
    reach S3."""

    def __init__(self, node: SparkNode, log_uri: str) -> None:
        self.node, self.log_uri = node, log_uri
        self.jobs: dict[str, Job] = {}
        self.lag, self.capacity, self.logs_come = 0.0, 2, True
        self.monitoring: dict[str, Any] = {"s3MonitoringConfiguration": {"logUri": log_uri}}
        self.lock = threading.RLock()

    # The API

    def start_job_run(self, applicationId: str, **request: Any) -> dict[str, Any]:
        self._application(applicationId)
        _check_request(request)
        token = request["clientToken"]
        with self.lock:
            job = next((job for job in self.jobs.values() if job.request["clientToken"] == token), None)
            if job is None:
                job = Job(request)
                self.jobs[job.id] = job
            elif job.request != request:
                raise Fault("ConflictException", f"Client token {token} was used with other parameters.", 409)
        return {"applicationId": applicationId, "jobRunId": job.id, "arn": job.summary()["arn"]}

    def list_job_runs(
        self,
        applicationId: str,
        nextToken: str = "0",
        maxResults: int = PAGE,
        createdAtAfter: datetime | None = None,
        createdAtBefore: datetime | None = None,
        states: Sequence[str] = (),
        mode: str = "BATCH",
    ) -> dict[str, Any]:
        self._application(applicationId)
        _demand(1 <= maxResults <= PAGE and len(states) <= 8, "ValidationException", "maxResults or states")
        with self.lock:
            known = [j for j in self.jobs.values() if (datetime.now(UTC) - j.created).total_seconds() >= self.lag]
            found = [
                job.summary() | {"id": job.id}
                for job in reversed(known)
                if (not states or job.state in states)
                and (not createdAtAfter or job.created >= createdAtAfter)
                and (not createdAtBefore or job.created < createdAtBefore)
            ]
        start = int(nextToken)
        more = {"nextToken": str(start + maxResults)} if start + maxResults < len(found) else {}
        return {"jobRuns": found[start : start + maxResults], **more}

    def get_job_run(self, applicationId: str, jobRunId: str, attempt: int | None = None) -> dict[str, Any]:
        self._application(applicationId)
        return {"jobRun": self._job(jobRunId).whole()}

    def cancel_job_run(self, applicationId: str, jobRunId: str, **_: Any) -> dict[str, Any]:
        self._application(applicationId)
        job = self._job(jobRunId)
        _demand(job.state in UNFINISHED, "ValidationException", f"Job run {jobRunId} is in state {job.state}.")
        self.cancel(job)
        return {"applicationId": applicationId, "jobRunId": jobRunId}

    def get_application(self, applicationId: str) -> dict[str, Any]:
        self._application(applicationId)
        at = datetime.now(UTC)
        return {
            "application": {
                "applicationId": applicationId,
                "arn": f"arn:aws:emr-serverless:us-east-1:123456789012:/applications/{applicationId}",
                "releaseLabel": "emr-7.11.0",
                "type": "Spark",
                "state": "STARTED",
                "createdAt": at,
                "updatedAt": at,
                "monitoringConfiguration": self.monitoring,
            }
        }

    def lines(self, group: str, stream: str) -> list[str] | None:
        """What CloudWatch has of the drivers' output, by
        https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/logging.html#jobs-log-storage-cw."""
        logging = self.monitoring.get("cloudWatchLoggingConfiguration", {"enabled": False})
        types = logging.get("logTypes", {"SPARK_DRIVER": ["STDOUT", "STDERR"]}).get("SPARK_DRIVER", [])
        if not logging["enabled"] or group != logging.get("logGroupName", "/aws/emr-serverless"):
            return None
        for job in self.jobs.values():
            place = f"{logging.get('logStreamNamePrefix', '')}/applications/{APPLICATION}/jobs/{job.id}/SPARK_DRIVER"
            if job.process and stream in [f"{place}/{kind.lower()}" for kind in types]:
                return job.process.tail(10_000)
        return None

    # What happens by itself, and what a test lets happen

    def tick(self) -> None:
        """Look at all that runs; start what may run."""
        with self.lock:
            for job in self.jobs.values():
                if job.state == "RUNNING" and job.process and job.process.look() == "ended":
                    self._finish(job)
            running = sum(job.state == "RUNNING" for job in self.jobs.values())
            waiting = [job for job in self.jobs.values() if job.state in ("SUBMITTED", "PENDING")]
            for job in waiting:
                job.state = job.details = "PENDING"
            for job in waiting[: max(0, self.capacity - running)]:
                self._start(job)

    def cancel(self, job: Job, details: str = "CANCELLED") -> None:
        """As CancelJobRun does, or a person in the console."""
        self._end(job, "CANCELLED", details)

    def fail(self, job: Job, details: str) -> None:
        """The job is lost, as the details say."""
        self._end(job, "FAILED", details)

    def end(self) -> None:
        """Nothing runs any more."""
        for job in self.having("RUNNING"):
            self.cancel(job)

    def having(self, *states: str) -> list[Job]:
        with self.lock:
            return [job for job in self.jobs.values() if job.state in states]

    def _end(self, job: Job, state: str, details: str) -> None:
        with self.lock:
            if job.process:
                job.process.kill()
            job.state, job.details, job.ended = state, details, datetime.now(UTC)

    def _start(self, job: Job) -> None:
        driver = job.request["jobDriver"]["sparkSubmit"]
        arguments = shlex.split(driver.get("sparkSubmitParameters", ""))
        arguments += [driver["entryPoint"], *driver.get("entryPointArguments", [])]
        folder = self.node.folder / "jobs" / job.id
        folder.mkdir(parents=True)
        job.process = self.node.submit(arguments, folder / "stderr")
        job.process.look()
        job.state, job.details, job.started = "RUNNING", "RUNNING", datetime.now(UTC)

    def _finish(self, job: Job) -> None:
        assert job.process
        job.ended = datetime.now(UTC)
        if job.process.code == 0:
            job.state, job.details = "SUCCESS", "SUCCESS"
        else:
            job.state = "FAILED"
            job.details = (
                f"Job failed, please check complete logs. ExitCode: {job.process.code}. Last few exceptions: …"
            )
        place = f"{self.log_uri}/applications/{APPLICATION}/jobs/{job.id}/SPARK_DRIVER/stderr.gz"
        if self.logs_come:
            self.node.store(place, gzip.compress(Path(job.process.log).read_bytes()))

    def _application(self, id: str) -> None:
        _demand(id == APPLICATION, "ResourceNotFoundException", f"Application {id} does not exist.", 404)

    def _job(self, id: str) -> Job:
        _demand(id in self.jobs, "ResourceNotFoundException", f"JobRun {id} does not exist.", 404)
        return self.jobs[id]


def _check_request(request: dict[str, Any]) -> None:
    minutes = request.get("executionTimeoutMinutes", DEFAULT_MINUTES)
    tags = request.get("tags", {})
    driver = request["jobDriver"]["sparkSubmit"]
    for condition, what in (
        (TOKEN.fullmatch(request["clientToken"]), "clientToken"),
        (re.fullmatch(r"arn:aws[\w-]*:iam::\d{12}:role/.+", request["executionRoleArn"]), "executionRoleArn"),
        (1 <= len(request.get("name", "x")) <= NAME, "name"),
        (1 <= minutes <= LONGEST_MINUTES, "executionTimeoutMinutes"),
        (len(tags) <= TAGS and all(TAG_KEY.fullmatch(k) and TAG_VALUE.fullmatch(v) for k, v in tags.items()), "tags"),
        (1 <= len(driver.get("sparkSubmitParameters", "x")) <= PARAMETERS, "sparkSubmitParameters"),
    ):
        _demand(condition, "ValidationException", f"Value at '{what}' failed to satisfy constraint.")


def _demand(condition: object, code: str, message: str, status: int = 400) -> None:
    if not condition:
        raise Fault(code, message, status)

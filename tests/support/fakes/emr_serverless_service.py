"""EMR Serverless as its API reference has it: job runs of one application, their states, and where their logs go.
How jobs run is job_runs.py's."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from tests.support.fakes.job_runs import PAGE, FakeJobRuns, Job, demand, demand_values
from tests.support.fakes.spark_node import SparkNode
from tests.support.fakes.wire import Fault

# https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_StartJobRun.html
NAME, PARAMETERS, LONGEST_MINUTES, DEFAULT_MINUTES, TAGS = 256, 102_400, 10_080, 720, 200
UNFINISHED = ("SUBMITTED", "PENDING", "SCHEDULED", "RUNNING", "CANCELLING", "QUEUED")
APPLICATION = "00f1abcdexample"


class FakeEmrServerless(FakeJobRuns):
    """The service. log_uri: where its application has its logs."""

    waiting, well = ("SUBMITTED", "PENDING"), "SUCCESS"
    lost = "Job failed, worker was lost: insufficient capacity in the Availability Zone."

    def __init__(self, node: SparkNode, log_uri: str) -> None:
        super().__init__(node)
        self.log_uri = log_uri
        self.monitoring: dict[str, Any] = {"s3MonitoringConfiguration": {"logUri": log_uri}}

    def submitted(self, job: Job) -> dict[str, Any]:
        driver: dict[str, Any] = job.request["jobDriver"]["sparkSubmit"]
        return driver

    def log_of(self, job: Job) -> str:
        return f"{self.log_uri}/applications/{APPLICATION}/jobs/{job.id}/SPARK_DRIVER/stderr.gz"

    def exited(self, code: int) -> str:
        return f"Job failed, please check complete logs. ExitCode: {code}. Last few exceptions: …"

    # The API

    def start_job_run(self, applicationId: str, **request: Any) -> dict[str, Any]:
        self._application(applicationId)
        name, minutes = request.get("name", "x"), request.get("executionTimeoutMinutes", DEFAULT_MINUTES)
        parameters = request["jobDriver"]["sparkSubmit"].get("sparkSubmitParameters", "x")
        conditions = {
            "name": 1 <= len(name) <= NAME,
            "executionTimeoutMinutes": 1 <= minutes <= LONGEST_MINUTES,
            "sparkSubmitParameters": 1 <= len(parameters) <= PARAMETERS,
        }
        demand_values(request, conditions, TAGS)
        used = f"Client token {request['clientToken']} was used with other parameters."
        job = self.make(request, Fault("ConflictException", used, 409))
        return {"applicationId": applicationId, "jobRunId": job.id, "arn": summary(job)["arn"]}

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

        def which(job: Job) -> bool:
            late = createdAtBefore is not None and job.created >= createdAtBefore
            return not late and (createdAtAfter is None or job.created >= createdAtAfter)

        return self.page(nextToken, maxResults, states, which, lambda job: summary(job) | {"id": job.id})

    def get_job_run(self, applicationId: str, jobRunId: str, attempt: int | None = None) -> dict[str, Any]:
        self._application(applicationId)
        return {"jobRun": whole(self._job(jobRunId))}

    def cancel_job_run(self, applicationId: str, jobRunId: str, **_: Any) -> dict[str, Any]:
        self._application(applicationId)
        job = self._job(jobRunId)
        demand(job.state in UNFINISHED, "ValidationException", f"Job run {jobRunId} is in state {job.state}.")
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

    def _application(self, id: str) -> None:
        demand(id == APPLICATION, "ResourceNotFoundException", f"Application {id} does not exist.", 404)

    def _job(self, id: str) -> Job:
        demand(id in self.jobs, "ResourceNotFoundException", f"JobRun {id} does not exist.", 404)
        return self.jobs[id]


def summary(job: Job) -> dict[str, Any]:
    """A job run as lists have it, but for its id."""
    return {
        "applicationId": APPLICATION,
        **({"name": job.request["name"]} if "name" in job.request else {}),
        "arn": f"arn:aws:emr-serverless:us-east-1:123456789012:/applications/{APPLICATION}/jobruns/{job.id}",
        "createdBy": "arn:aws:iam::123456789012:user/somebody",
        "createdAt": job.created,
        "updatedAt": job.ended or job.started or job.created,
        "executionRole": job.request["executionRoleArn"],
        "state": job.state,
        "stateDetails": job.details,
        "releaseLabel": "emr-7.11.0",
    }


def whole(job: Job) -> dict[str, Any]:
    """A job run as GetJobRun has it."""
    description = summary(job) | {"jobRunId": job.id, "jobDriver": job.request["jobDriver"]}
    description["executionTimeoutMinutes"] = job.request.get("executionTimeoutMinutes", DEFAULT_MINUTES)
    description["tags"] = job.request.get("tags", {})
    if "configurationOverrides" in job.request:
        description["configurationOverrides"] = job.request["configurationOverrides"]
    if job.started:
        description["startedAt"] = job.started
    if job.started and job.ended:
        seconds = (job.ended - job.started).total_seconds()
        description |= {"endedAt": job.ended, "totalExecutionDurationSeconds": round(seconds)}
        hours = seconds / 3600
        description["billedResourceUtilization"] = {
            "vCPUHour": 8 * hours,
            "memoryGBHour": 32 * hours,
            "storageGBHour": 0.0,
        }
    return description

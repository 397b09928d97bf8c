"""What EMR Serverless and EMR on EKS do alike: job runs with tokens and states, in lists that lag; a site of either.
Jobs really run (spark_node.py); capacity is a number of jobs at once."""

from __future__ import annotations

import gzip
import itertools
import re
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from tests.support.fakes.agent import Process, ticking
from tests.support.fakes.plain_node import plain_node
from tests.support.fakes.spark_node import SparkNode, spark_node
from tests.support.fakes.wire import Fault, Service, serving
from tests.support.servers import SeaweedFS

PAGE = 50
TAG_KEY, TAG_VALUE = re.compile(r"[A-Za-z0-9 /_.:=+@-]{1,128}"), re.compile(r"[A-Za-z0-9 /_.:=+@-]{0,256}")
TOKEN = re.compile(r"[A-Za-z0-9._-]{1,64}")
ROLE = "arn:aws:iam::123456789012:role/lakehouse-job"
NUMBERS = itertools.count(1)


@dataclass
class Job:
    """One job run. request: StartJobRun's parameters. details: its stateDetails. why: its failureReason."""

    request: dict[str, Any]
    id: str
    state: str
    details: str
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    started: datetime | None = None
    ended: datetime | None = None
    process: Process | None = None
    why: str = ""


class FakeJobRuns:
    """The service. lag: seconds for which lists don't know a new job. capacity: jobs at once. logs_come: whether logs
    reach S3."""

    waiting: ClassVar[tuple[str, ...]]
    """The states of a job that has not begun: its first, and those after it; the last is shown while it waits."""
    well: ClassVar[str]
    """The state of a job that ended well."""
    lost: ClassVar[str]
    """What is said of a job that nobody is to blame for."""

    def __init__(self, node: SparkNode) -> None:
        self.node = node
        self.jobs: dict[str, Job] = {}
        self.lag, self.capacity, self.logs_come = 0.0, 2, True
        self.lock = threading.RLock()

    # What each service has in its own way

    def submitted(self, job: Job) -> dict[str, Any]:
        """Returns the job driver: its entry point, its arguments, and spark-submit's parameters."""
        raise NotImplementedError

    def log_of(self, job: Job) -> str:
        """Returns the place of the driver's log in S3."""
        raise NotImplementedError

    def exited(self, code: int) -> str:
        """Says how a job ended whose driver ended with the code."""
        raise NotImplementedError

    # What happens by itself, and what a test lets happen

    def make(self, request: dict[str, Any], conflict: Fault) -> Job:
        """Returns the job of the token, a new one if there is none; raises the conflict if it had other parameters."""
        token = request["clientToken"]
        with self.lock:
            job = next((job for job in self.jobs.values() if job.request["clientToken"] == token), None)
            if job is None:
                state = self.waiting[0]
                job = Job(request, f"00{next(NUMBERS):017d}", state, state)
                self.jobs[job.id] = job
            elif job.request != request:
                raise conflict
        return job

    def page(
        self,
        next_token: str,
        most: int,
        states: Sequence[str],
        which: Callable[[Job], bool],
        show: Callable[[Job], Any],
    ) -> dict[str, Any]:
        """Returns a page of the list of those jobs, as they are shown, and the next one's token where there is one."""
        demand(1 <= most <= PAGE, "ValidationException", "Value at 'maxResults' failed to satisfy constraint.")
        with self.lock:
            known = [j for j in self.jobs.values() if (datetime.now(UTC) - j.created).total_seconds() >= self.lag]
            found = [show(job) for job in reversed(known) if (not states or job.state in states) and which(job)]
        start = int(next_token)
        more = {"nextToken": str(start + most)} if start + most < len(found) else {}
        return {"jobRuns": found[start : start + most], **more}

    def tick(self) -> None:
        """Look at all that runs; start what may run."""
        with self.lock:
            for job in self.jobs.values():
                if job.state == "RUNNING" and job.process and job.process.look() == "ended":
                    self._finish(job)
            running = sum(job.state == "RUNNING" for job in self.jobs.values())
            waiting = [job for job in self.jobs.values() if job.state in self.waiting]
            for job in waiting:
                job.state = job.details = self.waiting[-1]
            for job in waiting[: max(0, self.capacity - running)]:
                self._start(job)

    def cancel(self, job: Job, details: str = "CANCELLED") -> None:
        """As CancelJobRun does, or a person in the console."""
        self._end(job, "CANCELLED", details)

    def fail(self, job: Job, details: str, why: str = "") -> None:
        """The job is lost, as the details say. why: the failureReason, where the service has one."""
        self._end(job, "FAILED", details, why)

    def end(self) -> None:
        """Nothing runs any more."""
        for job in self.having("RUNNING"):
            self.cancel(job)

    def having(self, *states: str) -> list[Job]:
        with self.lock:
            return [job for job in self.jobs.values() if job.state in states]

    def _end(self, job: Job, state: str, details: str, why: str = "") -> None:
        with self.lock:
            if job.process:
                job.process.kill()
            job.state, job.details, job.why, job.ended = state, details, why, datetime.now(UTC)

    def _start(self, job: Job) -> None:
        driver = self.submitted(job)
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
            job.state = job.details = self.well
        else:
            job.state, job.details = "FAILED", self.exited(job.process.code or 0)
        if self.logs_come:
            self.node.store(self.log_of(job), gzip.compress(Path(job.process.log).read_bytes()))


@dataclass
class JobRunsSite:
    """One of the services, running, and CloudWatch Logs. environment: what a code location needs to send workers there.
    asks: the operation that asks for a worker."""

    emr: Any
    service: Service
    environment: dict[str, str]
    asks: ClassVar[str] = "StartJobRun"

    def interrupt(self) -> None:
        """The workers that run are lost, and it is nobody's fault."""
        for job in self.emr.having("RUNNING"):
            self.emr.fail(job, self.emr.lost)

    def cancel(self) -> None:
        """Somebody cancels the workers that run, in the console."""
        for job in self.emr.having("RUNNING"):
            self.emr.cancel(job)

    def running(self) -> int:
        return len(self.emr.having("RUNNING"))

    def started(self) -> int:
        return len(self.emr.jobs)

    def workers(self) -> list[tuple[str, Process | None]]:
        """Of each worker that was asked for, the key of its attempt and its process, if it has one already."""
        return [(job.request["clientToken"], job.process) for job in self.emr.jobs.values()]


@contextmanager
def job_runs_site(
    make: Callable[[Any], FakeJobRuns],
    api: str,
    own: Mapping[str, str],
    weed: SeaweedFS,
    folder: Path,
    *,
    master: str = "local[2]",
    command: Sequence[str] | None = None,
) -> Iterator[JobRunsSite]:
    """A service over ``folder``, whose jobs reach SeaweedFS; all processes are gone afterwards.

    make: the service, of its node. api: its name in boto3. own: the compute's variables. master: of the jobs' Spark.
    command: run in Spark's place, with the entry point's arguments.
    """
    folder.mkdir(parents=True, exist_ok=True)
    emr = make(plain_node(weed, folder, command) if command else spark_node(weed, folder, master))
    service = Service(api, emr)
    with serving(service), ticking(emr.tick, emr.end):
        environment = {
            **weed.environment(),
            "AWS_DEFAULT_REGION": weed.environment()["AWS_REGION"],
            "AWS_ENDPOINT_URL_S3": weed.s3_endpoint,
            f"AWS_ENDPOINT_URL_{service.model.service_id.hyphenize().replace('-', '_').upper()}": service.url,
            "LAKEHOUSE_STAGING": f"{weed.plain}/staging/{folder.name}",
            "LAKEHOUSE_LANDING": f"{weed.plain}/landing/{folder.name}",
            "LAKEHOUSE_CODE": f"{weed.plain}/code",
            **own,
        }
        yield JobRunsSite(emr, service, environment)


def demand(condition: object, code: str, message: str, status: int = 400) -> None:
    """Raises the fault unless the condition holds."""
    if not condition:
        raise Fault(code, message, status)


def demand_values(request: dict[str, Any], conditions: Mapping[str, object], most_tags: int) -> None:
    """Raises a fault for the first value of StartJobRun that the service refuses. conditions: by the value's name."""
    given = request.get("tags", {})
    both = {
        "clientToken": TOKEN.fullmatch(request["clientToken"]),
        "executionRoleArn": re.fullmatch(r"arn:aws[\w-]*:iam::\d{12}:role/.+", request["executionRoleArn"]),
        "tags": len(given) <= most_tags
        and all(TAG_KEY.fullmatch(key) and TAG_VALUE.fullmatch(value) for key, value in given.items()),
    }
    for what, condition in (both | dict(conditions)).items():
        demand(condition, "ValidationException", f"Value at '{what}' failed to satisfy constraint.")

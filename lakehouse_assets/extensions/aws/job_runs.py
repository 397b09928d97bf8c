"""The common base of the launchers whose workers are job runs: EMR Serverless and EMR on EKS."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import accumulate
from typing import Any, ClassVar

from botocore.exceptions import BotoCoreError, ClientError
from dagster_pipes import (
    DAGSTER_PIPES_CONTEXT_CLI_ARGUMENT,
    DAGSTER_PIPES_CONTEXT_ENV_VAR,
    DAGSTER_PIPES_MESSAGES_CLI_ARGUMENT,
    DAGSTER_PIPES_MESSAGES_ENV_VAR,
)

from lakehouse_assets.environment.aws import bucket_and_key, client, error_code, is_transient
from lakehouse_assets.environment.launchers.base import Attempt, Ended, Handle, NotStarted
from lakehouse_assets.environment.machine import content_hash, sources
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.environment.sizes import Size
from lakehouse_assets.extensions.aws.aws_launcher import AwsLauncher

# A zip with the content of the wheel, without the metadata that only pip reads: PySpark passes .zip, .egg and .jar to
# the executors' Python, but no .whl (PACKAGE_EXTENSIONS in pyspark/core/context.py).
PACKAGE = "code.zip"
ENTRY_POINT = "worker.py"
# The earliest time a zip can hold: the same content gives the same bytes.
EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Shipped:
    """The code's URLs in S3."""

    package: str
    entry_point: str


def ship(s3: Any, prefix: str, worker: str, packages: tuple[str, ...]) -> Shipped:
    """Puts the code under ``<prefix>/<content hash>/``, unless it is there.

    Concurrent processes write the same bytes. Raises ClientError and BotoCoreError.
    """
    bucket, folder = bucket_and_key(prefix)
    place = f"{folder}/{content_hash(packages)}".lstrip("/")
    package, script = f"{place}/{PACKAGE}", f"{place}/{ENTRY_POINT}"
    there = {listed["Key"] for listed in s3.list_objects_v2(Bucket=bucket, Prefix=f"{place}/").get("Contents", ())}
    if package not in there:
        s3.put_object(Bucket=bucket, Key=package, Body=zipped(sources(packages)))
    if script not in there:
        s3.put_object(Bucket=bucket, Key=script, Body=entry_point(worker))
    return Shipped(f"s3://{bucket}/{package}", f"s3://{bucket}/{script}")


def entry_point(worker: str) -> bytes:
    """Returns the script that Spark starts, which calls the worker's main(). worker: its package."""
    return f"import sys\n\nfrom {worker}.__main__ import main\n\nsys.exit(main())\n".encode()


def zipped(files: Iterable[tuple[str, bytes]]) -> bytes:
    """Packs (path, content) into a zip for Python's path.

    Each folder gets an entry: without it, Python finds no package there that lacks an ``__init__.py``.
    """
    buffer, folders = io.BytesIO(), set[str]()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files:
            # The paths of all folders above the file: a, a/b, a/b/c, …
            for folder in accumulate(name.split("/")[:-1], "{}/{}".format):
                if folder not in folders:
                    folders.add(folder)
                    archive.writestr(zipfile.ZipInfo(f"{folder}/", EPOCH), b"")
            archive.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


PY_FILES = "spark.submit.pyFiles"
# What Spark adds to the heap: a tenth, at least 384 MiB (spark.executor.memoryOverhead,
# https://spark.apache.org/docs/4.1.0/configuration.html).
OVERHEAD_FACTOR, OVERHEAD_MIB = 0.1, 384


def options(attempt: Attempt, package: str, overhead: float = OVERHEAD_FACTOR) -> list[str]:
    """Returns spark-submit's options. package: the code's URL. overhead: as for sized().

    The session gets the settings too, but Spark reads many of them (memory, archives, YARN's) only before it exists.
    """
    # The table's own settings take precedence.
    settings = {**sized(attempt.size, overhead), **attempt.spark_conf}
    files = ",".join(filter(None, (package, settings.pop(PY_FILES, ""))))
    given = [part for name, value in sorted(settings.items()) for part in ("--conf", f"{name}={value}")]
    return [*given, "--py-files", files]


def arguments(environment: Mapping[str, str]) -> list[str]:
    """Returns the variables of Dagster Pipes as arguments: EMR's calls take no environment for a job."""
    return [
        DAGSTER_PIPES_CONTEXT_CLI_ARGUMENT,
        environment[DAGSTER_PIPES_CONTEXT_ENV_VAR],
        DAGSTER_PIPES_MESSAGES_CLI_ARGUMENT,
        environment[DAGSTER_PIPES_MESSAGES_ENV_VAR],
    ]


def sized(size: Size, overhead: float = OVERHEAD_FACTOR) -> dict[str, str]:
    """Returns Spark's settings for a driver and executors of this size each, heap and overhead together.

    Leaves out what the size leaves open. overhead: what Spark adds to the heap, as a share of the heap.
    """
    conf: dict[str, str] = {}
    if size.vcpus is not None:
        cores = str(max(1, round(size.vcpus)))
        conf |= {"spark.driver.cores": cores, "spark.executor.cores": cores}
    if size.memory_gib is not None:
        memory = size.memory_gib * 1024
        heap = f"{int(min(memory / (1 + overhead), memory - OVERHEAD_MIB))}m"
        conf |= {"spark.driver.memory": heap, "spark.executor.memory": heap}
    return conf


# The most job runs that one call lists: https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_ListJobRuns.html
PAGE = 50

JobRun = Mapping[str, Any]


class JobRunsLauncher(AwsLauncher):
    """The base class of launchers of job runs. Handles are job run ids."""

    api: ClassVar[str]
    """The service's name in boto3."""
    holder: ClassVar[str]
    """What runs the jobs, such as an application; for messages."""
    running_states: ClassVar[tuple[str, ...]]
    """The states of job runs that have not ended, including those that wait."""
    token_used: ClassVar[str]
    """The code of the error if an earlier request had the same client token, but other parameters."""
    refused_for_now: ClassVar[re.Pattern[str]]
    """Matches the messages of errors after which the service may start the job run later."""
    # Subclasses define these:
    _start: Callable[[Attempt, Mapping[str, str]], str]
    """Starts the job run; returns the same id for the same attempt."""
    _search: Callable[[Attempt], Mapping[str, Any]]
    """Returns arguments that narrow ListJobRuns to the attempt's job run."""
    _get: Callable[[Handle], JobRun]
    _cancel: Callable[[Handle], object]
    _verdict: Callable[[JobRun], Ended]

    def __init__(self, settings: Settings, code: str, worker: str, **place: str) -> None:
        """place: the argument of each call that names the holder."""
        super().__init__(settings)
        self._prefix, self._worker, self._place = code, worker, place
        self._emr = client(self.api)
        self._final: dict[str, JobRun] = {}  # by id: those that ended

    @cache  # noqa: B019  a launcher lives as long as its process
    def _code(self, packages: tuple[str, ...]) -> Shipped:
        return ship(self._s3, self._prefix, self._worker, packages)

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        """Starts or finds the job run. Raises NotStarted."""
        try:
            return Handle(self._start(attempt, environment))
        except (ClientError, BotoCoreError) as error:
            # An earlier request of this attempt had other parameters: if a run resumes another one, the tags that name
            # the run differ. The job run of that request does the same work.
            if error_code(error) == self.token_used and (found := self.find(attempt)):
                return found
            # refused_for_now is an answer: it leaves no doubt that nothing was started, so it is not unconfirmed.
            transient = is_transient(error) or self.refused_for_now.search(str(error)) is not None
            raise NotStarted(str(error), transient=transient, unconfirmed=is_transient(error)) from error

    def _find(self, attempt: Attempt) -> Handle | None:
        found = self._list(**self._search(attempt))
        return next((Handle(job["id"]) for job in found if job.get("name", "").endswith(attempt.key)), None)

    def _stop(self, handles: Sequence[Handle]) -> dict[str, Exception]:
        # _stop_batches() passes one at a time, as CancelJobRun takes one.
        (handle,) = handles
        try:
            self._cancel(handle)
        except ClientError:
            # No fault if the job run is unknown, has ended, or is being cancelled.
            job = self._known(handle)
            if job and job["state"] in self.running_states and not job["state"].startswith("CANCEL"):
                raise
        return {}

    def _poll(self, handles: Sequence[Handle]) -> dict[str, Ended]:
        """Lists all running job runs; asks separately only for handles that the list lacks."""
        running = {job["id"]: job["state"] for job in self._list(states=list(self.running_states))}
        for handle in handles:
            if running.get(handle.id) == "RUNNING":
                # When it was first seen: lists do not say when it began.
                self._begun.setdefault(handle.id, datetime.now(UTC))
        ends = {handle.id: self._end(handle) for handle in handles if handle.id not in running}
        return {id: end for id, end in ends.items() if end}

    def _end(self, handle: Handle) -> Ended | None:
        """Returns how a job run ended; None if it has not."""
        job = self._known(handle)
        if job is None:
            (where,) = self._place.values()
            return Ended(f"is unknown to the {self.holder} {where}: {handle.id}")
        if job["state"] in self.running_states:
            return None
        self._final[handle.id] = job
        return self._verdict(job)

    def _known(self, handle: Handle) -> JobRun | None:
        """Returns the job run; None if the service does not know it."""
        try:
            return self._get(handle)
        except ClientError as error:
            if error_code(error) != "ResourceNotFoundException":
                raise
            return None

    def _list(self, **which: Any) -> Iterator[JobRun]:
        pages = self._emr.get_paginator("list_job_runs").paginate(
            PaginationConfig={"PageSize": PAGE}, **self._place, **which
        )
        yield from pages.search("jobRuns[]")

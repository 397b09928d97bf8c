"""The base of the launchers whose workers are Spark job runs of a service: EMR Serverless and EMR on EKS.

What a job run is started with, what its end means and where its log is, is in the launchers' own files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, ClassVar

from botocore.exceptions import BotoCoreError, ClientError

from lakehouse_assets.environment.aws import client, error_code, is_transient
from lakehouse_assets.environment.launchers.aws_launcher import AwsLauncher
from lakehouse_assets.environment.launchers.base import Attempt, Ended, Handle, NotStarted
from lakehouse_assets.environment.launchers.spark_submit import Shipped, ship
from lakehouse_assets.environment.settings import Settings

# https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_ListJobRuns.html
PAGE = 50

JobRun = Mapping[str, Any]


class JobRunsLauncher(AwsLauncher):
    """The base class of launchers whose workers are job runs. Handles are job run ids."""

    api: ClassVar[str]
    """The service's name in boto3."""
    holder: ClassVar[str]
    """What the service runs jobs in, for messages."""
    running_states: ClassVar[tuple[str, ...]]
    """The states of job runs that have not ended, with those that wait."""
    token_used: ClassVar[str]
    """The error's code where a client token came before, with other parameters."""
    refused_for_now: ClassVar[re.Pattern[str]]
    """Matches the errors of a service that would start the job run later."""
    _start: Callable[[Attempt, Mapping[str, str]], str]
    """Starts the attempt's job run and returns its id, the same one for the same attempt."""
    _search: Callable[[Attempt], Mapping[str, Any]]
    """Returns the filters that ListJobRuns finds the attempt's job run with."""
    _get: Callable[[Handle], JobRun]
    _cancel: Callable[[Handle], object]
    _verdict: Callable[[JobRun], Ended]

    def __init__(self, settings: Settings, code: str, worker: str, **place: str) -> None:
        """Makes the service's client.

        code: the prefix that code is uploaded to. worker: the module that workers run. place: the one argument of each
        call that names the holder.
        """
        super().__init__(settings)
        self._prefix, self._worker, self._place = code, worker, place
        self._emr = client(self.api)
        self._final: dict[str, JobRun] = {}  # by id: those that ended

    @cache  # noqa: B019  a launcher lives as long as its process
    def _code(self, packages: tuple[str, ...]) -> Shipped:
        return ship(self._s3, self._prefix, self._worker, packages)

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        """Starts the attempt's job run, or finds the one that was started for it before. Raises NotStarted."""
        try:
            return Handle(self._start(attempt, environment))
        except (ClientError, BotoCoreError) as error:
            # The token was used by a request with other parameters: its tags differ when a run resumes another one.
            if error_code(error) == self.token_used and (found := self.find(attempt)):
                return found
            transient = is_transient(error) or self.refused_for_now.search(str(error)) is not None
            raise NotStarted(str(error), transient=transient, unconfirmed=is_transient(error)) from error

    def _find(self, attempt: Attempt) -> Handle | None:
        found = self._list(**self._search(attempt))
        return next((Handle(job["id"]) for job in found if job.get("name", "").endswith(attempt.key)), None)

    def _stop(self, handles: Sequence[Handle]) -> dict[str, Exception]:
        (handle,) = handles
        try:
            self._cancel(handle)
        except ClientError:  # also for a job run that has ended, is ending, or that nobody knows
            job = self._known(handle)
            if job and job["state"] in self.running_states and not job["state"].startswith("CANCEL"):
                raise
        return {}

    def _poll(self, handles: Sequence[Handle]) -> dict[str, Ended]:
        """Lists all running jobs, PAGE in each call; a call for each of the others finds out how it ended."""
        running = {job["id"]: job["state"] for job in self._list(states=list(self.running_states))}
        for handle in handles:
            if running.get(handle.id) == "RUNNING":
                # When it was first seen: lists do not say when a job run began.
                self._begun.setdefault(handle.id, datetime.now(UTC))
        ends = {handle.id: self._end(handle) for handle in handles if handle.id not in running}
        return {id: end for id, end in ends.items() if end}

    def _end(self, handle: Handle) -> Ended | None:
        job = self._known(handle)
        if job is None:
            (where,) = self._place.values()
            return Ended(f"is unknown to the {self.holder} {where}: {handle.id}")
        if job["state"] in self.running_states:
            return None
        self._final[handle.id] = job
        return self._verdict(job)

    def _known(self, handle: Handle) -> JobRun | None:
        """Returns the job run; None where the service has none of this id."""
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

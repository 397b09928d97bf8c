"""The base of the launchers on AWS: Pipes over S3, transient errors outlasted, many workers cancelled, logs' ends read.

The calls of each service, and what its answers mean, are in the launchers' own files.
"""

from __future__ import annotations

import gzip
import logging
import re
import time
from collections import ChainMap, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from botocore.exceptions import BotoCoreError, ClientError

from lakehouse_assets.environment.aws import bucket_and_key, client, is_transient, s3_client
from lakehouse_assets.environment.catalog import catalog_properties
from lakehouse_assets.environment.launchers.base import Attempt, Ended, Handle, Launcher, NotStarted, Patience, Usage
from lakehouse_assets.environment.launchers.s3_pipes import AttemptContextInjector, PolledS3Reader
from lakehouse_assets.environment.settings import Settings

if TYPE_CHECKING:
    from botocore.client import BaseClient


logger = logging.getLogger(__name__)

# How long a service may be unreachable, or throttle the polls, before a run stops watching its workers.
PATIENCE_SECONDS = 300.0
# Seconds before each try to stop the workers that are left.
STOP_WAITS = (0.0, 1.0, 2.0, 4.0)
STOP_THREADS = 16
# https://docs.aws.amazon.com/tag-editor/latest/userguide/best-practices-and-strats.html#id_tags_naming_best_practices
NOT_IN_TAGS = re.compile(r"[^A-Za-z0-9 /_.:=+@-]")
TAG_CHARACTERS = 256


class AwsLauncher(Launcher):
    """The base class of the launchers on AWS.

    settings: the objects of Pipes lie below their staging prefix.

    A launcher has ``_poll``, ``_find``, ``_stop``, ``_tail`` and ``_usage``. Its ``_poll`` notes in ``_begun`` when a
    worker began to work, by its handle's id.
    """

    durable = True
    poll_seconds = 5.0
    service: ClassVar[str]
    _poll: Callable[[Sequence[Handle]], Mapping[str, Ended]]
    _find: Callable[[Attempt], Handle | None]
    _stop: Callable[[Sequence[Handle]], dict[str, Exception]]
    """Stops a batch in one call, and returns the errors of those that the service refuses to stop, by id.

    Raises boto3's errors where the whole call failed.
    """
    _tail: Callable[[Handle], str]
    _usage: Callable[[Handle], Usage | None]

    def __init__(self, settings: Settings) -> None:
        properties = catalog_properties(settings)
        self._s3 = s3_client(properties)
        # Gives up soon, for what need not succeed: reading messages, and deleting what was read.
        self._quick_s3 = s3_client(properties, attempts=2)
        self._bucket, self._folder = bucket_and_key(settings.staging)
        self._polling = Patience(PATIENCE_SECONDS)
        self._begun: dict[str, datetime] = {}

    def pipes(self, attempt: Attempt) -> tuple[AttemptContextInjector, PolledS3Reader]:
        """Returns the session's two ends on S3, both below ``pipes/<the attempt's key>`` of the staging prefix."""
        prefix = f"{self._folder}/pipes/{attempt.key}".lstrip("/")
        injector = AttemptContextInjector(self._s3, self._quick_s3, self._bucket, prefix)
        return injector, PolledS3Reader(self._quick_s3, self._bucket, f"{prefix}/messages")

    def poll(self, handles: Sequence[Handle]) -> Mapping[str, Ended]:
        """Returns the workers that ended, by id. While the service can't be reached, all count as running.

        Raises ClientError and BotoCoreError when the error is not transient or lasts longer than PATIENCE_SECONDS.
        """
        if not handles:
            return {}
        try:
            ended = self._poll(handles)
        except (ClientError, BotoCoreError) as error:
            if self._polling.failed(time.monotonic()) or not is_transient(error):
                raise
            logger.warning("%s can't be polled at the moment, workers go on: %s", self.service, error)
            return {}
        self._polling.succeeded()
        return ended

    @cached_property
    def _logs(self) -> BaseClient:
        return client("logs")

    def began(self, handle: Handle) -> datetime | None:
        """Returns the time that ``_poll`` noted for the worker; None until it has noted one."""
        return self._begun.get(handle.id)

    def find(self, attempt: Attempt) -> Handle | None:
        """Finds the attempt's worker, as the contract says. Raises NotStarted when the service can't be asked."""
        try:
            return self._find(attempt)
        except (ClientError, BotoCoreError) as error:
            reason = f"{self.service} can't be asked whether it runs already: {error}"
            raise NotStarted(reason, transient=is_transient(error), unconfirmed=True) from error

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Stops all of them, whatever errors there are; transient ones are followed by more tries.

        Raises RuntimeError, naming those that may still run.
        """
        left, errors = list(handles), dict[str, Exception | None]()
        # A run's own task is killed soon after it was asked to stop; for hundreds of workers, one call after the other
        # would take too long.
        with ThreadPoolExecutor(STOP_THREADS, thread_name_prefix="cancel") as pool:
            for wait in STOP_WAITS:
                if not left:
                    break
                time.sleep(wait)
                failures = ChainMap(*pool.map(self._try_stop, self._stop_batches(left)))
                errors |= {handle.id: failures.get(handle.id) for handle in left}
                left = [handle for handle in left if (error := errors[handle.id]) and is_transient(error)]
        if failed := {id: error for id, error in errors.items() if error}:
            raise RuntimeError(
                f"{len(failed)} workers on {self.service} may still run, stop them in the console: "
                + "; ".join(f"{id} ({error})" for id, error in failed.items())
            )

    def _try_stop(self, handles: Sequence[Handle]) -> dict[str, Exception]:
        """Returns the errors of the workers that were not stopped, by id."""
        try:
            return self._stop(handles)
        except (ClientError, BotoCoreError) as error:
            return dict.fromkeys([handle.id for handle in handles], error)

    def _stop_batches(self, handles: Sequence[Handle]) -> Sequence[Sequence[Handle]]:
        """Returns the handles in batches, as one call of _stop takes them."""
        return [[handle] for handle in handles]

    def tail(self, handle: Handle) -> str:
        """Returns the end of the driver's log, or why it can't be had."""
        try:
            return self._tail(handle)
        except (ClientError, BotoCoreError) as error:
            return f"the log's place can't be found: {error}"

    def usage(self, handle: Handle) -> Usage | None:
        """Returns what an ended worker used; None where nothing is known, after a warning where the calls failed."""
        try:
            return self._usage(handle)
        except (ClientError, BotoCoreError) as error:
            logger.warning("what %s used is unknown: %s", handle.id, error)
            return None


def tags(attempt: Attempt) -> dict[str, str]:
    """Returns the attempt's tags as all services accept them: without other characters, and cut where too long."""
    return {name: NOT_IN_TAGS.sub("", value)[:TAG_CHARACTERS] for name, value in attempt.tags.items()}


LINES = 50


def s3_tail(s3: Any, location: str, when: str) -> str:
    """Returns the last LINES lines of a gzipped log, or why they can't be read.

    s3: a boto3 client. location: ``s3://…`` or ``s3n://…``. when: when the service puts the log there, for a message.
    """
    bucket, _, key = location.partition("://")[2].partition("/")
    try:
        with gzip.open(s3.get_object(Bucket=bucket, Key=key)["Body"]) as lines:
            return b"".join(deque(lines, LINES)).decode(errors="replace").strip()
    except s3.exceptions.NoSuchKey:
        return f"{location} is not there yet: {when}"
    except (ClientError, BotoCoreError, OSError, EOFError) as error:
        return f"{location} can't be read: {error}"


def cloudwatch_tail(logs: Any, group: str, stream: str) -> str:
    """Returns the last LINES lines of a stream, or why they can't be read. logs: a boto3 client."""
    try:
        events = logs.get_log_events(logGroupName=group, logStreamName=stream, limit=LINES, startFromHead=False)
    except (ClientError, BotoCoreError) as error:
        return f"its log in CloudWatch can't be read, group {group}, stream {stream}: {error}"
    return "\n".join(event["message"] for event in events["events"])

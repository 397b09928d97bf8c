"""The common base of launchers on AWS."""

from __future__ import annotations

import gzip
import json
import logging
import re
import time
from collections import ChainMap, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import dagster as dg
from botocore.exceptions import BotoCoreError, ClientError
from dagster_aws.pipes import PipesS3ContextInjector

from lakehouse_assets.environment.aws import bucket_and_key, client, is_transient, s3_client
from lakehouse_assets.environment.catalog import catalog_properties
from lakehouse_assets.environment.launchers.base import (
    Attempt,
    Ended,
    Handle,
    Launcher,
    NotStarted,
    Patience,
    PolledReader,
    Usage,
)
from lakehouse_assets.environment.settings import Settings

if TYPE_CHECKING:
    from botocore.client import BaseClient

logger = logging.getLogger(__name__)

# Not every poll is worth a call to S3: messages only report sooner what the receipt will show.
READ_SECONDS = 5.0


class AttemptContextInjector(PipesS3ContextInjector):
    """Puts the context to ``<prefix>/context.json``, always the same place for an attempt.

    A repeated attempt thus has the same parameters, as its client token demands.

    Dagster's injector chooses a random place, and leaves the object after a failure. quick_client: gives up soon; for
    deletions.
    """

    def __init__(self, client: Any, quick_client: Any, bucket: str, prefix: str) -> None:
        super().__init__(bucket=bucket, client=client, key_prefix=prefix)
        self._quick_client = quick_client

    @contextmanager
    def inject_context(self, context: Any) -> Iterator[dict[str, str]]:
        """Puts the context; deletes it unless a worker may still read it. Raises NotStarted."""
        key = f"{self.key_prefix}/context.json"
        try:
            self.client.put_object(Body=json.dumps(context).encode(), Bucket=self.bucket, Key=key)
        except (ClientError, BotoCoreError) as error:
            reason = f"can't write its context to s3://{self.bucket}/{key} (LAKEHOUSE_STAGING): {error}"
            # An earlier try of this attempt may have started a worker whose answer was lost: unconfirmed, so that the
            # attempt is repeated with the same key.
            raise NotStarted(reason, transient=is_transient(error), unconfirmed=True) from error
        # After any other error a worker may still read the context: the process that resumes the run needs it.
        try:
            yield {"bucket": self.bucket, "key": key}
        except NotStarted as refused:
            if not refused.unconfirmed:
                _delete(self._quick_client, self.bucket, key)
            raise
        _delete(self._quick_client, self.bucket, key)


class PolledS3Reader(PolledReader):
    """Reads messages from ``<prefix>/<n>.json``."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self._client, self._bucket, self._prefix = client, bucket, prefix
        self._next = 1
        # S3 is not asked before, by time.monotonic().
        self._due = 0.0

    @contextmanager
    def read_messages(self, handler: dg.PipesMessageHandler) -> Iterator[Mapping[str, Any]]:
        """Yields the messages' place. Without an exception, reads the last ones and deletes all."""
        self.handler = handler
        yield {"bucket": self._bucket, "key_prefix": self._prefix}
        # Not after an exception: the process that resumes the run reads from the first message.
        self._due = 0.0
        self.read()
        for number in range(1, self._next):
            _delete(self._client, self._bucket, self._key(number))

    def read(self) -> None:
        """Passes on new messages; calls S3 every READ_SECONDS, and for each message."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + READ_SECONDS
        while (text := self._get()) is not None:
            self._next += 1
            for line in text.splitlines():
                self.pass_on(line)

    def _get(self) -> str | None:
        try:
            body: bytes = self._client.get_object(Bucket=self._bucket, Key=self._key(self._next))["Body"].read()
        except self._client.exceptions.NoSuchKey:
            return None
        # Missing a message does no harm: the receipt decides.
        except (ClientError, BotoCoreError) as error:
            logger.warning("s3://%s/%s can't be read: %s", self._bucket, self._key(self._next), error)
            return None
        return body.decode()

    def _key(self, number: int) -> str:
        return f"{self._prefix}/{number}.json"

    def no_messages_debug_text(self) -> str:
        """Returns the messages' prefix."""
        return f"The worker should have written to s3://{self._bucket}/{self._prefix}/."


def _delete(client: Any, bucket: str, key: str) -> None:
    # If it fails, a lifecycle rule may remove the object.
    with suppress(ClientError, BotoCoreError):
        client.delete_object(Bucket=bucket, Key=key)


# How long a service may be unreachable or throttle polls before a run stops watching its workers.
PATIENCE_SECONDS = 300.0
# Seconds before each try to stop the workers that the tries before it have not stopped.
STOP_WAITS = (0.0, 1.0, 2.0, 4.0)
STOP_THREADS = 16
# https://docs.aws.amazon.com/tag-editor/latest/userguide/best-practices-and-strats.html#id_tags_naming_best_practices
NOT_IN_TAGS = re.compile(r"[^A-Za-z0-9 /_.:=+@-]")
TAG_CHARACTERS = 256


class AwsLauncher(Launcher):
    """The base class of launchers on AWS.

    Subclasses define the methods that are only annotated here. All but ``_stop`` do what the public method of the same
    name does. All may raise boto3's errors, which this class handles. ``_poll`` also notes in ``_begun`` when a worker
    began, by handle id.
    """

    durable = True
    poll_seconds = 5.0
    service: ClassVar[str]
    """The service's name, for messages."""
    _poll: Callable[[Sequence[Handle]], Mapping[str, Ended]]
    _find: Callable[[Attempt], Handle | None]
    _stop: Callable[[Sequence[Handle]], dict[str, Exception]]
    """Stops a batch in one call; returns refused workers' errors by id. Raises boto3's if the whole call fails."""
    _tail: Callable[[Handle], str]
    _usage: Callable[[Handle], Usage | None]

    def __init__(self, settings: Settings) -> None:
        properties = catalog_properties(settings)
        self._s3 = s3_client(properties)
        # Gives up soon, for optional calls: reading and deleting messages.
        self._quick_s3 = s3_client(properties, attempts=2)
        self._bucket, self._folder = bucket_and_key(settings.staging)
        self._polling = Patience(PATIENCE_SECONDS)
        self._begun: dict[str, datetime] = {}

    def pipes(self, attempt: Attempt) -> tuple[AttemptContextInjector, PolledS3Reader]:
        """Returns the session's two ends, both below ``pipes/<key>`` of the staging prefix."""
        prefix = f"{self._folder}/pipes/{attempt.key}".lstrip("/")
        injector = AttemptContextInjector(self._s3, self._quick_s3, self._bucket, prefix)
        return injector, PolledS3Reader(self._quick_s3, self._bucket, f"{prefix}/messages")

    def poll(self, handles: Sequence[Handle]) -> Mapping[str, Ended]:
        """Returns the ended workers; none while the service is unreachable.

        Raises ClientError and BotoCoreError if the error is not transient or has lasted for PATIENCE_SECONDS.
        """
        if not handles:
            return {}
        try:
            ended = self._poll(handles)
        except (ClientError, BotoCoreError) as error:
            if self._polling.failed(time.monotonic()) or not is_transient(error):
                raise
            logger.warning("%s can't be polled at the moment, workers continue: %s", self.service, error)
            return {}
        self._polling.succeeded()
        return ended

    @cached_property
    def _logs(self) -> BaseClient:
        return client("logs")

    def began(self, handle: Handle) -> datetime | None:
        """Returns the time that ``_poll`` noted; None if the worker has not begun."""
        return self._begun.get(handle.id)

    def find(self, attempt: Attempt) -> Handle | None:
        """Finds the attempt's worker. Raises NotStarted if the service can't be asked."""
        try:
            return self._find(attempt)
        except (ClientError, BotoCoreError) as error:
            reason = f"{self.service} can't tell whether it is already running: {error}"
            raise NotStarted(reason, transient=is_transient(error), unconfirmed=True) from error

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Stops all workers; retries transient errors. Raises RuntimeError naming those that may still run."""
        left, errors = list(handles), dict[str, Exception | None]()
        # A run's task is killed soon after its stop signal, too soon for hundreds of calls one after the other.
        with ThreadPoolExecutor(STOP_THREADS, thread_name_prefix="cancel") as pool:
            for wait in STOP_WAITS:
                if not left:
                    break
                time.sleep(wait)
                failures = ChainMap(*pool.map(self._try_stop, self._stop_batches(left)))
                # None: the worker was stopped, or had ended.
                errors |= {handle.id: failures.get(handle.id) for handle in left}
                left = [handle for handle in left if (error := errors[handle.id]) and is_transient(error)]
        if failed := {id: error for id, error in errors.items() if error}:
            raise RuntimeError(
                f"{len(failed)} workers on {self.service} may still be running; stop them in the console: "
                + "; ".join(f"{id} ({error})" for id, error in failed.items())
            )

    def _try_stop(self, handles: Sequence[Handle]) -> dict[str, Exception]:
        try:
            return self._stop(handles)
        except (ClientError, BotoCoreError) as error:
            return dict.fromkeys([handle.id for handle in handles], error)

    def _stop_batches(self, handles: Sequence[Handle]) -> Sequence[Sequence[Handle]]:
        """Divides workers into batches for ``_stop``; by default, one worker each."""
        return [[handle] for handle in handles]

    def tail(self, handle: Handle) -> str:
        """Returns the end of the driver's log, or why it is missing."""
        try:
            return self._tail(handle)
        except (ClientError, BotoCoreError) as error:
            return f"can't find its log: {error}"

    def usage(self, handle: Handle) -> Usage | None:
        """Returns the usage; None if unknown."""
        try:
            return self._usage(handle)
        except (ClientError, BotoCoreError) as error:
            logger.warning("can't find out what %s used: %s", handle.id, error)
            return None


def tags(attempt: Attempt) -> dict[str, str]:
    """Returns the attempt's tags, in a form that all services accept."""
    return {name: NOT_IN_TAGS.sub("", value)[:TAG_CHARACTERS] for name, value in attempt.tags.items()}


LINES = 50


def s3_tail(s3: Any, location: str, when: str) -> str:
    """Returns a gzipped log's last LINES lines, or why they can't be read.

    when: says when the service writes logs, for the message that this log does not exist yet.
    """
    bucket, _, key = location.partition("://")[2].partition("/")
    try:
        with gzip.open(s3.get_object(Bucket=bucket, Key=key)["Body"]) as lines:
            return b"".join(deque(lines, LINES)).decode(errors="replace").strip()
    except s3.exceptions.NoSuchKey:
        return f"{location} does not exist yet: {when}"
    except (ClientError, BotoCoreError, OSError, EOFError) as error:
        return f"{location} can't be read: {error}"


def cloudwatch_tail(logs: Any, group: str, stream: str) -> str:
    """Returns a stream's last LINES lines, or why they can't be read."""
    try:
        events = logs.get_log_events(logGroupName=group, logStreamName=stream, limit=LINES, startFromHead=False)
    except (ClientError, BotoCoreError) as error:
        return f"its log in CloudWatch can't be read, group {group}, stream {stream}: {error}"
    return "\n".join(event["message"] for event in events["events"])

"""What all launchers on AWS share: Pipes over S3 at places an attempt's key decides, and patience with the network.
No service of its own; no verdicts."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, ClassVar

import dagster as dg
from botocore.exceptions import BotoCoreError, ClientError
from dagster_aws.pipes import PipesS3ContextInjector

from resources.aws import bucket_and_key, passing, s3_client
from resources.catalog import catalog_properties
from resources.launchers.base import Attempt, Ended, Handle, NotStarted
from resources.settings import Settings

logger = logging.getLogger(__name__)

# How long a service or S3 may be out of reach, or throttle us, before a run gives up watching.
PATIENCE_SECONDS = 300.0
# Messages only tell what went wrong sooner than the receipt's absence would: no reason to ask S3 at every poll.
READ_SECONDS = 5.0
STOP_WAITS = (0.0, 1.0, 2.0, 4.0)
STOPPERS = 16


class AttemptContextInjector(PipesS3ContextInjector):
    """The context at ``<prefix>/context.json``: an attempt made again finds and leaves the same parameters, which a
    client token demands. Dagster's own puts it at random, and leaves it there when the step fails."""

    def __init__(self, client: Any, hasty: Any, bucket: str, prefix: str) -> None:
        super().__init__(bucket=bucket, client=client, key_prefix=prefix)
        self._hasty = hasty

    @contextmanager
    def inject_context(self, context: Any) -> Iterator[dict[str, str]]:
        key = f"{self.key_prefix}/context.json"
        try:
            self.client.put_object(Body=json.dumps(context).encode(), Bucket=self.bucket, Key=key)
        except (ClientError, BotoCoreError) as error:
            told = f"its context can't be put to s3://{self.bucket}/{key} (LAKEHOUSE_STAGING): {error}"
            # Nobody was asked for it; by the same key, as an earlier try may have been heard.
            raise NotStarted(told, transient=passing(error), unheard=True) from error
        # Whatever else ends this, there may be a worker about to read it, for the process that goes on with the run.
        keep = True
        try:
            yield {"bucket": self.bucket, "key": key}
            keep = False
        except NotStarted as refused:
            keep = refused.unheard
            raise
        finally:
            if not keep:
                _delete(self._hasty, self.bucket, key)


class PolledS3Reader(dg.PipesMessageReader):
    """Messages from ``<prefix>/<n>.json``, read when asked. Dagster's own reader keeps a thread for each worker."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self._client, self._bucket, self._prefix = client, bucket, prefix
        self._handler: Any = None
        self._next = 1
        self._due = 0.0

    @contextmanager
    def read_messages(self, handler: Any) -> Iterator[dict[str, str]]:
        self._handler = handler
        yield {"bucket": self._bucket, "key_prefix": self._prefix}
        # Not where the process ends and its workers go on: who takes them over reads from the first message.
        self._due = 0.0
        self.read()
        for number in range(1, self._next):
            _delete(self._client, self._bucket, self._key(number))

    def read(self) -> None:
        """Hand over what has arrived; asks S3 every READ_SECONDS, and once for each further object found."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + READ_SECONDS
        while (text := self._get()) is not None:
            self._next += 1
            for line in text.splitlines():
                self._hand_over(line)

    def _get(self) -> str | None:
        try:
            return self._client.get_object(Bucket=self._bucket, Key=self._key(self._next))["Body"].read().decode()
        except self._client.exceptions.NoSuchKey:
            return None
        except (ClientError, BotoCoreError) as error:  # what is durable decides
            logger.warning("s3://%s/%s can't be read: %s", self._bucket, self._key(self._next), error)
            return None

    def _hand_over(self, line: str) -> None:
        try:
            self._handler.handle_message(json.loads(line))
        except Exception:  # whatever the line holds: it is shown, and what is durable decides
            self._handler.report_pipes_framework_exception(f"reading the message {line[:200]!r}", sys.exc_info())

    def _key(self, number: int) -> str:
        return f"{self._prefix}/{number}.json"

    def no_messages_debug_text(self) -> str:
        return f"The worker should have written to s3://{self._bucket}/{self._prefix}/."


class RemoteLauncher:
    """Base of the launchers on AWS. settings: Pipes' objects lie below their staging prefix.

    A launcher's _poll notes in ``_begun`` when each worker began, by its handle's id.
    """

    durable = True
    blocking = False
    poll_seconds: float = 5.0
    service: ClassVar[str]

    def __init__(self, settings: Settings) -> None:
        properties = catalog_properties(settings)
        self._s3 = s3_client(properties)
        # For what can be done without: messages, which only tell sooner, and deleting what was read.
        self._hasty_s3 = s3_client(properties, attempts=2)
        self._bucket, self._folder = bucket_and_key(settings.staging)
        self._out_of_reach_since: float | None = None
        self._begun: dict[str, datetime] = {}

    def pipes(self, attempt: Attempt) -> tuple[AttemptContextInjector, PolledS3Reader]:
        prefix = f"{self._folder}/pipes/{attempt.key}".lstrip("/")
        injector = AttemptContextInjector(self._s3, self._hasty_s3, self._bucket, prefix)
        return injector, PolledS3Reader(self._hasty_s3, self._bucket, f"{prefix}/messages")

    def poll(self, handles: Sequence[Handle]) -> Mapping[str, Ended]:
        """Those that ended. While the service is out of reach nobody has, for PATIENCE_SECONDS."""
        if not handles:
            return {}
        try:
            ended = self._poll(handles)
        except (ClientError, BotoCoreError) as error:
            now = time.monotonic()
            self._out_of_reach_since = self._out_of_reach_since or now
            if not passing(error) or now - self._out_of_reach_since > PATIENCE_SECONDS:
                raise
            logger.warning("%s can't be asked at the moment, workers go on: %s", self.service, error)
            return {}
        self._out_of_reach_since = None
        return ended

    def _poll(self, handles: Sequence[Handle]) -> Mapping[str, Ended]:
        raise NotImplementedError

    def began(self, handle: Handle) -> datetime | None:
        return self._begun.get(handle.id)

    def find(self, attempt: Attempt) -> Handle | None:
        """As the contract has it. Raises NotStarted when the service can't be asked."""
        try:
            return self._find(attempt)
        except (ClientError, BotoCoreError) as error:
            told = f"{self.service} can't be asked whether it runs already: {error}"
            raise NotStarted(told, transient=passing(error), unheard=True) from error

    def _find(self, attempt: Attempt) -> Handle | None:
        raise NotImplementedError

    def cancel(self, handles: Sequence[Handle]) -> None:
        """End them all: each is asked also when others fail, and again when what was said passes.

        Raises RuntimeError, naming those that may still run.
        """
        left, errors = list(handles), dict[str, Exception | None]()
        # A run's own task is killed soon after it was told to end: hundreds one after the other would take too long.
        with ThreadPoolExecutor(STOPPERS, thread_name_prefix="cancel") as pool:
            for wait in STOP_WAITS:
                if not left:
                    break
                time.sleep(wait)
                told = ChainMap(*pool.map(self._stopped, self._stopped_together(left)))
                errors |= {handle.id: told.get(handle.id) for handle in left}
                left = [handle for handle in left if (error := errors[handle.id]) and passing(error)]
        if failed := {id: error for id, error in errors.items() if error}:
            raise RuntimeError(
                f"{len(failed)} workers on {self.service} may still run, stop them in the console: "
                + "; ".join(f"{id} ({error})" for id, error in failed.items())
            )

    def _stopped(self, handles: Sequence[Handle]) -> dict[str, Exception]:
        """Tell them to end; those that were not told, or refuse to, by id."""
        try:
            return self._stop(handles)
        except (ClientError, BotoCoreError) as error:
            return {handle.id: error for handle in handles}

    def _stopped_together(self, handles: Sequence[Handle]) -> Sequence[Sequence[Handle]]:
        """The handles as one call of _stop takes them."""
        return [[handle] for handle in handles]

    def _stop(self, handles: Sequence[Handle]) -> dict[str, Exception]:
        """In one call. Returns those that refuse, by id; raises as boto3 does where none was told."""
        raise NotImplementedError


def _delete(client: Any, bucket: str, key: str) -> None:
    with suppress(ClientError, BotoCoreError):  # a left-over costs nothing; a lifecycle rule may take it
        client.delete_object(Bucket=bucket, Key=key)

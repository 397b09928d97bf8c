"""Runs Dagster Pipes over S3: a worker's context and messages lie at places that the attempt's key decides.

Which worker is started, and where, is decided by the launchers.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import dagster as dg
from botocore.exceptions import BotoCoreError, ClientError
from dagster_aws.pipes import PipesS3ContextInjector

from lakehouse_assets.environment.aws import is_transient
from lakehouse_assets.environment.launchers.base import NotStarted, PolledReader

logger = logging.getLogger(__name__)

# Not every poll is worth a call to S3: messages only report sooner what the proof, or its absence, will show.
READ_SECONDS = 5.0


class AttemptContextInjector(PipesS3ContextInjector):
    """Puts the context to ``<prefix>/context.json``, the same place for a repeated attempt.

    So the attempt has the same parameters again, as a client token demands. Dagster's own injector chooses a random
    place, and leaves the object there when the step fails.

    client, quick_client: boto3 clients of S3; the quick one gives up soon, for what need not succeed.
    """

    def __init__(self, client: Any, quick_client: Any, bucket: str, prefix: str) -> None:
        super().__init__(bucket=bucket, client=client, key_prefix=prefix)
        self._quick_client = quick_client

    @contextmanager
    def inject_context(self, context: Any) -> Iterator[dict[str, str]]:
        """Puts the context, yields its place, and deletes it unless a worker may be about to read it.

        Raises NotStarted when it can't be put.
        """
        key = f"{self.key_prefix}/context.json"
        try:
            self.client.put_object(Body=json.dumps(context).encode(), Bucket=self.bucket, Key=key)
        except (ClientError, BotoCoreError) as error:
            reason = f"its context can't be put to s3://{self.bucket}/{key} (LAKEHOUSE_STAGING): {error}"
            # The service was not asked for a worker. But an earlier try of this attempt may have started one whose
            # answer was lost: the attempt is repeated with the same key, so that no second worker starts.
            raise NotStarted(reason, transient=is_transient(error), unconfirmed=True) from error
        # An interruption, or any other error, may leave a worker that is about to read the context: the process that
        # resumes the run needs it.
        try:
            yield {"bucket": self.bucket, "key": key}
        except NotStarted as refused:
            if not refused.unconfirmed:
                _delete(self._quick_client, self.bucket, key)
            raise
        _delete(self._quick_client, self.bucket, key)


class PolledS3Reader(PolledReader):
    """A reader of messages from ``<prefix>/<n>.json``."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self._client, self._bucket, self._prefix = client, bucket, prefix
        self._next = 1
        self._due = 0.0

    @contextmanager
    def read_messages(self, handler: dg.PipesMessageHandler) -> Iterator[Mapping[str, Any]]:
        """Yields the place that the worker writes its messages to.

        At the end the messages that are left are read, and all that were read are deleted; neither after an exception.
        """
        self.handler = handler
        yield {"bucket": self._bucket, "key_prefix": self._prefix}
        # After an exception nothing is deleted: the process that resumes the run reads from the first message.
        self._due = 0.0
        self.read()
        for number in range(1, self._next):
            _delete(self._client, self._bucket, self._key(number))

    def read(self) -> None:
        """Passes on what has arrived; calls S3 every READ_SECONDS, and once more for each object found."""
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
        except (ClientError, BotoCoreError) as error:  # the durable proof decides, so the message may be missed
            logger.warning("s3://%s/%s can't be read: %s", self._bucket, self._key(self._next), error)
            return None
        return body.decode()

    def _key(self, number: int) -> str:
        return f"{self._prefix}/{number}.json"

    def no_messages_debug_text(self) -> str:
        """Returns Dagster's hint for a worker that sent no message: the prefix it should have written to."""
        return f"The worker should have written to s3://{self._bucket}/{self._prefix}/."


def _delete(client: Any, bucket: str, key: str) -> None:
    with suppress(ClientError, BotoCoreError):  # an object that is left costs nothing; a lifecycle rule may remove it
        client.delete_object(Bucket=bucket, Key=key)

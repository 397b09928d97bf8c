"""Opens the worker's Pipes session, by a context in a file, the environment or S3; ends a worker cut off from S3."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from dagster_pipes import (
    DAGSTER_PIPES_CONTEXT_CLI_ARGUMENT,
    PipesCliArgsParamsLoader,
    PipesContext,
    PipesEnvVarParamsLoader,
    PipesMessage,
    PipesMessageWriter,
    PipesMessageWriterChannel,
    PipesParams,
    PipesParamsLoader,
    PipesS3ContextLoader,
    open_dagster_pipes,
)

from lakehouse_assets.environment.aws import is_transient, s3_client

# A worker ends after this many looks in a row without an answer from S3: within 5 minutes, or 10 if connections hang.
# Otherwise it might wait forever, keep its slot and cost money: some connections have no timeout (PyIceberg's and
# Java's REST catalogs, JDBC, the step's). Looks are counted, not seconds: a process that was frozen has missed none.
LOOK_SECONDS = 30.0
MISSED_LOOKS = 10


def in_session(work: Callable[[PipesContext], int]) -> int:
    """Does the work in this process's Pipes session; returns the exit status.

    It is EX_TEMPFAIL (sysexits.h) if S3 is out of reach: launchers take that for a failure of the host or the network.
    """
    try:
        with _open_session() as pipes:
            return work(pipes)
    except Exception as error:
        if not is_transient(error):
            raise
        print(f"S3 can't be reached, so this worker can't report how it ended: {error}", file=sys.stderr, flush=True)
        return os.EX_TEMPFAIL


def _open_session() -> AbstractContextManager[PipesContext]:
    """Opens the session. If the context is on S3, also begins to watch whether S3 answers."""
    in_arguments = any(DAGSTER_PIPES_CONTEXT_CLI_ARGUMENT in argument for argument in sys.argv)
    loader: Callable[[], PipesParamsLoader] = PipesCliArgsParamsLoader if in_arguments else PipesEnvVarParamsLoader
    params = loader()
    context = params.load_context_params()
    # Only a context on S3 names a bucket.
    if "bucket" not in context:
        return open_dagster_pipes(params_loader=params)
    # One attempt at each look: its failures in a row are what is counted.
    watched = s3_client({}, attempts=1), context["bucket"], context["key"]
    threading.Thread(target=_end_when_cut_off, args=watched, daemon=True).start()
    s3 = s3_client({})
    return open_dagster_pipes(
        params_loader=params, context_loader=PipesS3ContextLoader(s3), message_writer=_S3Writer(s3)
    )


class _S3Writer(PipesMessageWriter["_S3Writer"], PipesMessageWriterChannel):
    """Writes each message at once, and raises what S3 raises.

    Dagster's own writer uses a thread that ends silently at its first error: that message and all later ones are lost.
    """

    def __init__(self, s3: Any) -> None:
        self._s3 = s3
        self._number = 1
        self._lost: Exception | None = None

    @contextmanager
    def open(self, params: PipesParams) -> Iterator[_S3Writer]:
        self._bucket, self._prefix = params["bucket"], params["key_prefix"]
        yield self

    def write_message(self, message: PipesMessage) -> None:
        if self._lost:  # the reader reads in order, so it would wait for the lost message and never see this one
            raise self._lost
        key = f"{self._prefix}/{self._number}.json"
        try:
            self._s3.put_object(Bucket=self._bucket, Key=key, Body=json.dumps(message).encode())
        except Exception as error:
            self._lost = error
            raise
        self._number += 1


def _end_when_cut_off(s3: Any, bucket: str, key: str) -> None:
    from botocore.exceptions import BotoCoreError, ClientError

    missed = 0
    while missed < MISSED_LOOKS:
        time.sleep(LOOK_SECONDS)
        try:
            with suppress(ClientError):  # a refusal is an answer too
                s3.head_object(Bucket=bucket, Key=key)
            missed = 0
        except BotoCoreError:
            missed += 1
    print(f"S3 did not answer {missed} times in a row: this worker ends", file=sys.stderr, flush=True)
    os._exit(os.EX_TEMPFAIL)

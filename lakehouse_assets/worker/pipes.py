"""The worker's Pipes session, wherever its context lies (a file, the environment, S3), and what a lost S3 means to it.
No work and no messages of its own."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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
from resources.aws import passing, s3_client

# A worker that misses S3 so often, one look after the other, ends: within 5 minutes, 10 if connections hang. What it
# waits for may know no timeout (PyIceberg's and Java's REST catalogs, JDBC, the step's own connections), and would keep
# its slot and its bill for ever. Looks are counted, not seconds: a process that was frozen has missed none.
LOOK_SECONDS = 30.0
MISSED_LOOKS = 10


def in_session(work: Callable[[PipesContext], int]) -> int:
    """Do the work in the session this process was started for; returns its exit status.

    EX_TEMPFAIL (sysexits.h) where S3 is out of reach, so that nobody could be told what became of the work: whoever
    started this worker takes that for the host's or the network's trouble, not the work's.
    """
    try:
        with _open_session() as pipes:
            return work(pipes)
    except Exception as error:
        if not passing(error):
            raise
        print(f"S3 is out of reach, nobody can be told how this worker ends: {error}", file=sys.stderr, flush=True)
        return os.EX_TEMPFAIL


def _open_session() -> AbstractContextManager[PipesContext]:
    """Told by arguments (spark-submit's) or environment."""
    told_by_arguments = any(DAGSTER_PIPES_CONTEXT_CLI_ARGUMENT in argument for argument in sys.argv)
    params: PipesParamsLoader = PipesCliArgsParamsLoader() if told_by_arguments else PipesEnvVarParamsLoader()
    context = params.load_context_params()
    if "bucket" not in context:
        return open_dagster_pipes(params_loader=params)
    watched = s3_client({}, attempts=1), context["bucket"], context["key"]
    threading.Thread(target=_end_when_cut_off, args=watched, daemon=True).start()
    s3 = s3_client({})
    return open_dagster_pipes(
        params_loader=params, context_loader=PipesS3ContextLoader(s3), message_writer=_S3Writer(s3)
    )


class _S3Writer(PipesMessageWriter):
    """Puts each message at once, and raises what S3 raises.

    Dagster's own leaves it to a thread, which dies of its first error without a word: its message and all that follow
    are lost.
    """

    def __init__(self, s3: Any) -> None:
        self._s3 = s3

    @contextmanager
    def open(self, params: PipesParams) -> Iterator[PipesMessageWriterChannel]:
        yield _S3Channel(self._s3, params["bucket"], params["key_prefix"])


class _S3Channel(PipesMessageWriterChannel):
    def __init__(self, s3: Any, bucket: str, prefix: str) -> None:
        self._s3, self._bucket, self._prefix = s3, bucket, prefix
        self._number = 1
        self._lost: Exception | None = None

    def write_message(self, message: PipesMessage) -> None:
        if self._lost:  # the reader would wait for the one before; trying once was patient enough
            raise self._lost
        key = f"{self._prefix}/{self._number}.json"
        try:
            self._s3.put_object(Bucket=self._bucket, Key=key, Body=json.dumps(message).encode())
        except Exception as error:
            self._lost = error
            raise
        self._number += 1


def _end_when_cut_off(s3: Any, bucket: str, key: str) -> None:
    missed = 0
    while missed < MISSED_LOOKS:
        time.sleep(LOOK_SECONDS)
        missed = 0 if _answers(s3, bucket, key) else missed + 1
    print(f"S3 gave no answer {missed} times, one after the other: this worker ends", file=sys.stderr, flush=True)
    os._exit(os.EX_TEMPFAIL)


def _answers(s3: Any, bucket: str, key: str) -> bool:
    """Whether S3 is in reach; a refusal is an answer as well."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        s3.head_object(Bucket=bucket, Key=key)
    except BotoCoreError:
        return False
    except ClientError:
        pass
    return True

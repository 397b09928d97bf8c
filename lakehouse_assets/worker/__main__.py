"""The worker's entry point, ``python -m lakehouse_assets.worker``: does the work and reports through Pipes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dagster_pipes import PipesContext

from lakehouse_assets.environment.output import use_unfailing_streams
from lakehouse_assets.wire.work import OUT_OF_REACH
from lakehouse_assets.worker.perform import StartSession, perform
from lakehouse_assets.worker.pipes import in_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehouse_assets.environment.settings import Settings

# Set by the launcher of local workers, which keeps the other end of this process's stdin (launchers/local.py).
PARENT_PIPE = "LAKEHOUSE_PARENT_PIPE"


def main() -> int:
    """Does the work of this process's Pipes session. Returns the exit status."""
    started = time.monotonic()
    use_unfailing_streams()
    end_with_parent()
    status = do_work(_start_session, started)
    # Not after a failure: on YARN, a stopped session makes the application a success.
    if status == 0:
        from lakehouse_assets.worker.session import stop_session

        stop_session()  # after the report: nobody should wait for the JVM to end
    return status


def do_work(start_session: StartSession, started: float) -> int:
    """Does the work of this process's Pipes session and reports it. Returns the exit status.

    started: time.monotonic() at the worker's start.
    """
    return in_session(lambda pipes: _perform_and_report(pipes, start_session, started))


def _perform_and_report(pipes: PipesContext, start_session: StartSession, started: float) -> int:
    message = perform(pipes.get_extra("work"), start_session, _settings, started)
    pipes.report_custom_message(message)
    if error := message.get("error"):
        if not error[OUT_OF_REACH]:
            return 1
        # S3 or a source is out of reach: the run retries without showing this message. If all retries fail, it shows
        # the end of this log.
        print(f"{error['type']}: {error['message']}", file=sys.stderr, flush=True)
        return os.EX_TEMPFAIL
    return 0


def _start_session(conf: Mapping[str, str]) -> SparkSession:
    from lakehouse_assets.worker.session import build_session  # imports PySpark

    return build_session(conf)


def _settings() -> Settings:
    from lakehouse_assets.environment.settings import worker_settings

    return worker_settings()


def end_with_parent() -> None:
    """Ends this process and its JVM when the parent dies, in whatever way: its death closes the pipe on stdin."""
    if os.environ.get(PARENT_PIPE):
        threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    while os.read(0, 1):  # not sys.stdin: a thread blocked in its buffer breaks the interpreter's end
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    status = main()
    from lakehouse_assets.worker.session import end_jvm

    # Also after a failure: the JVM removes its scratch folders before it ends.
    end_jvm()
    sys.exit(status)

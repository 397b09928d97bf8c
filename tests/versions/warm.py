"""Workers of one environment in one JVM, whose start takes ten times as long as a small chunk: the program of
``python -m tests.versions.warm``. Each worker is the real one's main(); what starts them is launcher.py."""

from __future__ import annotations

import json
import os
import sys

from dagster_pipes import PipesContext
from pyspark import SparkContext
from pyspark.sql import SparkSession

from lakehouse_assets.worker.__main__ import main as worker


def main() -> None:
    """For each line of stdin, a JSON object of environment variables, one worker; a line of stdout is its status."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    SparkContext.stop = _stop
    for line in sys.stdin:
        os.environ.update(json.loads(line))
        status = worker()
        if session := SparkSession.getActiveSession():  # the worker stops none when it failed
            session.stop()
        PipesContext._instance = None
        print(status, file=answers, flush=True)


def _stop(self: SparkContext) -> None:
    """The JVM stays for the next worker; its session is forgotten, with its catalogs.

    The end of a process would close their connections: Iceberg 1.10 leaves one in the midst of a read, which locks
    SQLite's file.
    """
    manager = SparkSession.getActiveSession()._jsparkSession.sessionState().catalogManager()
    manager.catalog("lake").icebergCatalog().close()


if __name__ == "__main__":
    main()

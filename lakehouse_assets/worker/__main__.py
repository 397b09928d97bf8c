"""The worker's entry point, ``python -m lakehouse_assets.worker``: reads its assignment and reports through Pipes.
What staging means is in stage.py; nothing here knows where it runs."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING

from dagster_pipes import PipesContext
from resources.package import content_hash

from lakehouse_assets.protocol.assignment import OUT_OF_REACH, Assignment
from lakehouse_assets.worker.failure import describe, out_of_reach
from lakehouse_assets.worker.pipes import in_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARENT_PIPE = "LAKEHOUSE_PARENT_PIPE"


def main() -> int:
    started = time.monotonic()
    end_with_parent()
    return in_session(lambda pipes: _told(pipes, started))


def _told(pipes: PipesContext, started: float) -> int:
    """Do the work and tell how it ended; returns the exit status."""
    assignment = Assignment.from_json(pipes.get_extra("work"))
    try:
        _check_package(assignment)
        spark = work(pipes, assignment, started)
    except Exception as error:
        from lakehouse_assets.worker.session import jvm_exit

        told, unreached = describe(error, jvm_exit()), out_of_reach(error)
        pipes.report_custom_message({"error": {**told, OUT_OF_REACH: unreached}})
        if not unreached:
            return 1
        # Tried again, what was reported is not shown: the end of the log is, should it fail for good.
        print(f"{told['type']}: {told['message']}", file=sys.stderr, flush=True)
        return os.EX_TEMPFAIL
    spark.stop()  # behind the report: nobody waits for a JVM to end
    return 0


def work(pipes: PipesContext, assignment: Assignment, started: float) -> SparkSession:
    """Stage the chunk and report its receipt; returns the session it ran on."""
    from resources.settings import Compute, read_settings
    from resources.spark_runtime import environment, spark_conf

    from lakehouse_assets.worker.session import build_session, configure

    # Where workers run was decided by whoever sent the assignment; this process is one of them, on its own machine.
    settings = read_settings({name: value for name, value in os.environ.items() if name != "LAKEHOUSE_COMPUTE"})
    compute = Compute(assignment.compute)
    if compute in (Compute.LOCAL, Compute.ECS):  # EMR has started the JVM already
        os.environ.update(environment())
    # PyIceberg and PyArrow take a second to import, the JVM takes longer to start: one beside the other.
    threading.Thread(target=import_module, args=("lakehouse_assets.worker.stage",)).start()
    spark = build_session(spark_conf(settings, assignment.spark_conf, compute))

    from resources.catalog import catalog_properties
    from resources.spark_catalog import hadoop_s3, spark_catalogs

    from lakehouse_assets.worker.keys import TableKeys
    from lakehouse_assets.worker.stage import stage

    properties = catalog_properties(settings, assignment.catalog)
    keys = TableKeys(properties, assignment.table)
    catalogs = spark_catalogs(properties, keys.given, derby=compute in (Compute.EMR, Compute.EMR_SERVERLESS))
    configure(spark, catalogs | hadoop_s3(properties))
    receipt = stage(spark, assignment, properties, started, keys)
    pipes.report_custom_message({"proof": receipt.to_json()})
    return spark


class OtherCode(RuntimeError):
    """This worker's code is not that of the process that sent the assignment."""


def _check_package(assignment: Assignment) -> None:
    if assignment.compute == "local":  # the same files, which somebody may be editing
        return
    if (own := content_hash()) != assignment.package:
        raise OtherCode(
            f"the worker runs the code {own}, the code location {assignment.package}: deploy both from one build (the "
            "image of the task definition, the zip under LAKEHOUSE_CODE), then re-execute from failure"
        )


def end_with_parent() -> None:
    """End this process and its JVM when the parent dies, however it dies: the pipe on stdin then closes."""
    if os.environ.get(PARENT_PIPE):
        threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    while os.read(0, 1):  # not sys.stdin: a thread blocked in its buffer breaks the interpreter's end
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    status = main()
    from lakehouse_assets.worker.session import end_jvm

    end_jvm()
    sys.exit(status)

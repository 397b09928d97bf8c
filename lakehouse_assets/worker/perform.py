"""Performs one piece of work, staging or rewriting, in any process that has Spark."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lakehouse_assets.environment.output import redact
from lakehouse_assets.wire.work import CAUSE, OUT_OF_REACH, Assignment, RewriteAssignment
from lakehouse_assets.worker.failure import cause_of, check_code, describe, out_of_reach

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehouse_assets.environment.settings import Settings
    from lakehouse_assets.worker.session import TableCredentials

# Starts a session with these settings, none of them secret.
StartSession = Callable[[Mapping[str, str]], "SparkSession"]


def perform(
    payload: Mapping[str, Any],
    start_session: StartSession,
    settings: Callable[[], Settings],
    started: float | None = None,
) -> dict[str, Any]:
    """Does the work that a payload describes; never raises an Exception.

    started: time.monotonic() at the worker's start; None for now. Returns the message to report: ``{"receipt": …}``, or
    ``{"error": …}`` with the keys of describe(), OUT_OF_REACH and CAUSE.
    """
    started = time.monotonic() if started is None else started
    try:
        if (kind := payload.get("kind")) not in KINDS:
            raise ValueError(
                f"this worker does not know work of the kind {kind!r}, because it was built from other code "
                "than the code location. Deploy both from one build, then re-execute from failure"
            )
        return {"receipt": KINDS[kind](payload, start_session, settings(), started)}
    except Exception as error:
        from lakehouse_assets.worker.session import jvm_exit

        redact(error)
        ended = jvm_exit()  # a dead JVM explains whatever PySpark raised
        about = {OUT_OF_REACH: out_of_reach(error), CAUSE: cause_of(error, ended)}
        return {"error": {**describe(error, ended), **about}}


def stage_chunk(payload: Mapping[str, Any], start_session: StartSession, settings: Settings, started: float) -> str:
    """Returns the receipt of an Assignment as JSON. Raises as stage()."""
    assignment = Assignment.from_json(payload)
    check_code(assignment)
    spark, credentials = _prepare(assignment, "lakehouse_assets.worker.stage", start_session, settings)

    from lakehouse_assets.worker.stage import stage

    return stage(spark, assignment, credentials, started).to_json()


def rewrite_files(payload: Mapping[str, Any], start_session: StartSession, settings: Settings, _: float) -> str:
    """Returns the receipt of a RewriteAssignment as JSON; the start time is not needed. Raises as rewrite()."""
    assignment = RewriteAssignment.from_json(payload)
    spark, credentials = _prepare(assignment, "lakehouse_assets.worker.fork_rewrite", start_session, settings)

    from lakehouse_assets.worker.fork_rewrite import rewrite

    return rewrite(spark, assignment, credentials).to_json()


KINDS = {Assignment.kind: stage_chunk, RewriteAssignment.kind: rewrite_files}


def _prepare(
    assignment: Assignment | RewriteAssignment, module: str, start_session: StartSession, settings: Settings
) -> tuple[SparkSession, TableCredentials]:
    """Starts the session with its catalogs. module: does the work; it is imported meanwhile.

    Slow imports, PySpark above all, come after the checks that don't need them.
    """
    from lakehouse_assets.environment.computes import find_compute
    from lakehouse_assets.environment.spark_setup import environment, spark_conf

    compute = find_compute(assignment.compute)
    if not compute.brings_spark:  # such a service has started the JVM already
        os.environ.update(environment())
    from lakehouse_assets.worker.session import configure, start

    # PyIceberg and PyArrow take a second to import, while the JVM can start. PySpark is imported by now: two threads
    # that import it at once find its circular modules half made.
    threading.Thread(target=import_module, args=(module,)).start()
    conf = spark_conf(settings, assignment.spark_conf, assignment.compute)
    spark, secrets = start(conf, start_session, assignment.spark_conf if compute.shares_session else None)

    from lakehouse_assets.environment.catalog import catalog_properties
    from lakehouse_assets.environment.catalog_in_spark import hadoop_s3, spark_catalogs
    from lakehouse_assets.worker.session import TableCredentials

    properties = catalog_properties(settings, assignment.catalog)
    credentials = TableCredentials(properties, assignment.table)
    catalogs = spark_catalogs(properties, credentials.properties, derby=compute.brings_spark, live=credentials.vended)
    configure(spark, secrets | catalogs | hadoop_s3(properties))
    return spark, credentials

"""The inline way: the step runs in the op's own process, on dagster-pyspark's session: one JVM for a whole run.
Imported only when chosen: dagster-pyspark imports pyspark."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from lakehouse_assets.protocol.assignment import Assignment
from lakehouse_assets.worker.failure import describe
from lakehouse_assets.worker.keys import TableKeys
from lakehouse_assets.worker.session import configure, hidden, jvm_exit
from lakehouse_assets.worker.stage import stage
from resources import spark_runtime
from resources.catalog import catalog_properties
from resources.launchers.base import Attempt, Ended, Handle
from resources.secrets import public
from resources.settings import Settings
from resources.spark_catalog import hadoop_s3, spark_catalogs


class _DirectReader(dg.PipesMessageReader):
    """Messages handed over by a call: there is no process border."""

    def __init__(self) -> None:
        self.handler: Any = None

    @contextmanager
    def read_messages(self, handler: Any) -> Iterator[dict[str, str]]:
        self.handler = handler
        handler.handle_message({"method": "opened", "params": {"extras": {}}})
        yield {}
        handler.handle_message({"method": "closed", "params": {}})

    def read(self) -> None:
        """Nothing to do: send() has handed everything over."""

    def send(self, message: Mapping[str, Any]) -> None:
        self.handler.handle_message({"method": "report_custom_message", "params": {"payload": message}})

    def no_messages_debug_text(self) -> str:
        return "The step runs in this process."


class InlineLauncher:
    """One worker at a time, run to its end by submit. For breakpoints, notebooks and quick tests."""

    durable = False
    blocking = True
    poll_seconds = 0.1

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._reader = _DirectReader()
        self._started = 0

    def pipes(self, attempt: Attempt) -> tuple[dg.PipesContextInjector, _DirectReader]:
        self._reader = _DirectReader()
        return dg.PipesEnvContextInjector(), self._reader

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        del environment  # a process's; this one has its own
        self._started += 1
        started = time.monotonic()
        assignment = Assignment.from_json(attempt.payload)
        properties = catalog_properties(self._settings)
        os.environ.update(spark_runtime.environment())  # the JVM is a child of this process
        try:
            conf = spark_runtime.spark_conf(self._settings, assignment.spark_conf)
            spark = LazyPySparkResource(spark_config=public(conf)).spark_session
            keys = TableKeys(properties, assignment.table)
            if keys.given != properties:  # a session keeps the keys it began with, each table has its own
                spark = spark.newSession()
            configure(spark, hidden(conf) | spark_catalogs(properties, keys.given) | hadoop_s3(properties))
            receipt = stage(spark, assignment, properties, started, keys)
            self._reader.send({"proof": receipt.to_json()})
        except Exception as error:
            self._reader.send({"error": describe(error, jvm_exit())})
        return Handle(f"inline-{self._started}", None)

    def find(self, attempt: Attempt) -> None:
        """None: submit returns when its worker has ended."""

    def poll(self, handles: Sequence[Handle]) -> dict[str, Ended]:
        return {handle.id: Ended("returned") for handle in handles}

    def began(self, handle: Handle) -> None:
        """None: submit returns when its worker has ended."""

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Nothing runs on: an interruption ends submit itself."""

    def link(self, handle: Handle) -> str:
        return "this run's own process"

    def tail(self, handle: Handle) -> str:
        """Nothing: its output is in the run's own logs."""
        return ""

    def usage(self, handle: Handle) -> None:
        """Nothing is billed."""

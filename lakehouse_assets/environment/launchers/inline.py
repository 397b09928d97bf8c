"""Runs workers in the op's process, on dagster-pyspark's session: one JVM for a run.

This module imports pyspark, so it is imported only if the compute is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg
from dagster_pipes import PIPES_PROTOCOL_VERSION, PipesMessage
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import SparkSession

from lakehouse_assets.environment.launchers.base import Attempt, Ended, Handle, Launcher, PolledReader
from lakehouse_assets.environment.machine import java_home

Perform = Callable[[Mapping[str, Any], Callable[[Mapping[str, str]], SparkSession]], Mapping[str, Any]]
"""Does a payload's work; the second argument makes the session for Spark settings without secrets. Returns the worker's
message; never raises an Exception."""


class _DirectReader(PolledReader):
    @contextmanager
    def read_messages(self, handler: dg.PipesMessageHandler) -> Iterator[Mapping[str, Any]]:
        self.handler = handler
        handler.handle_message(_message("opened", {"extras": {}}))
        yield {}
        handler.handle_message(_message("closed", {}))

    def read(self) -> None:
        """Does nothing: send() has passed everything on."""

    def send(self, message: Mapping[str, Any]) -> None:
        self.handler.handle_message(_message("report_custom_message", {"payload": message}))

    def no_messages_debug_text(self) -> str:
        return "The step runs in this process."


class InlineLauncher(Launcher):
    """Runs one worker at a time, for breakpoints, notebooks and quick tests."""

    blocking = True

    def __init__(self, perform: Perform) -> None:
        self._perform = perform
        self._reader = _DirectReader()

    def pipes(self, attempt: Attempt) -> tuple[dg.PipesContextInjector, _DirectReader]:
        """Returns the two ends of a new session."""
        self._reader = _DirectReader()
        return dg.PipesEnvContextInjector(), self._reader

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        """Does the work, and returns when it has ended. Raises SetupError if there is no suitable Java."""
        java_home()  # raises here, so that there are no retries
        self._reader.send(self._perform(attempt.payload, _session))
        return Handle(attempt.key)

    def poll(self, handles: Sequence[Handle]) -> dict[str, Ended]:
        """Returns all workers: they end in submit()."""
        return {handle.id: Ended("returned") for handle in handles}

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Does nothing: an interruption ends submit()."""

    def link(self, handle: Handle) -> str:
        """Returns a phrase instead of a URL."""
        return "this run's own process"


def _message(method: str, params: Mapping[str, Any]) -> PipesMessage:
    return {"__dagster_pipes_version": PIPES_PROTOCOL_VERSION, "method": method, "params": params}


def _session(conf: Mapping[str, str]) -> SparkSession:
    session: SparkSession = LazyPySparkResource(spark_config=dict(conf)).spark_session
    return session

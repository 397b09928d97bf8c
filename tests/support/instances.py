"""Dagster instances that take little time, in memory and in a folder.
Those of the UI and the daemon, as users have them, are in dagster_server.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def light_instance(folder: Path) -> dg.DagsterInstance:
    """A Dagster instance on SQLite that takes little time, in this folder.

    The embedded default makes a database for the events of each run, and two processes that copy each step's output:
    more than most of the tests' runs take.
    """
    storage = "dagster._core.storage"
    overrides = {
        "telemetry": {"enabled": False},
        "event_log_storage": {
            "module": f"{storage}.event_log",
            "class": "ConsolidatedSqliteEventLogStorage",
            "config": {"base_dir": str(folder)},
        },
        "compute_logs": {"module": f"{storage}.noop_compute_log_manager", "class": "NoOpComputeLogManager"},
    }
    return dg.DagsterInstance.local_temp(str(folder), overrides=overrides)

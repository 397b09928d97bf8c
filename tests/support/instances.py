"""Dagster instances that take little time, in memory and in a folder.
Those of the UI and the daemon, as users have them, are in dagster_server.py."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import dagster as dg
import pytest

from lakehouse_assets.environment import run_storage


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def light_instance(folder: Path) -> dg.DagsterInstance:
    """A Dagster instance on SQLite that takes little time, in this folder.

    Processes with this DAGSTER_HOME have the same. The embedded default makes a database for the events of each run,
    and two processes that copy each step's output: more than most of the tests' runs take.
    """
    storage = "dagster._core.storage"
    config = {
        "telemetry": {"enabled": False},
        "event_log_storage": {
            "module": f"{storage}.event_log",
            "class": "ConsolidatedSqliteEventLogStorage",
            "config": {"base_dir": str(folder)},
        },
        "run_storage": {"module": run_storage.__name__, "class": run_storage.LockingSqliteRunStorage.__name__},
        "compute_logs": {"module": f"{storage}.noop_compute_log_manager", "class": "NoOpComputeLogManager"},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dagster.yaml").write_text(json.dumps(config))
    with patch.dict(os.environ, DAGSTER_HOME=str(folder)):
        return dg.DagsterInstance.local_temp(str(folder))

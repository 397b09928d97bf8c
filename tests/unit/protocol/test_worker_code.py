"""A worker of one version never runs code for a code location of another: it says so, before it starts Spark.
What the hash covers is test_code.py's."""

# No `from __future__ import annotations` here: Dagster compares the context's annotation itself.

import os
import subprocess
import sys
from typing import Any

import dagster as dg
import pytest

from lakehouse_assets.protocol.assignment import Assignment, Window
from resources.package import content_hash

OTHER = "0" * 16


@pytest.mark.parametrize("compute", ["ecs", "emr", "emr_serverless"])
def test_a_worker_of_another_build_refuses(compute: str, instance: dg.DagsterInstance) -> None:
    # Nothing of it can be loaded: a worker that would try says that instead.
    step, told = "no.such:step", {"package": OTHER, "compute": compute}
    assignment = Assignment("demo.t", step, "token", 0, Window(), "", "", "1", "1", **told)
    heard: list[Any] = []

    @dg.asset
    def told(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        with dg.open_pipes_session(
            context,
            dg.PipesTempFileContextInjector(),
            dg.PipesTempFileMessageReader(),
            extras={"work": assignment.to_json()},
        ) as session:
            worker = [sys.executable, "-m", "lakehouse_assets.worker"]
            done = subprocess.run(worker, env={**os.environ, **session.get_bootstrap_env_vars()})
        heard.extend([done.returncode, *session.get_custom_messages()])
        return dg.MaterializeResult()

    assert dg.materialize([told], instance=instance).success
    code, message = heard
    assert code == 1 and message["error"]["type"] == "OtherCode"
    assert content_hash() in message["error"]["message"] and OTHER in message["error"]["message"]

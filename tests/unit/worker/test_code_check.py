"""A worker never runs other code than its run was planned with: it says so, before it starts Spark.
What belongs to that code is tests/unit/wire/test_step_code.py's."""

# No `from __future__ import annotations` here: Dagster compares the context's annotation itself.

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lakehouse_assets.step.window import Window
from lakehouse_assets.wire.code import worker_code
from lakehouse_assets.wire.work import Assignment

ROOT = Path(__file__).parents[3]
OTHER = "0" * 16
STEP = "lakehouse_assets.domains.nyc.steps:flights"
RAISES = "raise SystemExit('imported')\n"
MAIN = "def main(): ...\n"


@pytest.mark.parametrize("compute", ["local", "ecs", "emr", "emr_serverless"])
@pytest.mark.parametrize(
    ("step", "found"),
    [
        (STEP, worker_code(STEP)),
        ("no.such:step", "no module no.such"),
        ("orders.sql", "neither module:function nor a file"),
    ],
    ids=["a step", "a step it lacks", "a kind of step it lacks"],
)
def test_a_worker_with_other_code_refuses(compute: str, step: str, found: str, instance: dg.DagsterInstance) -> None:
    assignment = Assignment("demo.t", step, "token", 0, Window(), "", "", "1", OTHER, compute=compute)
    reported: list[Any] = []

    @dg.asset
    def asset(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        with dg.open_pipes_session(
            context,
            dg.PipesTempFileContextInjector(),
            dg.PipesTempFileMessageReader(),
            extras={"work": assignment.to_fields()},
        ) as session:
            worker = [sys.executable, "-m", "lakehouse_assets.worker"]
            # PySpark would connect to this JVM, which does not exist, and report that instead.
            no_spark = {"PYSPARK_GATEWAY_PORT": "1", "PYSPARK_GATEWAY_SECRET": "none"}
            done = subprocess.run(worker, env={**os.environ, **session.get_bootstrap_env_vars(), **no_spark})
        reported.extend([done.returncode, *session.get_custom_messages()])
        return dg.MaterializeResult()

    assert dg.materialize([asset], instance=instance).success
    code, message = reported
    assert code == 1
    assert message["error"]["type"] == "OtherCode"
    assert found in message["error"]["message"]
    assert OTHER in message["error"]["message"]


def test_what_workers_do_not_import_is_no_part_of_their_code() -> None:
    """A deployment that changes only these fails no running backfill."""
    patterns = ("cli/*.py", "run/*.py", "drive/*.py", "commit/*.py", "domains/nyc/[alrt]*.py")
    files = [f.relative_to(ROOT) for pattern in patterns for f in (ROOT / "lakehouse_assets").glob(pattern)]
    modules = [".".join(f.with_suffix("").parts) for f in files if f.name != "__init__.py"]
    assert len(modules) > 15
    assert worker_code(STEP, imported=dict.fromkeys(modules, RAISES)) == worker_code(STEP)


@pytest.mark.parametrize(
    "module",
    [
        *("worker.__main__", "worker.stage", "worker.perform", "worker.row_checks", "worker.session", "worker.pipes"),
        *("environment.settings", "environment.spark_setup", "files.drop_zone", "step.window"),
    ],
)
def test_what_workers_run_is_part_of_their_code(module: str) -> None:
    assert worker_code(STEP, imported={f"lakehouse_assets.{module}": RAISES + MAIN}) != worker_code(STEP)


@pytest.mark.parametrize(
    ("hook", "module"),
    [
        ("inputs.worker:ReadInputs", "inputs.worker"),
        ("extensions.sources.worker:SourceRows", "extensions.sources.worker"),
        ("extensions.sources.worker:SourceRows", "extensions.sources.values"),
        ("extensions.sources.worker:SourceRows", "extensions.sources.postgres"),
        ("extensions.sources.worker:SourceRows", "declare.row_source"),
    ],
)
def test_so_is_what_the_hooks_of_extensions_run(hook: str, module: str) -> None:
    """The worker imports them by name."""
    hooks, edited = [f"lakehouse_assets.{hook}"], {f"lakehouse_assets.{module}": RAISES + MAIN}
    assert worker_code(STEP, imported=edited, hooks=hooks) != worker_code(STEP, hooks=hooks)
    assert worker_code(STEP, imported=edited) == worker_code(STEP)

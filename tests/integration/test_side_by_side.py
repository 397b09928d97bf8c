"""`lakehouse run` with several assets at once, as processes: what runs together, what fails together, what remains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from lakehouse_assets.environment.machine import children_of
from lakehouse_assets.environment.settings import Settings
from tests.conftest import ROOT
from tests.support.dagster_server import until
from tests.support.projects import make_project

pytestmark = pytest.mark.spark  # nothing here starts a JVM, but all of it needs set-up to have run
RUN = [sys.executable, "-m", "lakehouse_assets.cli", "run"]
OVER = (dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.FAILURE)


@pytest.fixture(autouse=True)
def project(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_project(tmp_path / "project", "tests.support.independent_pipeline"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("LAKEHOUSE_MAX_WORKERS", "2")


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(RUN, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120)


def statuses(settings: Settings) -> dict[str, dg.DagsterRunStatus]:
    with dg.DagsterInstance.from_config(str(settings.home / "dagster")) as instance:
        found = {}
        for one in instance.get_runs():
            assert one.asset_selection
            (key,) = one.asset_selection
            found.setdefault(key.path[-1], one.status)  # of its newest run
        return found


def test_independent_assets_run_at_once_and_in_turn_where_one_worker_is_allowed(tmp_path: Path) -> None:
    done = run(MEETS=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    begun = [line.split("  ")[0] for line in done.stdout.splitlines() if line.endswith("  0:00")]
    assert begun == ["[1/3] free.one", "[2/3] free.two", "[3/3] free.after_one"]
    done = run(LAKEHOUSE_MAX_WORKERS="1")
    lines = [line.split(" in ")[0] for line in done.stdout.splitlines()[:6]]
    in_turn = ("[1/3] free.one", "[2/3] free.two", "[3/3] free.after_one")
    assert lines == [line for name in in_turn for line in (f"{name}  0:00", f"{name}  done")]


def assert_only_one_failed(done: subprocess.CompletedProcess[str], why: str) -> None:
    assert done.returncode == 1
    assert "[2/3] free.two  done in " in done.stdout
    assert f"free.one failed: {why}" in done.stdout
    assert "not run, because of what failed: free.after_one" in done.stdout


def test_a_failure_stops_those_that_depend_on_it_and_no_others(settings: Settings) -> None:
    assert_only_one_failed(run(FAILS="one"), "one has no rows")
    assert statuses(settings) == {"one": dg.DagsterRunStatus.FAILURE, "two": dg.DagsterRunStatus.SUCCESS}


def test_a_process_that_is_killed_fails_its_asset_only(settings: Settings) -> None:
    assert_only_one_failed(run(DIES="one"), "its process ended with exit code -9")
    assert "died" in run().stdout
    assert statuses(settings)["one"] is dg.DagsterRunStatus.SUCCESS


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_command_ends_all_of_its_runs(
    settings: Settings, tmp_path: Path, number: signal.Signals
) -> None:
    process = subprocess.Popen(RUN, env={**os.environ, "STAYS": str(tmp_path)}, stdout=subprocess.PIPE, text=True)
    until(lambda: (tmp_path / "one").exists() and (tmp_path / "two").exists())
    runs = children_of(process.pid)
    assert len(runs) == 2
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (-number if number is signal.SIGKILL else 130)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in runs))
    assert {status in OVER for status in statuses(settings).values()} == {True}

"""The commands a newcomer types, as processes: what they print, their exit status, and what they leave behind."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO

import dagster as dg
import pytest

from lakehouse_assets.drive.liveness import PROCESS_TAG, start_time
from lakehouse_assets.environment.settings import Settings
from tests.conftest import ROOT
from tests.support.projects import make_project
from tests.support.twins import twins

pytestmark = pytest.mark.spark  # nothing here starts a JVM, but all of it needs set-up to have run
PIPELINE = "tests.support.pipeline"
CLI = ["-m", "lakehouse_assets.cli"]
RUN = [*CLI, "run", "--domain"]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands work on the code location of pipeline.py, unless a test goes elsewhere."""
    monkeypatch.chdir(make_project(tmp_path / "project", PIPELINE))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def _python(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **env}, capture_output=True, text=True, timeout=120
    )


def _until(condition: Callable[[], object], process: subprocess.Popen[str], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def _instance(settings: Settings) -> dg.DagsterInstance:
    return dg.DagsterInstance.from_config(str(settings.home / "dagster"))


def test_run_materializes_everything_in_order_and_sums_up(settings: Settings) -> None:
    done = _python(*RUN, "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    with _instance(settings) as instance:
        origins = {run.remote_job_origin.location_name for run in instance.get_runs()}
    assert origins == {PIPELINE}  # the UI re-executes a run in the location it came from
    lines = done.stdout.splitlines()
    assert lines[0] == "not run, because they belong to other domains: shop.orders"
    ends = [line.split("  ")[0] for line in lines if "  done in " in line]
    assert ends == ["[1/3] demo.landing", "[2/3] demo.daily", "[3/3] demo.monthly"]
    header, _, *rows = lines[lines.index("") + 1 :]
    assert header.split("  ")[0] == "table"
    assert "snapshots added" in header
    assert rows[1].split()[:2] == ["demo.daily", "5"]
    assert f"chart: {settings.home}/reports/delays.png" in lines
    assert lines[-2].startswith(f"all runs in the UI: LAKEHOUSE_HOME={settings.home} ")
    assert lines[-1] == "health of the lake: there are no tables yet"
    assert done.stderr == ""
    assert "not for the terminal" not in done.stdout
    assert "not for the terminal" in (settings.home / "run.log").read_text()
    with _instance(settings) as instance:
        runs = instance.get_runs()
        assert len(runs) == 3
        assert all(run.is_success for run in runs)
        assert instance.get_materialized_partitions(dg.AssetKey(["demo", "daily"])) == {
            f"2013-01-0{day}" for day in range(1, 6)
        }


@pytest.mark.long("The command is the same with another domain.")
def test_a_domain_is_run_without_the_others_and_an_unknown_one_is_refused(settings: Settings) -> None:
    unknown = _python(*RUN, "trade")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert unknown.stderr == "error: there is no domain 'trade'; the domains are demo, shop\n"
    done = _python(*RUN, "shop")
    assert "[1/1] shop.orders  done in " in done.stdout
    assert "not run" not in done.stdout


@pytest.mark.long("Starts many processes at once; a race that only set-up can lose.")
def test_starts_at_once_on_a_new_home_leave_it_usable(settings: Settings) -> None:
    opening = "from lakehouse_assets.environment.settings import read_settings as s\n"
    opening += "from lakehouse_assets.cli import home, instance\n"
    opening += "home.prepare(s())\nwith instance.opened(s()) as (i, _): i.schedule_storage.all_instigator_state()"
    at_once = [subprocess.Popen([sys.executable, "-c", opening], stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate()[1] for process in at_once if process.wait()] == []
    assert _python("-c", opening).returncode == 0


def test_a_failed_table_is_told_in_its_own_words_and_stops_what_depends_on_it(settings: Settings) -> None:
    done = _python(*RUN, "demo", PIPELINE_FAILS="yes")
    assert done.returncode == 1
    assert "demo.daily failed: demo.daily: no room for 2013-01-03; make room, then run again" in done.stdout
    assert "not run, because of what failed: demo.monthly" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    with _instance(settings) as instance:
        failed = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE]))
        assert f"/runs/{failed[0].run_id}" in done.stdout
        assert not instance.get_latest_materialization_event(dg.AssetKey(["demo", "monthly"]))


@pytest.mark.parametrize("number", twins([signal.SIGINT, signal.SIGTERM], "Dagster handles both alike."))
def test_interrupting_ends_the_run_at_once_and_leaves_it_canceled(
    settings: Settings, tmp_path: Path, number: signal.Signals
) -> None:
    waiting = tmp_path / "waiting"
    process = subprocess.Popen(
        [sys.executable, *RUN, "demo"],
        env={**os.environ, "PIPELINE_WAITS": str(waiting)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    _until(waiting.exists, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, out + err
    assert "Traceback" not in out + err
    with _instance(settings) as instance:
        last = instance.get_runs(limit=1)[0]
        assert last.status in (dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.FAILURE)


@pytest.mark.long("A run of a real worker to see its line; the tests of cli hold what the line says.")
def test_a_terminal_sees_a_bar_that_ends_as_the_result(settings: Settings) -> None:
    reader, writer = pty.openpty()
    process = subprocess.Popen([sys.executable, *RUN, "demo"], env=dict(os.environ), stdout=writer, stderr=writer)
    os.close(writer)
    shown = b""
    while True:
        try:
            chunk = os.read(reader, 4096)
        except OSError:  # Linux says so when the other side is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(reader)
    assert process.wait() == 0
    assert re.search(rb"\[2/3\] demo\.daily .* \d+/\d+ ", shown)
    assert b"\x1b[2K[2/3] demo.daily  done in 0:0" in shown


@pytest.mark.long("Several runs of `make run`, one of them killed; test_dead_runs.py holds what is reaped.")
def test_a_second_run_reaps_the_dead_and_tidies_up_in_its_own_home_only(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    for home in (settings.home, other):
        assert _python(*RUN, "demo", LAKEHOUSE_HOME=str(home)).returncode == 0
        (home / "tmp" / "blockmgr-1").mkdir()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        tags = {PROCESS_TAG: f"{socket.gethostname()}:{process.pid}:{start_time(process.pid)}"}
        process.kill()

    @dg.job
    def nothing() -> None: ...

    with _instance(settings) as instance:
        dead = instance.create_run_for_job(nothing, tags=tags, status=dg.DagsterRunStatus.STARTED)
        done = _python(*RUN, "demo")
        assert f"the process of run {dead.run_id} died" in done.stdout
        assert instance.get_run_by_id(dead.run_id).status is dg.DagsterRunStatus.FAILURE
        assert len(instance.get_runs()) == 7
        limits = instance.event_log_storage.get_concurrency_info("lake_workers")
        assert limits.slot_count == settings.max_workers
    assert not (settings.home / "tmp" / "blockmgr-1").exists()
    assert (other / "tmp" / "blockmgr-1").exists()
    monkeypatch.setenv("DAGSTER_HOME", str(other / "dagster"))
    with dg.DagsterInstance.get() as instance:
        assert len(instance.get_runs()) == 3


@pytest.mark.parametrize("command", ["run", "ui"])
@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"LAKEHOUSE_COMPUTE": "mainframe"}, "LAKEHOUSE_COMPUTE='mainframe' is unknown; expected one of inline, local"),
        ({"LAKEHOUSE_HOME": "/proc/nowhere"}, "LAKEHOUSE_HOME=/proc/nowhere: /proc/nowhere can't be written"),
        ({"LAKEHOUSE_HOME": "/dev/null/home"}, "point LAKEHOUSE_HOME to a directory that you can write to"),
        (
            {"JAVA_HOME": "/nonexistent", "LAKEHOUSE_JAVA_HOME": ""},
            "JAVA_HOME=/nonexistent: /nonexistent/bin/java does not exist",
        ),
        ({"LAKEHOUSE_CACHE": "/nonexistent"}, "lakehouse setup`"),
    ],
)
def test_what_cannot_work_is_said_in_a_line(settings: Settings, command: str, env: dict[str, str], told: str) -> None:
    done = _python(*CLI, command, **env)
    assert done.returncode == 1
    assert told in done.stderr
    assert len((done.stdout + done.stderr).splitlines()) <= 2


@pytest.mark.parametrize("command", ["run", "ui"])
def test_all_that_the_code_location_would_refuse_is_said_at_once(settings: Settings, command: str) -> None:
    done = _python(*CLI, command, LAKEHOUSE_COMPUTE="ecs", AWS_CONFIG_FILE="/dev/null", AWS_DEFAULT_REGION="")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    for name in ("LAKEHOUSE_ECS_SUBNETS", "PYICEBERG_CATALOG__LAKE__URI", "LAKEHOUSE_LANDING", "AWS_DEFAULT_REGION"):
        assert done.stderr.count(f"{name} ") == 1
    assert not settings.home.exists()


def test_a_taken_port_is_said_plainly(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = _python(*CLI, "ui", "--port", str(port))
    assert done.returncode == 1
    assert f"port {port}" in done.stderr
    assert "--port" in done.stderr
    assert not settings.home.exists()


@pytest.mark.slow("What a newcomer starts first.")
@pytest.mark.server
def test_the_ui_serves_the_location_and_ends_with_everything_it_started(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, *CLI, "ui", "--port", str(port)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    query = b'{"query": "{ workspaceOrError { ... on Workspace { locationEntries { name loadStatus } } } }"}'
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/graphql", query, headers={"Content-Type": "application/json"}
    )

    def serves() -> bool:
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                entries = json.load(answer)["data"]["workspaceOrError"]["locationEntries"]
        except OSError:
            return False
        return entries == [{"name": "lakehouse_assets", "loadStatus": "LOADED"}]

    try:
        assert process.stdout is not None
        first, *others = _lines_until(process.stdout, "Dagster UI: ")
        assert first == f"starting the Dagster UI (LAKEHOUSE_HOME={settings.home}) …\n"
        assert others[-1] == f"Dagster UI: http://127.0.0.1:{port}; press Ctrl-C to stop\n"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=5) as answer:
            assert answer.status == 200, "it is printed when it answers"
        _until(serves, process, seconds=120)
        group = _children(process.pid)
        assert group
    finally:
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert not [pid for pid in group if start_time(pid)], out


def _lines_until(output: IO[str], beginning: str) -> list[str]:
    """What is printed, up to a line that begins so."""
    lines = [""]
    while not lines[-1].startswith(beginning):
        lines.append(output.readline())
        assert lines[-1], "".join(lines)
    return lines[1:]


def _children(pid: int) -> list[int]:
    """All processes below one, at this moment."""
    direct = [int(p) for t in Path(f"/proc/{pid}/task").iterdir() for p in (t / "children").read_text().split()]
    return direct + [grandchild for child in direct for grandchild in _children(child)]

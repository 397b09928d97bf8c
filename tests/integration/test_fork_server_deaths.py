"""Whatever is killed, no process and no folder stays, and the next run goes on. Rows are counted in bench/kills.py."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehouse_assets.drive.liveness import start_time
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.extensions.fork_server import folders
from tests.conftest import Lake, failure_text
from tests.integration.test_fork_server import end_all, looked
from tests.support import leaving_steps
from tests.support.faults import wait_for

pytestmark = pytest.mark.spark
WORKER, SERVER, JVM, OF_STEP = range(4)
OTHERS = "Starts two JVMs, for a death that another one stands for."


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Lake]:
    monkeypatch.setenv("LAKEHOUSE_WORKER_IDLE", "PT1M")
    lake: Lake = request.getfixturevalue("lake")  # which reads it
    lake.settings.home.mkdir(exist_ok=True)
    yield lake
    end_all(lake)


def run_apart(lake: Lake) -> tuple[subprocess.Popen[bytes], list[int]]:
    """A run in a process of its own, and the processes of its worker, whose step never ends."""
    code = (
        "import dagster as dg; from tests.conftest import Lake; from tests.support.leaving_steps import table_of; "
        "from lakehouse_assets.environment.settings import read_settings; "
        "Lake(read_settings(), dg.DagsterInstance.get()).run(table_of('waits'))"
    )
    env = {**os.environ, "DAGSTER_HOME": lake.instance.root_directory}
    process = subprocess.Popen([sys.executable, "-c", code], env=env)
    note = lake.settings.home / leaving_steps.WAITING
    wait_for(note.exists)
    pids = [int(pid) for pid in note.read_text().split()]
    note.unlink()
    return process, pids


def is_gone(pid: int) -> bool:
    return start_time(pid) is None


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.long(OTHERS)),
        pytest.param(signal.SIGINT, marks=pytest.mark.long(OTHERS)),
    ],
)
def test_a_killed_run_takes_its_worker_along(warm: Lake, number: signal.Signals) -> None:
    process, pids = run_apart(warm)
    process.send_signal(number)
    process.wait()
    wait_for(lambda: all(map(is_gone, pids)), 20)
    assert folders.alive(warm.settings.home / folders.WORKERS) == []
    assert looked(warm)["jvm"]


@pytest.mark.long(OTHERS)
@pytest.mark.parametrize("which", [WORKER, SERVER, JVM])
def test_a_run_whose_worker_is_killed_says_so_and_the_next_goes_on(warm: Lake, which: int) -> None:
    process, pids = run_apart(warm)
    os.kill(pids[which], signal.SIGKILL)
    process.wait(60)
    wait_for(lambda: all(map(is_gone, pids)), 20)
    assert folders.alive(warm.settings.home / folders.WORKERS) == []
    (run,) = warm.instance.get_runs(limit=1)
    told = " ".join(entry.user_message for entry in warm.instance.all_logs(run.run_id))
    assert "SIGKILL" in told
    assert looked(warm)["jvm"]


@pytest.mark.parametrize("which", ["pid", pytest.param("jvm", marks=pytest.mark.long(OTHERS))])
def test_an_idle_worker_that_is_killed_is_not_missed(warm: Lake, which: str) -> None:
    first = looked(warm)
    (folder,) = folders.alive(warm.settings.home / folders.WORKERS)
    os.kill(getattr(folder.about, which), signal.SIGKILL)
    wait_for(lambda: not folder.is_alive, 20)
    assert looked(warm)["jvm"] != first["jvm"]
    assert not folder.path.exists()
    wait_for(lambda: is_gone(folder.about.jvm) and is_gone(folder.about.pid), 20)


@pytest.mark.long("Starts two JVMs.")
def test_it_ends_when_its_time_is_over_and_when_its_home_is_gone(
    warm: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    workers = warm.settings.home / folders.WORKERS
    monkeypatch.setenv("LAKEHOUSE_WORKER_IDLE", "PT1S")
    looked(Lake(read_settings(), warm.instance))
    (folder,) = folders.alive(workers)
    wait_for(lambda: is_gone(folder.about.pid) and is_gone(folder.about.jvm), 20)
    assert [*workers.iterdir()] == []
    looked(warm)
    (folder,) = folders.alive(workers)
    shutil.rmtree(workers)
    wait_for(lambda: is_gone(folder.about.pid) and is_gone(folder.about.jvm), 20)


@pytest.mark.long("Starts three JVMs.")
def test_a_full_heap_is_told_and_ends_the_jvm(warm: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_SPARK__spark__driver__memory", "512m")
    before = looked(warm)
    failed = warm.run(leaving_steps.table_of("fills"))
    assert not failed.success
    assert "OutOfMemoryError" in failure_text(failed)
    assert looked(warm)["jvm"] != before["jvm"]


@pytest.mark.long("Starts three JVMs.")
def test_only_as_many_stay_as_may_work_at_once(warm: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_MAX_WORKERS", "1")
    first = looked(warm)
    monkeypatch.setenv("UNLIKE", "the first")
    second = looked(warm)
    assert second["jvm"] != first["jvm"]
    until = time.monotonic() + 20
    while len(folders.alive(warm.settings.home / folders.WORKERS)) > 1:
        assert time.monotonic() < until
        time.sleep(0.1)
    monkeypatch.delenv("UNLIKE")
    assert looked(warm)["jvm"] not in (first["jvm"], second["jvm"])

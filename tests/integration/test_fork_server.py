"""Nothing of one chunk is seen by the next, though both use one JVM; what can't be taken away ends that JVM.
The steps are in tests/support/leaving_steps.py."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.extensions.fork_server import folders
from lakehouse_assets.extensions.fork_server.lease import lease
from tests.conftest import ROOT, Lake, failure_text
from tests.support import leaving_steps
from tests.support.faults import wait_for
from tests.support.instances import light_instance

pytestmark = pytest.mark.spark
SHOWS = "tests.support.leaving_steps:shows"


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory, empty_instance: Path) -> Iterator[Lake]:
    """A lake whose workers stay, for all tests of the module."""
    folder = tmp_path_factory.mktemp("warm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKEHOUSE_HOME", str(folder / "home"))
        patch.setenv("LAKEHOUSE_WORKER_IDLE", "PT5M")
        patch.setenv("PYTHONPATH", str(ROOT))
        (folder / "dagster").mkdir()
        with light_instance(folder / "dagster") as instance:
            lake = Lake(read_settings(), instance)
            lake.settings.home.mkdir()
            yield lake
            end_all(lake)


def end_all(lake: Lake) -> None:
    """Ends idle servers; fails if one is busy."""
    workers = lake.settings.home / folders.WORKERS
    assert all(folder.end() for folder in folders.alive(workers))
    until = time.monotonic() + 20
    while folders.alive(workers):
        assert time.monotonic() < until
        time.sleep(0.1)


def ran(lake: Lake, step: str) -> dict[str, Any]:
    """Fills a table by a step; returns its row."""
    table = leaving_steps.table_of(step)
    result = lake.run(table)
    assert result.success, failure_text(result)
    (row,) = lake.rows(table).to_pylist()
    return row | {"saw": json.loads(row["saw"] or "null")}


def looked(lake: Lake, see: Iterable[str] = (), act: Iterable[str] = ()) -> dict[str, Any]:
    """As ran(), by a step that does something and then looks at something."""
    (lake.settings.home / leaving_steps.ASKED).write_text(json.dumps({"act": [*act], "see": [*see]}))
    return ran(lake, "acts")


def test_what_a_step_changes_ends_with_its_chunk(warm: Lake) -> None:
    acts = leaving_steps.OWN
    before, left, after = looked(warm, acts), looked(warm, acts, acts), looked(warm, acts)
    assert [name for name in acts if left["saw"][name] == before["saw"][name]] == [], "the step would not see it"
    assert after["saw"] == before["saw"]
    assert after["jvm"] == left["jvm"] == before["jvm"], "a new JVM was not necessary"
    assert after["pid"] != left["pid"]


def test_python_functions_run_in_the_python_of_the_worker(warm: Lake) -> None:
    assert looked(warm, ["python"])["saw"] == {"python": sys.executable}


def test_chunks_draw_different_random_numbers(warm: Lake) -> None:
    one, other = ran(warm, "numbers"), ran(warm, "numbers")
    assert one["jvm"] == other["jvm"]
    assert not {*one["saw"]} & {*other["saw"]}


def test_a_command_has_a_worker_for_what_is_no_run(warm: Lake, capfd: pytest.CaptureFixture[str]) -> None:
    before = looked(warm)
    found = lease(warm.settings, {}, ("tests",), idle=timedelta(minutes=5), work=SHOWS)
    wait_for(lambda: found.poll() is not None)
    assert found.poll() == 0
    assert capfd.readouterr().out == f"3 rows by {before['jvm']}\n"


MOST = pytest.mark.long("Each starts two JVMs; what is looked for is in test_leftovers.py.")


@pytest.mark.parametrize(
    "act", [act if act == "cache" else pytest.param(act, marks=MOST) for act in leaving_steps.IN_JVM]
)
def test_a_jvm_in_which_a_step_leaves_something_is_not_used_again(warm: Lake, act: str) -> None:
    before, left, after = looked(warm, [act]), looked(warm, [act], [act]), looked(warm, [act])
    assert left["saw"] != before["saw"], "the step would not see it"
    assert after["saw"] == before["saw"]
    assert after["jvm"] != left["jvm"] == before["jvm"]


@pytest.mark.long("The negative control of what is looked at.")
def test_without_the_look_a_step_sees_what_another_left(warm: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    end_all(warm)
    monkeypatch.setattr("lakehouse_assets.extensions.fork_server.lease.SERVER", "tests.support.careless_server")
    acts = leaving_steps.IN_JVM.keys() - {"thread", "job"}  # threads of Python end with the worker
    before = looked(warm, acts)
    for act in sorted(acts):
        looked(warm, act=[act])
        after = looked(warm, [act])
        assert after["jvm"] == before["jvm"]
        assert after["saw"][act] != before["saw"][act], act
    end_all(warm)


@MOST
@pytest.mark.parametrize("step", ["fails", "leaves", "stops", "kills_java"])
def test_a_chunk_that_fails_ends_its_jvm(warm: Lake, step: str) -> None:
    before = looked(warm)
    assert not warm.run(leaving_steps.table_of(step)).success
    assert looked(warm)["jvm"] != before["jvm"]


@pytest.mark.long("Thirty chunks.")
def test_a_jvm_does_not_grow_with_its_chunks(warm: Lake) -> None:
    def size() -> tuple[int, int, int]:
        (folder,) = folders.alive(warm.settings.home / folders.WORKERS)
        opened = len([*Path(f"/proc/{folder.about.jvm}/fd").iterdir()])
        files = sum(file.stat().st_size for file in folder.path.rglob("*") if file.is_file())
        return folder.resident_bytes(), opened, files

    for _ in range(10):
        looked(warm, leaving_steps.OWN)
    memory, opened, files = size()
    for _ in range(20):
        looked(warm, leaving_steps.OWN)
    # Spark closes its connections to the Python workers of a chunk when none was used for a minute.
    wait_for(lambda: size()[1] <= opened, seconds=120)
    later = size()
    print(f"{memory >> 20} MiB, {opened} descriptors, {files} bytes", later)
    assert later[0] < memory * 1.1
    assert later[2] < files + 2**20

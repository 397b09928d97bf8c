"""`make run` on a disk that fills up, wherever it strikes: a line that says which, exit status 1, and no harm done.
The disk is a real one, of 8 MiB. What a run makes of a full warehouse is in test_faults.py."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from tests.conftest import ROOT
from tests.support.faults import ORDER, TINY, fill, small_disk, wait_for
from tests.support.projects import make_project
from tests.support.tables import DAYS, numbers
from tests.support.twins import twins

pytestmark = pytest.mark.spark  # none starts, but its jars must be there
# `make run` of one table, filled by one tiny worker; the disk is filled around the commit where that is asked.
RUN = """
import sys
from pathlib import Path
from lakehouse_assets.cli import __main__ as cli
from lakehouse_assets.run import table_run
from lakehouse_assets.environment.settings import read_settings
from tests.support.faults import fill

publish, home = table_run.publish, read_settings().home

def filling(*arguments, **options):
    if sys.argv[1] == "before the commit":
        fill(home)
    published = publish(*arguments, **options)
    if sys.argv[1] == "before the report":
        fill(home)
    return published

table_run.publish = filling
sys.exit(cli.main(["run", "--domain", "demo"]))
"""


@pytest.fixture
def disk(settings: Settings) -> Iterator[Path]:
    with small_disk(settings.home) as disk:
        yield disk


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_project(tmp_path / "project", "tests.support.faults"))


def start(fills: str = "") -> subprocess.Popen[str]:
    order = json.dumps({"keys": [], "step": f"{TINY}:stage"})
    command = [sys.executable, "-c", RUN, fills]
    pipe = subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": str(ROOT), ORDER: order}
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


def ended_well(run: subprocess.Popen[str]) -> None:
    out, errors = run.communicate(timeout=120)
    assert run.returncode == 0, out + errors


def told(run: subprocess.Popen[str], disk: Path) -> None:
    out, errors = run.communicate(timeout=120)
    assert run.returncode == 1
    assert "Traceback" not in out + errors, out + errors
    assert len(out.splitlines()) <= 10, out + errors
    said = f"the disk is full: 0.0 of 8 MiB free on the file system of {disk}; free up space there"
    assert said in out + errors, out + errors
    assert len(errors.splitlines()) <= 1, out + errors


@pytest.mark.parametrize("where", ["| head -1", "> /dev/full"])
def test_output_that_nobody_gets_fails_no_run(settings: Settings, where: str) -> None:
    """Neither a pager that ends, nor standard output's full disk, which is not the lake's."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), ORDER: json.dumps({"keys": [], "step": f"{TINY}:stage"})}
    call = f"{{ {shlex.join([sys.executable, '-c', RUN, ''])}; }} {where}"
    command = ["bash", "-o", "pipefail", "-c", call]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    lost = "error: standard output can't be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (0, lost if "full" in where else ""), done.stdout
    assert rows(settings) == 3 * len(DAYS.get_partition_keys())


def rows(settings: Settings) -> int:
    return load_lake(settings).load_table(numbers().identifier).scan().count()


@pytest.mark.long("Two runs of real workers; the test of a disk that is full at the commit stays.")
def test_a_disk_that_is_full_while_a_worker_runs_and_at_the_next_start(settings: Settings, disk: Path) -> None:
    (disk / "hold").write_text(DAYS.get_first_partition_key() or "")
    run = start()
    wait_for(lambda: (disk / "started").exists())
    fill(disk)
    (disk / "hold").unlink()
    told(run, disk)
    fill(disk)
    told(start(), disk)
    (disk / "filler").unlink()
    ended_well(start())
    assert rows(settings) == 3 * len(DAYS.get_partition_keys())


@pytest.mark.slow("The disk that is full at the worst moment.")
@pytest.mark.parametrize(
    "fills", twins(["before the commit", "before the report"], "What follows a commit is held by test_after_commit.py.")
)
def test_a_disk_that_is_full_at_the_end_of_a_run(settings: Settings, disk: Path, fills: str) -> None:
    told(start(fills), disk)
    with suppress(FileNotFoundError):
        (disk / "filler").unlink()
    ended_well(start())
    assert rows(settings) == 3 * len(DAYS.get_partition_keys())

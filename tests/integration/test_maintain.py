"""`make maintain` as a person types it: what it shows, what it does, and that a dry run does nothing."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import dagster as dg
import pyarrow as pa
import pytest

from lakehouse_assets.commit.target import open_target
from lakehouse_assets.domains.nyc.tables import airlines
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.maintenance.job import POOL

pytestmark = pytest.mark.spark  # no JVM is started, but set-up must have run


def maintain(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lakehouse_assets.cli", "maintain", *arguments]
    return subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=120)


def files(settings: Settings) -> int:
    return len(list(load_lake(settings).load_table(airlines.identifier).scan().plan_files()))


@pytest.mark.slow("The command that a person trusts with a table.")
def test_it_shows_what_a_table_needs_then_does_it_then_finds_nothing(settings: Settings) -> None:
    table = open_target(load_lake(settings), airlines)
    for n in range(12):
        table.append(pa.Table.from_pylist([{"carrier": f"A{n}", "name": "A"}], schema=table.schema().as_arrow()))

    shown = maintain()
    assert (shown.returncode, shown.stderr) == (0, "")
    header, _, row, *_ = shown.stdout.splitlines()
    assert header.split() == [*("table", "level", "by", "why", "expected", "gain", "size", "seconds", "verdict")]
    assert row.split()[:6] == ["nyc.airlines", "fragments", "Python", "12", "small", "files"]
    assert row.endswith("taken")
    assert re.fullmatch("nothing was changed; `.*lakehouse maintain --apply` does it", shown.stdout.splitlines()[-1])
    assert files(settings) == 12

    done = maintain("--apply")
    assert (done.returncode, done.stderr) == (0, "")
    assert "12 → 1 files" in done.stdout
    assert files(settings) == 1
    shown = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if len(line.split()) > 1)
    assert shown["gain"] == "11 files"
    assert shown["proof"].startswith("12 rows, digest ")

    again = maintain()
    assert (again.returncode, again.stderr) == (0, "")
    told, header, _, row, hint = again.stdout.replace("\n\n", "\n").splitlines()
    assert told == "1 table checked; nothing to do. These are the limits at which maintenance would act:"
    assert header.split() == ["table", "deletes", "undersized", "fragments", "manifests", "expire"]
    assert row.startswith("nyc.airlines ")
    assert "  0 of 12  " in row
    assert "--force" in hint

    forced = maintain("--force", "--level", "expire")
    assert "nothing to do" in forced.stdout, "all snapshots are young"
    assert "13 of 1,001 snapshots" in forced.stdout


def test_what_cannot_be_done_is_an_error_that_names_the_table(settings: Settings) -> None:
    open_target(load_lake(settings), airlines).append(
        pa.Table.from_pylist([{"carrier": "AA", "name": "A"}], schema=airlines.schema.as_arrow())
    )
    for manifest in (settings.home / "warehouse").rglob("*-m0.avro"):
        manifest.unlink()
    broken = maintain()
    assert broken.returncode == 1
    assert broken.stdout == ""
    assert broken.stderr.startswith("error: ")
    assert "-m0.avro" in broken.stderr


@pytest.mark.long("Waits for a run and kills it; test_in_flight.py holds what counts as a run.")
def test_a_run_in_its_way_is_named_and_is_in_nobodys_way_once_its_process_is_dead(settings: Settings) -> None:
    open_target(load_lake(settings), airlines)
    maintain()  # makes the instance
    environment = {**os.environ, "DAGSTER_HOME": str(settings.home / "dagster")}
    job = ["-m", "dagster", "job", "execute", "-m", "lakehouse_assets.definitions", "-j", "lakehouse_maintenance"]
    with closing(sqlite3.connect(settings.home / "catalog.db")) as catalog:
        catalog.execute("BEGIN EXCLUSIVE")  # the run waits for the catalog, with its slot of the pool
        process = subprocess.Popen([sys.executable, *job], env=environment, stderr=subprocess.DEVNULL)
        try:
            run_id = holder(settings)
            second = maintain()
            assert second.returncode == 1
            assert f"the run {run_id} is already maintaining tables; wait until it ends" in second.stderr
        finally:
            process.kill()
            process.wait()
    assert maintain().returncode == 0


def holder(settings: Settings) -> str:
    """The run that has the slot of the pool, once its op has begun."""
    with dg.DagsterInstance.from_config(str(settings.home / "dagster")) as instance:
        while True:
            slots = instance.event_log_storage.get_concurrency_info(POOL).claimed_slots
            for run in filter(None, (instance.get_run_by_id(slot.run_id) for slot in slots)):
                if run.status is dg.DagsterRunStatus.STARTED:
                    return run.run_id
            time.sleep(0.2)

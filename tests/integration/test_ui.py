"""What the UI's buttons ask of the daemon, asked by GraphQL; the browser itself is in tests/browser.
Pools are in test_pools.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakehouse_assets.domains.nyc.landing import deliver, into_folder
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import read_settings
from tests.conftest import ROOT
from tests.support.dagster_server import DagsterServer, dagster_server, until
from tests.support.fakes.ecs import ecs_site
from tests.support.projects import make_project
from tests.support.servers import SeaweedFS, free_ports

pytestmark = pytest.mark.server


@pytest.mark.long("A backfill by the real daemon; tests/browser has one, by a person's clicks.")
def test_a_backfill_of_scattered_keys_is_one_run_and_one_commit_for_each_contiguous_range(
    pool_server: DagsterServer,
) -> None:
    keys = ["2024-02-01", "2024-02-02", "2024-02-05", "2024-02-07", "2024-02-08", "2024-02-09"]
    backfill = pool_server.backfill(("demo", "light"), keys)
    runs = until(lambda: pool_server.backfilled(backfill), seconds=180)
    ranges = {
        (run["tags"]["dagster/asset_partition_range_start"], run["tags"]["dagster/asset_partition_range_end"]): run
        for run in runs
    }
    assert set(ranges) == {(keys[0], keys[1]), (keys[2], keys[2]), (keys[3], keys[5])}

    table = load_lake(read_settings({"LAKEHOUSE_HOME": str(pool_server.home)})).load_table("demo.light")
    told = [snapshot.summary.additional_properties for snapshot in table.snapshots()]
    of_backfill = {t["lakehouse.run-id"]: t["lakehouse.partitions"] for t in told}
    assert {run["runId"]: of_backfill[run["runId"]] for run in runs} == {
        ranges[keys[0], keys[1]]["runId"]: "2024-02-01..2024-02-02 (2)",
        ranges[keys[2], keys[2]]["runId"]: "2024-02-05",
        ranges[keys[3], keys[5]]["runId"]: "2024-02-07..2024-02-09 (3)",
    }
    assert len([t for t in told if t["lakehouse.run-id"] in {run["runId"] for run in runs}]) == 3
    landed = table.scan(row_filter="day >= '2024-02-01'", selected_fields=("day",)).to_arrow()["day"].to_pylist()
    assert sorted(map(str, landed)) == sorted(keys * 3)


RUN_AIRLINES = """
import dagster as dg
from lakehouse_assets.cli.home import prepare
from lakehouse_assets.cli.instance import opened
from lakehouse_assets.cli.pipeline import Pipeline, Selection
from lakehouse_assets.environment.settings import read_settings
settings = read_settings()
prepare(settings)
with opened(settings) as (instance, _):
    result = Pipeline().execute(instance, Selection((dg.AssetKey(["nyc", "airlines"]),), None))
    print(result.run_id, result.success)
"""


@pytest.mark.long("Waits for the daemon; test_faults.py re-executes in one process.")
@pytest.mark.spark
def test_what_make_run_ran_is_re_executed_from_failure_in_the_ui(tmp_path: Path) -> None:
    home, landing = tmp_path / "home", tmp_path / "landing"
    environment = {"LAKEHOUSE_HOME": str(home), "LAKEHOUSE_LANDING": str(landing)}
    ran = subprocess.run([sys.executable, "-c", RUN_AIRLINES], env=os.environ | environment, stdout=subprocess.PIPE)
    run, success = ran.stdout.decode().splitlines()[-1].split()
    assert success == "False"  # nothing has been delivered yet
    deliver(into_folder(landing / "nyc"))
    with dagster_server(home, LAKEHOUSE_LANDING=str(landing)) as server:
        again = server.re_execute(run)
        assert until(lambda: server.ended(again)) == "SUCCESS"
    assert load_lake(read_settings(environment)).load_table("nyc.airlines").scan().count() == 16


@pytest.mark.long("Waits for the daemon; test_ecs.py terminates runs in one process.")
@pytest.mark.spark
def test_a_run_terminated_in_the_ui_stops_its_worker_on_ecs(weed: SeaweedFS, tmp_path: Path) -> None:
    with (
        ecs_site(weed, tmp_path / "site") as site,
        dagster_server(tmp_path / "home", **site.environment) as server,
    ):
        run = server.launch(("nyc", "airlines"))
        until(site.running, state=lambda: server.output(run))
        server.terminate(run)
        assert until(lambda: server.ended(run)) == "CANCELED"
        (task,) = site.ecs.tasks.values()
        assert task.stopping
        assert task.stopping[0] == "UserInitiated"
        until(lambda: not site.running())


@pytest.mark.long("Starts a second UI beside the first.")
def test_a_home_has_one_ui(pool_server: DagsterServer) -> None:
    command = [sys.executable, "-m", "lakehouse_assets.cli", "ui", "--port", "0"]
    home = {"LAKEHOUSE_HOME": str(pool_server.home)}
    second = subprocess.run(command, env=os.environ | home, capture_output=True, text=True, timeout=120)
    assert second.returncode == 1
    assert f"already has a UI running: {pool_server.url}, process {pool_server.pid}" in second.stderr


def test_a_server_that_ends_before_it_answers_gives_its_status_and_no_address(tmp_path: Path) -> None:
    project = make_project(tmp_path, "tests.support.pipeline")
    with (project / "pyproject.toml").open("a") as file:
        file.write('modules = [{type = "module", name = "and.another"}]\n')
    command = [sys.executable, "-m", "lakehouse_assets.cli", "ui", "--port", str(free_ports(1)[0])]
    environment = {"LAKEHOUSE_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=project, env=os.environ | environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "Only one of 'module_name' or 'modules'" in done.stderr
    assert "http://" not in done.stdout

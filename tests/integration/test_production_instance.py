"""deploy/dagster.yaml whole and as it is: on a real PostgreSQL, a real S3, and ECS as AWS documents it.
What can be judged without servers is in unit/test_production.py."""

from __future__ import annotations

import json
import os
import sysconfig
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from uuid import uuid4

import boto3
import dagster as dg
import pytest
from dagster._core.launcher import LaunchRunContext, ResumeRunContext, WorkerStatus
from dagster._core.run_coordinator import QueuedRunCoordinator
from dagster._core.storage.event_log.schema import ConcurrencySlotsTable
from sqlalchemy import Update

from lakehouse_assets.drive.liveness import start_time
from lakehouse_assets.drive.slots import POOL, Slots
from lakehouse_assets.environment.settings import Settings
from tests.conftest import Lake
from tests.support.dagster_server import until
from tests.support.fakes.agent import Process
from tests.support.faults import tiny
from tests.support.production import BUCKET, TASK_DEFINITION, RunTasks, created, surroundings
from tests.support.servers import SeaweedFS

pytestmark = pytest.mark.server
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
LIMIT = 2
DAYS = ("2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> RunTasks:
    return RunTasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def production(weed: SeaweedFS, tasks: RunTasks) -> Iterator[None]:
    """This process and its children see the production instance, as a task of it does."""
    with surroundings(weed, tasks) as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setenv("DAGSTER_HOME", str(DEPLOY))
        patch.setenv("PATH", f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}")
        yield


@pytest.fixture
def instance(production: None) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.get() as instance:
        yield instance
        instance.event_log_storage.delete_concurrency_limit(POOL)


def _status(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRunStatus | None:
    found = instance.get_run_by_id(run.run_id)
    return found.status if found and found.is_finished else None


def _ends(instance: dg.DagsterInstance, run: dg.DagsterRun, tasks: RunTasks) -> dg.DagsterRunStatus:
    return until(lambda: _status(instance, run), state=lambda: [p.tail() for p in tasks.started.values()])


def test_the_whole_instance_loads(instance: dg.DagsterInstance) -> None:
    from dagster_aws.ecs import EcsRunLauncher

    assert isinstance(instance.run_launcher, EcsRunLauncher)
    assert instance.run_launcher.task_definition == TASK_DEFINITION
    assert instance.run_launcher.supports_resume_run
    assert instance.run_launcher.secrets_tags == []
    assert isinstance(instance.run_coordinator, QueuedRunCoordinator)
    assert instance.run_monitoring_enabled
    assert instance.run_monitoring_max_resume_run_attempts == 2
    assert instance.run_retries_enabled
    assert not instance.run_retries_retry_on_asset_or_op_failure


def test_what_a_step_prints_is_kept_in_the_bucket(instance: dg.DagsterInstance) -> None:
    run = str(uuid4())  # all runs of a machine write below its one temporary folder
    key = [run, "compute_logs", "step"]
    with instance.compute_log_manager.capture_logs(key):
        print("said by a step", flush=True)
    stored = [found["Key"] for found in boto3.client("s3").list_objects_v2(Bucket=BUCKET)["Contents"]]
    assert f"dagster/storage/{run}/compute_logs/step.out" in stored
    assert "said by a step" in (instance.compute_log_manager.get_log_data(key).stdout or b"").decode()


def test_two_claims_at_once_take_two_slots(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look for a free slot and its taking lies time, here half a second."""
    really = ConcurrencySlotsTable.update

    def late() -> Update:
        time.sleep(0.5)
        return really()

    storage = instance.event_log_storage
    storage.set_concurrency_slots(POOL, LIMIT)
    runs = [str(uuid4()) for _ in range(LIMIT)]
    with monkeypatch.context() as patch, ThreadPoolExecutor() as pool:
        patch.setattr(ConcurrencySlotsTable, "update", late)
        assert all(pool.map(lambda run: until(lambda: Slots(instance, run, "step").claim(0)), runs))
    held = storage.get_concurrency_info(POOL).claimed_slots
    for run in runs:
        storage.free_concurrency_slots_for_run(run)
    assert {slot.run_id for slot in held} == {*runs}


def test_a_run_is_launched_though_ecs_is_busy(instance: dg.DagsterInstance, tasks: RunTasks) -> None:
    """As many requests as boto3 makes by itself are refused."""
    tasks.throttled = 3
    run = created(instance, "tests.support.pool_location", "light", DAYS[:1])
    instance.run_launcher.launch_run(LaunchRunContext(dagster_run=run, workspace=None))
    assert tasks.throttled == 0
    assert instance.run_launcher.terminate(run.run_id)


@pytest.mark.long("Two runs of real processes; unit/drive holds the limit within a process.")
def test_the_limit_holds_over_the_runs_of_two_tasks(
    instance: dg.DagsterInstance, tasks: RunTasks, settings: Settings
) -> None:
    settings.home.mkdir()
    instance.event_log_storage.set_concurrency_slots(POOL, LIMIT)
    runs = [created(instance, "tests.support.pool_location", "light", keys) for keys in (DAYS[:2], DAYS[2:])]
    (settings.home / "hold").touch()
    for run in runs:
        instance.run_launcher.launch_run(LaunchRunContext(dagster_run=run, workspace=None))
    stamps = settings.home / "stamps.jsonl"
    until(lambda: stamps.exists() and len(stamps.read_text().splitlines()) == LIMIT)
    until(lambda: len(instance.event_log_storage.get_concurrency_info(POOL).pending_steps) > LIMIT)
    (settings.home / "hold").unlink()
    assert {_ends(instance, run, tasks) for run in runs} == {dg.DagsterRunStatus.SUCCESS}
    changes = sorted((stamp["at"], stamp["change"]) for stamp in map(json.loads, stamps.read_text().splitlines()))
    assert len(changes) == 2 * len(DAYS)
    assert max(accumulate(change for _, change in changes)) == LIMIT
    left = instance.event_log_storage.get_concurrency_info(POOL)
    assert left.claimed_slots == []
    assert left.pending_steps == []
    assert instance.get_materialized_partitions(dg.AssetKey(["demo", "light"])) == set(DAYS)


@pytest.mark.long("test_deaths.py kills runs at every step.")
def test_a_run_whose_task_was_killed_goes_on_in_a_new_one(
    instance: dg.DagsterInstance, tasks: RunTasks, settings: Settings
) -> None:
    """What run monitoring does: it asks for the worker's health, and has the run resumed by another task."""
    launcher, started = instance.run_launcher, settings.home / "started"
    run, first = _held_at_its_second_day(instance, tasks, settings)
    assert launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING
    first.kill()
    assert launcher.check_run_worker_health(run).status is WorkerStatus.FAILED

    (settings.home / "hold").unlink()
    launcher.resume_run(ResumeRunContext(dagster_run=run, workspace=None, resume_attempt_number=1))
    assert _ends(instance, run, tasks) is dg.DagsterRunStatus.SUCCESS
    assert [line.split()[1] for line in started.read_text().splitlines()] == [DAYS[0], DAYS[1], DAYS[1]]
    lake = Lake(settings, instance)
    assert lake.snapshots(tiny()) == 1
    assert lake.rows(tiny()).num_rows == 6


def test_terminating_a_run_stops_its_task_which_ends_its_workers(
    instance: dg.DagsterInstance, tasks: RunTasks, settings: Settings
) -> None:
    run, _ = _held_at_its_second_day(instance, tasks, settings)
    workers = [int(line.split()[0]) for line in (settings.home / "started").read_text().splitlines()]
    assert instance.run_launcher.terminate(run.run_id)
    assert _ends(instance, run, tasks) is dg.DagsterRunStatus.CANCELED
    until(lambda: not any(start_time(pid) for pid in workers))
    assert instance.event_log_storage.get_concurrency_info(POOL).claimed_slots == []


def _held_at_its_second_day(
    instance: dg.DagsterInstance, tasks: RunTasks, settings: Settings
) -> tuple[dg.DagsterRun, Process]:
    """A run of two days, the first staged, the second under way; and its task."""
    settings.home.mkdir()
    instance.event_log_storage.set_concurrency_slots(POOL, 1)
    (settings.home / "hold").write_text(DAYS[1])
    run = created(instance, "tests.support.tiny_location", "numbers", DAYS[:2])
    instance.run_launcher.launch_run(LaunchRunContext(dagster_run=run, workspace=None))
    task = list(tasks.started.values())[-1]
    started = settings.home / "started"
    until(lambda: started.exists() and len(started.read_text().splitlines()) == 2, state=task.tail)
    found = instance.get_run_by_id(run.run_id)
    assert found
    assert found.status is dg.DagsterRunStatus.STARTED
    return found, task


def test_a_dead_runs_claims_are_freed_and_its_place_is_the_next_ones(instance: dg.DagsterInstance) -> None:
    storage = instance.event_log_storage
    storage.set_concurrency_slots(POOL, 1)
    assert Slots(instance, "run-1", "step").claim(0)
    assert not Slots(instance, "run-2", "step").claim(0)
    assert Slots(instance, "run-1", "step").claim(0)  # the same run in a new task
    storage.free_concurrency_slots_for_run("run-1")
    assert until(lambda: Slots(instance, "run-2", "step").claim(0))
    storage.free_concurrency_slots_for_run("run-2")


def test_a_pool_nobody_set_has_the_default_limit(instance: dg.DagsterInstance) -> None:
    instance.event_log_storage.delete_concurrency_limit(POOL)
    slots = Slots(instance, "run-1", "step")
    assert [slots.claim(chunk) for chunk in range(9)] == [True] * 8 + [False]
    slots.free_all()

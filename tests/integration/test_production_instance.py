"""deploy/dagster.yaml whole and as it is: on a real PostgreSQL, a real S3, and ECS as AWS documents it.
What can be judged without servers is in unit/test_production.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import boto3
import dagster as dg
import pytest
from dagster._core.definitions.assets.job.asset_job import IMPLICIT_ASSET_JOB_NAME
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster._core.run_coordinator import QueuedRunCoordinator
from dagster._grpc.types import ExecuteRunArgs, ResumeRunArgs

from lakehouse_assets.lakehouse.slots import POOL, Slots
from resources.settings import Settings
from tests.conftest import Lake
from tests.dagster_server import until
from tests.faults import span, tiny
from tests.production import BUCKET, TASK_DEFINITION, surroundings
from tests.servers import SeaweedFS

pytestmark = pytest.mark.server
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
LIMIT = 2
DAYS = ("2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04")


@pytest.fixture(scope="module")
def production(weed: SeaweedFS) -> Iterator[None]:
    """This process and its children see the production instance, as a task of it does."""
    with surroundings(weed) as variables, pytest.MonkeyPatch.context() as patch:
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


def _created(instance: dg.DagsterInstance, module: str, asset: str, keys: Sequence[str]) -> dg.DagsterRun:
    job = ReconstructableRepository.for_module(module, "defs", str(ROOT)).get_reconstructable_job(
        IMPLICIT_ASSET_JOB_NAME
    )
    return instance.create_run_for_job(
        job_def=job.get_definition(),
        tags=span(keys),
        asset_selection=frozenset([dg.AssetKey(["demo", asset])]),
        job_code_origin=job.get_python_origin(),
    )


def _task(
    args: type[ExecuteRunArgs] | type[ResumeRunArgs], instance: dg.DagsterInstance, run: dg.DagsterRun
) -> subprocess.Popen[str]:
    """The command that EcsRunLauncher gives a run's task, as a process."""
    assert run.job_code_origin is not None
    told = args(job_origin=run.job_code_origin, run_id=run.run_id, instance_ref=instance.get_ref())
    return subprocess.Popen(
        told.get_command_args(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _succeeds(task: subprocess.Popen[str], instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    told = task.communicate(timeout=120)[0]
    found = instance.get_run_by_id(run.run_id)
    assert found and found.status is dg.DagsterRunStatus.SUCCESS, told[-8000:]


def test_the_whole_instance_loads(instance: dg.DagsterInstance) -> None:
    from dagster_aws.ecs import EcsRunLauncher

    assert isinstance(instance.run_launcher, EcsRunLauncher)
    assert instance.run_launcher.task_definition == TASK_DEFINITION
    assert instance.run_launcher.supports_resume_run
    assert instance.run_launcher.secrets_tags == []
    assert isinstance(instance.run_coordinator, QueuedRunCoordinator)
    assert instance.run_monitoring_enabled and instance.run_monitoring_max_resume_run_attempts == 2
    assert instance.run_retries_enabled and not instance.run_retries_retry_on_asset_or_op_failure


def test_what_a_step_prints_is_kept_in_the_bucket(instance: dg.DagsterInstance) -> None:
    key = ["run", "compute_logs", "step"]
    with instance.compute_log_manager.capture_logs(key):
        print("said by a step", flush=True)
    stored = [found["Key"] for found in boto3.client("s3").list_objects_v2(Bucket=BUCKET)["Contents"]]
    assert "dagster/storage/run/compute_logs/step.out" in stored
    assert "said by a step" in (instance.compute_log_manager.get_log_data(key).stdout or b"").decode()


def test_the_limit_holds_over_the_runs_of_two_tasks(instance: dg.DagsterInstance, settings: Settings) -> None:
    settings.home.mkdir()
    instance.event_log_storage.set_concurrency_slots(POOL, LIMIT)
    runs = [_created(instance, "tests.pool_location", "light", keys) for keys in (DAYS[:2], DAYS[2:])]
    (settings.home / "hold").touch()
    tasks = [_task(ExecuteRunArgs, instance, run) for run in runs]
    stamps = settings.home / "stamps.jsonl"
    until(lambda: stamps.exists() and len(stamps.read_text().splitlines()) == LIMIT)
    until(lambda: len(instance.event_log_storage.get_concurrency_info(POOL).pending_steps) > LIMIT)
    (settings.home / "hold").unlink()
    for task, run in zip(tasks, runs, strict=True):
        _succeeds(task, instance, run)
    changes = sorted((stamp["at"], stamp["change"]) for stamp in map(json.loads, stamps.read_text().splitlines()))
    assert len(changes) == 2 * len(DAYS)
    assert max(accumulate(change for _, change in changes)) == LIMIT
    left = instance.event_log_storage.get_concurrency_info(POOL)
    assert left.claimed_slots == [] and left.pending_steps == []
    assert instance.get_materialized_partitions(dg.AssetKey(["demo", "light"])) == set(DAYS)


def test_a_run_whose_task_was_killed_goes_on_in_a_new_one(instance: dg.DagsterInstance, settings: Settings) -> None:
    """What run monitoring does with max_resume_run_attempts: the same run, another process."""
    settings.home.mkdir()
    instance.event_log_storage.set_concurrency_slots(POOL, 1)
    (settings.home / "hold").write_text(DAYS[1])
    run = _created(instance, "tests.tiny_location", "numbers", DAYS[:2])
    task = _task(ExecuteRunArgs, instance, run)
    started = settings.home / "started"
    until(lambda: started.exists() and len(started.read_text().splitlines()) == 2)
    os.kill(task.pid, signal.SIGKILL)
    task.communicate()
    found = instance.get_run_by_id(run.run_id)
    assert found and found.status is dg.DagsterRunStatus.STARTED

    (settings.home / "hold").unlink()
    _succeeds(_task(ResumeRunArgs, instance, run), instance, run)
    assert [line.split()[1] for line in started.read_text().splitlines()] == [DAYS[0], DAYS[1], DAYS[1]]
    lake = Lake(settings, instance)
    assert lake.snapshots(tiny()) == 1 and lake.rows(tiny()).num_rows == 6


def test_a_dead_runs_claims_are_freed_and_its_place_is_the_next_ones(instance: dg.DagsterInstance) -> None:
    storage = instance.event_log_storage
    storage.set_concurrency_slots(POOL, 1)
    assert Slots(instance, "run-1", "step").claim(0)
    assert not Slots(instance, "run-2", "step").claim(0)
    assert Slots(instance, "run-1", "step").claim(0)  # the same run in a new task
    storage.free_concurrency_slots_for_run("run-1")
    assert until(lambda: Slots(instance, "run-2", "step").claim(0), seconds=10)
    storage.free_concurrency_slots_for_run("run-2")


def test_a_pool_nobody_set_has_the_default_limit(instance: dg.DagsterInstance) -> None:
    instance.event_log_storage.delete_concurrency_limit(POOL)
    slots = Slots(instance, "run-1", "step")
    assert [slots.claim(chunk) for chunk in range(9)] == [True] * 8 + [False]
    slots.free_all()

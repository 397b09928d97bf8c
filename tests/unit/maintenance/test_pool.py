"""One run at a time maintains tables unless a person says otherwise, from the instance's first start on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from lakehouse_assets.cli.instance import set_worker_limit, tidy
from lakehouse_assets.cli.maintain import full_pool
from lakehouse_assets.drive.slots import POOL as WORKERS
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.maintenance.job import POOL, bound_pool


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    overrides = {"concurrency": {"pools": {"default_limit": 8}}}
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides) as found:  # one in memory has no pools
        yield found


def slots(instance: dg.DagsterInstance, pool: str = POOL) -> int:
    return instance.event_log_storage.get_concurrency_info(pool).slot_count


def test_a_limit_that_a_person_sets_stays(instance: dg.DagsterInstance) -> None:
    bound_pool(instance)
    assert slots(instance) == 1
    instance.event_log_storage.set_concurrency_slots(POOL, 2)
    bound_pool(instance)
    assert slots(instance) == 2


def test_the_instances_default_is_nobodys_choice(instance: dg.DagsterInstance) -> None:
    instance.event_log_storage.initialize_concurrency_limit_to_default(POOL)  # as the daemon does for a first run
    assert slots(instance) == 8
    bound_pool(instance)
    assert slots(instance) == 1


def test_a_command_does_not_wait_for_a_slot_that_nobody_gave(instance: dg.DagsterInstance) -> None:
    instance.event_log_storage.set_concurrency_slots(POOL, 1)
    assert not full_pool(instance)
    instance.event_log_storage.claim_concurrency_slot(POOL, "0" * 8, "step")
    assert "the run 00000000 is already maintaining tables" in full_pool(instance)
    instance.event_log_storage.free_concurrency_slot_for_step("0" * 8, "step")
    instance.event_log_storage.set_concurrency_slots(POOL, 0)
    assert f"the pool {POOL} has no slots" in full_pool(instance)


def test_it_is_there_before_any_sensor_ran(instance: dg.DagsterInstance, settings: Settings) -> None:
    (settings.home / "tmp").mkdir(parents=True, exist_ok=True)
    tidy(instance, settings)
    assert slots(instance) == 1


def test_a_command_that_starts_no_workers_leaves_the_workers_limit(
    instance: dg.DagsterInstance, settings: Settings
) -> None:
    (settings.home / "tmp").mkdir(parents=True, exist_ok=True)
    tidy(instance, settings)
    assert slots(instance, WORKERS) == settings.max_workers
    instance.event_log_storage.set_concurrency_slots(WORKERS, settings.max_workers + 2)  # as a person in the UI
    tidy(instance, settings)
    assert slots(instance, WORKERS) == settings.max_workers + 2
    set_worker_limit(instance, settings)
    assert slots(instance, WORKERS) == settings.max_workers

"""What maintenance is expected to cost in each environment: nothing on one's own machine, list prices elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakehouse_assets.health.gain import MIB
from lakehouse_assets.maintenance.costs import PricedMachine, Rate, rates
from lakehouse_assets.maintenance.planned import Cost, Engine
from resources.computes import Ecs, Emr, EmrServerless
from resources.settings import Settings
from resources.sizes import Size


def ecs(settings: Settings, capacity: str, size: Size) -> Settings:
    found = Ecs("c", "t:1", "worker", ("subnet-1",), (), False, {capacity: 1}, size)
    return replace(settings, compute="ecs", computes={"ecs": found})


@pytest.mark.parametrize("compute", ["local", "inline"])
def test_ones_own_machine_costs_nothing(settings: Settings, compute: str) -> None:
    found = rates(replace(settings, compute=compute))
    assert {rate.machine.usd for rate in found.values()} == {0.0}
    assert found[Engine.SPARK].start > found[Engine.PYTHON].start


def test_a_rewrite_in_the_runs_process_costs_what_the_runs_task_costs(settings: Settings) -> None:
    found = rates(ecs(settings, "FARGATE", Size()))
    assert found[Engine.PYTHON].machine == PricedMachine(0.5, pytest.approx(0.5 * 0.04048 + 2 * 0.004445))
    assert found[Engine.SPARK].machine == PricedMachine(2, pytest.approx(2 * 0.04048 + 8 * 0.004445))


def test_workers_cost_what_their_size_and_capacity_cost(settings: Settings) -> None:
    large = rates(ecs(settings, "FARGATE_SPOT", Size(vcpus=4, memory_gib=16)))[Engine.SPARK].machine
    assert large == PricedMachine(4, pytest.approx(4 * 0.01334053 + 16 * 0.00146489))
    serverless = rates(
        replace(settings, compute="emr_serverless", computes={"emr_serverless": EmrServerless("0", "r", "s3://b/c")})
    )[Engine.SPARK].machine
    assert serverless == PricedMachine(2, pytest.approx(2 * 0.052624 + 8 * 0.0057785))
    emr = rates(replace(settings, compute="emr", computes={"emr": Emr("id", "j-1", "s3://b/c")}))[Engine.SPARK].machine
    assert emr == PricedMachine(2, pytest.approx(2 * 0.048 * 1.25))


def test_seconds_follow_from_bytes_and_files_and_money_from_seconds() -> None:
    rate = Rate(PricedMachine(vcpus=4, usd=3.6), start=60, speed=MIB, each=0.5)
    assert rate.cost(10 * MIB, 20, ratio=2) == Cost(10 * MIB, 40.0, 4 * 40 / 3600, pytest.approx(0.04))
    assert rate.of_seconds(36) == Cost(0, 36, pytest.approx(0.04), pytest.approx(0.036))

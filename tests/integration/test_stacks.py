"""The stacks of deploy/stacks/, really made by `make deploy`'s code on an emulator that asks their policies: a day of
flights through tasks of ECS by what the stacks give, and an arrival that reaches the table by the queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from lakehouse_assets.domains.nyc import tables
from lakehouse_assets.domains.nyc.landing import deliver, into_bucket
from lakehouse_assets.environment.settings import read_settings
from scripts.deploy import deploy
from tests.conftest import Lake, failure_text
from tests.support.stacks import NAME, Stacks, stacks, tasks

pytestmark = [pytest.mark.server, pytest.mark.spark]

FLIGHTS = replace(tables.flights, partitions_per_worker=2)
DAYS = ("2013-03-09", "2013-03-10", "2013-03-11")


@pytest.fixture(scope="module")
def made() -> Iterator[Stacks]:
    with stacks() as found:
        yield found


def test_a_stack_that_is_as_its_template_says_stays_as_it_is(made: Stacks) -> None:
    asked: list[str] = []
    deploy(made.cloudformation, "lake", NAME, {}, lambda changes: bool(asked.append(changes)))
    assert asked == []


def test_flights_are_filled_by_tasks_with_what_the_stacks_give(
    made: Stacks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    with tasks(made, tmp_path / "ecs") as (ecs, environment):
        for name, value in (environment | {"LAKEHOUSE_HOME": str(tmp_path / "home")}).items():
            monkeypatch.setenv(name, value)
        put = into_bucket(made.client("s3"), f"s3://{made.outputs['Bucket']}/landing/nyc")
        deliver(lambda name, content: any(day in name for day in DAYS) and put(name, content))
        lake = Lake(read_settings(), instance)
        result = lake.run(FLIGHTS, DAYS[0], DAYS[-1])
        assert result.success, failure_text(result)
        assert len(ecs.tasks) == 2
    for c in sorted(made.recorder.calls):
        print(c)

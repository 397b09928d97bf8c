"""What a run survives: killed processes, locked catalogs, failing chunks; each fault is committed for real.
Its workers need no Spark (tests/tiny_worker.py); what Spark makes of faults is in test_faults_spark.py."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from resources.settings import Settings
from tests.conftest import failure_text
from tests.faults import FaultyLake, from_failure, tiny
from tests.tables import numbers

pytestmark = pytest.mark.spark
DAYS = ("2024-01-01", "2024-01-02", "2024-01-03")


@pytest.fixture
def lake(settings: Settings, instance: dg.DagsterInstance) -> FaultyLake:
    settings.home.mkdir()
    return FaultyLake(settings, instance)


def started(lake: FaultyLake) -> list[str]:
    """The days of the workers started so far, in order."""
    return [line.split()[1] for line in Path(lake.settings.home, "started").read_text().splitlines()]


def days(lake: FaultyLake) -> dict[str, int]:
    """Rows by day, as everybody sees them."""
    if not lake.snapshots(numbers()):
        return {}
    found = lake.rows(numbers(), ["day"]).column("day").to_pylist()
    return {str(day): found.count(day) for day in sorted(set(found))}


def green(lake: FaultyLake) -> set[str]:
    """The partitions Dagster holds for materialized."""
    return lake.instance.get_materialized_partitions(numbers().key)


# Some chunks fail and the table lets the others through


def test_the_others_are_published_and_a_resumed_run_adds_what_failed(lake: FaultyLake) -> None:
    table = tiny(publish_others=True)
    failing = Path(lake.settings.home, "fail")
    failing.write_text(DAYS[1])
    first = lake.run(table, DAYS[0], DAYS[2])
    assert not first.success
    assert green(lake) == {DAYS[0], DAYS[2]}
    assert days(lake) == {DAYS[0]: 3, DAYS[2]: 3}
    assert DAYS[1] in failure_text(first) and "KeyError" in failure_text(first)

    second = lake.run(table, DAYS[0], DAYS[2], tags=from_failure(first.run_id))  # still failing
    assert not second.success
    assert days(lake) == {DAYS[0]: 3, DAYS[2]: 3}
    assert lake.snapshots(table) == 1

    failing.unlink()
    third = lake.run(table, DAYS[0], DAYS[2], tags=from_failure(second.run_id))
    assert third.success, failure_text(third)
    assert days(lake) == dict.fromkeys(DAYS, 3)
    assert started(lake) == [*DAYS, DAYS[1], DAYS[1]]
    assert green(lake) == set(DAYS)
    assert lake.snapshots(table) == 2

    fourth = lake.run(table, DAYS[0], DAYS[2], tags=from_failure(third.run_id))
    assert fourth.success and lake.snapshots(table) == 2, "nothing is left to do"

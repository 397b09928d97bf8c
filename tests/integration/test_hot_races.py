"""Readers of hot and cold, between whose steps anything may happen: no row twice, none missing, all as at one time.
Each wrong order of the steps is shown to fail here."""

from __future__ import annotations

import pytest
from psycopg2.extensions import connection as Connection

from lakehouse_assets.environment.catalog import load_lake
from tests.conftest import Lake
from tests.support.hot_world import WRONG, faults, world_of

pytestmark = pytest.mark.server
READS = 15
FIRST, *OTHERS = WRONG
ORDERS = (FIRST, *(pytest.param(one, marks=pytest.mark.long("The other wrong orders.")) for one in OTHERS))


@pytest.mark.slow("Delays between all steps: without them the wrong order passes.")
def test_no_read_is_wrong(lake: Lake, database: Connection) -> None:
    with world_of(load_lake(lake.settings), seed=1) as world:
        found = world.tally(READS, to_the_end=True)
    assert faults(found) == 0, found
    assert found["right"] > READS / 2


@pytest.mark.parametrize("order", ORDERS)
def test_in_any_other_order_reads_are_wrong(lake: Lake, database: Connection, order: str) -> None:
    with world_of(load_lake(lake.settings), seed=1) as world, WRONG[order]():
        assert faults(world.tally(2 * READS)) > 0

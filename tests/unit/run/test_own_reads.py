"""A step that reads the table which its run changes: no update of another run that lands meanwhile is lost.
The real run, without Spark."""

from __future__ import annotations

import pytest

from lakehouse_assets.declare.modes import Append, FullRefresh, Overwrite, WriteMode
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.maintenance.rewrite.compact import compact
from tests.conftest import Lake
from tests.support.counting_runs import CountingLake
from tests.support.rewrites import token
from tests.support.tables import numbers, whole

FIRST, SECOND = "2024-01-01", "2024-01-02"


@pytest.mark.parametrize("mode", [FullRefresh(), Append()])
def test_what_another_run_has_added_meanwhile_stays(lake: Lake, mode: WriteMode) -> None:
    demo = CountingLake(lake, whole(write_mode=mode, reads=["demo.whole"]))
    demo.run()
    demo.lakehouse.meanwhile.append(demo.run)
    demo.run()
    assert demo.found() == [0, 1, 2]
    assert demo.lakehouse.staged == 4


def test_of_a_partition_it_stays_as_well_and_other_partitions_stage_nothing_again(lake: Lake) -> None:
    demo = CountingLake(lake, numbers(write_mode=Overwrite(), reads=["demo.numbers"]))
    demo.run(FIRST)
    demo.lakehouse.meanwhile.append(lambda: demo.run(FIRST))
    demo.run(FIRST)
    assert demo.found(FIRST) == [0, 1, 2]
    assert demo.lakehouse.staged == 4
    demo.lakehouse.meanwhile.append(lambda: demo.run(SECOND))
    demo.run(FIRST)
    assert (demo.found(FIRST), demo.found(SECOND)) == ([0, 1, 2, 3], [0])
    assert demo.lakehouse.staged == 6


def test_a_compaction_meanwhile_has_nothing_staged_again(lake: Lake) -> None:
    demo = CountingLake(lake, whole(write_mode=Append(), reads=["demo.whole"]))
    demo.run()
    demo.run()

    def act() -> None:
        assert compact(load_lake(lake.settings), "demo.whole", token(), min_input_files=2).landed

    demo.lakehouse.meanwhile.append(act)
    demo.run()
    assert demo.found() == [0, 1, 2]
    assert demo.lakehouse.staged == 3

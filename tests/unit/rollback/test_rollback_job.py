"""What Dagster shows after a rollback: each partition as what it holds then, and downstream partitions as outdated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.rollback.rollback_job import HEAD, TARGET, TOLD, UNDONE, rollback_job
from lakehouse_assets.run.outdated import latest_made
from lakehouse_assets.run.resource import Lakehouse
from tests.conftest import failure_text
from tests.support.faults import FaultyLake, rows_by_day, tiny

FIRST, SECOND, THIRD = "2024-01-01", "2024-01-02", "2024-01-03"
NAME = tiny().identifier


@pytest.fixture
def lake(settings: Settings) -> Iterator[FaultyLake]:
    """With three runs: of two days, of the second day anew, and of a third day."""
    settings.home.mkdir(exist_ok=True)
    with dg.DagsterInstance.ephemeral() as instance:
        lake = FaultyLake(settings, instance)
        for first, last in ((FIRST, SECOND), (SECOND, SECOND), (THIRD, THIRD)):
            assert lake.run(tiny(), first, last).success
        yield lake


def snapshots(lake: FaultyLake) -> list[int]:
    return [entry.snapshot_id for entry in lake.table(tiny()).metadata.snapshot_log]


def rollback(lake: FaultyLake, snapshot: object, **config: Any) -> dg.ExecuteInProcessResult:
    given = {"table": NAME, "to": str(snapshot), "dry_run": False, **config}
    resources = {"lakehouse": Lakehouse(lake.settings)}
    return rollback_job([tiny()]).execute_in_process(
        run_config=given, resources=resources, instance=lake.instance, raise_on_error=False
    )


def shown(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (output,) = [event.step_output_data for event in result.all_events if event.is_successful_output]
    return {name: value.value for name, value in output.metadata.items()}


def made(lake: FaultyLake) -> dict[str | None, tuple[str, Any]]:
    """By partition: the snapshot and the rows that Dagster shows."""
    graph = dg.Definitions(assets=[dg.AssetSpec(tiny().key, partitions_def=tiny().partitions)]).resolve_asset_graph()
    return {
        key: (str(one.metadata["snapshot_id"].value), one.metadata["dagster/partition_row_count"].value)
        for key, one in latest_made(lake.instance, graph, tiny().key).items()
    }


def test_a_dry_run_shows_what_goes_by_run_and_changes_nothing(lake: FaultyLake) -> None:
    first, second, third = snapshots(lake)
    before = made(lake)
    told = shown(rollback(lake, first, dry_run=True))
    rows = [record.data for record in told[UNDONE].records]
    assert [row["snapshot"] for row in rows] == [str(third), str(second)]
    assert [row["partitions"] for row in rows] == [THIRD, SECOND]
    assert [(row["rows added"], row["rows removed"]) for row in rows] == [("3", "0"), ("3", "3")]
    assert all(row["by run"] in {run.run_id for run in lake.instance.get_runs()} for row in rows)
    assert (told[HEAD], told[TARGET], told[TOLD]) == (str(third), str(first), f"{SECOND}..{THIRD} (2)")
    assert snapshots(lake)[-1] == third
    assert made(lake) == before


def test_partitions_show_what_they_hold_after_a_rollback_and_after_its_undoing(lake: FaultyLake) -> None:
    first, second, third = snapshots(lake)
    before = made(lake)
    assert before == {FIRST: (str(first), 3), SECOND: (str(second), 3), THIRD: (str(third), 3)}
    assert rollback(lake, first).success
    assert rows_by_day(lake, tiny()) == {FIRST: 3, SECOND: 3}
    assert made(lake) == {FIRST: (str(first), 3), SECOND: (str(first), 3), THIRD: (str(first), 0)}

    assert rollback(lake, third).success
    assert rows_by_day(lake, tiny()) == {FIRST: 3, SECOND: 3, THIRD: 3}
    assert made(lake) == before


def test_one_that_was_killed_behind_its_commit_is_finished_by_the_same_once_more(
    lake: FaultyLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client that rolls back tells Dagster nothing either."""
    first, *_ = snapshots(lake)
    with monkeypatch.context() as patch:

        def dies(*_: object) -> None:
            raise RuntimeError("killed")

        patch.setattr(dg.OpExecutionContext, "log_event", dies)
        assert not rollback(lake, first).success
    assert rows_by_day(lake, tiny()) == {FIRST: 3, SECOND: 3}
    assert rollback(lake, first).success
    assert made(lake)[THIRD] == (str(first), 0)


def test_what_can_not_be_rolled_back_is_refused_and_nothing_is_changed(lake: FaultyLake) -> None:
    first, second, third = snapshots(lake)
    for config, problem in (
        ({"table": "demo.other"}, "unknown tables: demo.other"),
        ({"table": ""}, "name a table"),
        ({"to": ""}, "name a table, and the snapshot to roll it back to"),
        ({"to": "12"}, "it has no snapshot 12"),
        ({"head": str(second)}, f"expected main at snapshot {second}, found {third}: another commit came in between"),
    ):
        assert problem in failure_text(rollback(lake, first, **config))

    started, keys = dg.DagsterRunStatus.STARTED, frozenset({tiny().key})
    run = lake.instance.add_run(dg.DagsterRun(job_name="__ASSET_JOB", status=started, asset_selection=keys))
    assert f"run {run.run_id} is writing to it" in failure_text(rollback(lake, first))
    assert snapshots(lake) == [first, second, third]

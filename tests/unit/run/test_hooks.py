"""How a run calls its hooks, and what it does when it is disturbed. The real run, with workers that need no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any, ClassVar

import dagster as dg
import pyarrow as pa
import pytest

from lakehouse_assets.declare.modes import FullRefresh
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.errors import PublishContended
from lakehouse_assets.run import table_run
from lakehouse_assets.run.asset import table_asset
from lakehouse_assets.run.extension import Extension, RunHook, Shown
from lakehouse_assets.run.table_lock import TableLock
from lakehouse_assets.wire.work import HookWork
from tests.conftest import failure_text
from tests.support.counting_runs import CountingLake
from tests.support.faults import FaultyLake, FaultyLakehouse, rows_by_day, tiny
from tests.support.tables import whole

DAY = "2024-01-01"


class Noting(RunHook):
    name: ClassVar[str] = "noting"

    def __init__(self, told: Mapping[str, Any], broken: bool = False) -> None:
        self.told, self.broken = told, broken

    def plan(self, run: Any, now: Any) -> Any:
        return self.told

    def work(self, run: Any) -> HookWork:
        return HookWork("lakehouse_assets.worker.hook:StageHook", run.plan.extensions[self.name])

    def published(self, run: Any, keys: Any) -> None:
        if self.broken:
            raise RuntimeError("the fault of this test")

    def shown(self, run: Any, forks: Any) -> Shown:
        self.published(run, ())
        return Shown({"noted": str(run.plan.part(self.name, dict[str, Any]))}, tags={"noting": "yes"})


class Notes(Extension):
    def __init__(self, *hooks: RunHook) -> None:
        self.of_run = hooks

    def hooks(self, run: Any) -> Iterable[RunHook]:
        return self.of_run


def run(lake: FaultyLake, *hooks: RunHook, tags: Mapping[str, str] | None = None) -> dg.ExecuteInProcessResult:
    span = {"dagster/asset_partition_range_start": DAY, "dagster/asset_partition_range_end": DAY}
    return dg.materialize(
        [table_asset(tiny(), [Notes(*hooks)])],
        instance=lake.instance,
        resources={"lakehouse": FaultyLakehouse(lake.settings)},
        tags={**span, **(tags or {})},
        raise_on_error=False,
    )


def test_a_plan_holds_json_in_its_first_run_as_well(lake: FaultyLake) -> None:
    result = run(lake, Noting({"of": (1, 2)}))
    assert result.success, failure_text(result)
    (event,) = result.get_asset_materialization_events()
    assert event.materialization.metadata["noted"].value == "{'of': [1, 2]}"
    assert event.materialization.tags["noting"] == "yes"


def test_what_is_no_json_is_refused_before_anything_starts(lake: FaultyLake) -> None:
    assert "date is not JSON serializable" in failure_text(run(lake, Noting({"of": date(2024, 1, 1)})))
    assert not (lake.settings.home / "started").exists()


def test_a_hook_that_fails_behind_the_commit_fails_no_run(lake: FaultyLake) -> None:
    result = run(lake, Noting({}, broken=True))
    assert result.success, failure_text(result)
    (event,) = result.get_asset_materialization_events()
    assert "noting: RuntimeError('the fault of this test')" in event.materialization.metadata["not_shown"].value
    assert rows_by_day(lake, tiny()) == {DAY: 3}


def test_two_hooks_of_one_name_are_refused(lake: FaultyLake) -> None:
    assert "hooks with the same name" in failure_text(run(lake, Noting({}), Noting({})))


def test_a_hook_with_the_name_of_what_decides_rows_is_refused(lake: FaultyLake) -> None:
    hook = Noting({})
    hook.name = "table"  # type: ignore[misc]
    assert "can't have the names table" in failure_text(run(lake, hook))


def test_a_tag_with_an_unknown_value_is_refused_whatever_the_table_reads(lake: FaultyLake) -> None:
    assert "lakehouse/read_all" in failure_text(run(lake, tags={"lakehouse/read_all": "yes"}))


def test_a_green_audit_shows_though_the_catalog_took_no_commit(
    lake: FaultyLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise PublishContended("the catalog is away")

    monkeypatch.setattr(table_run, "publish", away)
    result = run(lake)
    assert not result.success
    assert [check.passed for check in result.get_asset_check_evaluations()] == [True]


def test_a_run_that_waited_for_the_lock_begins_with_the_table_as_it_is_then(
    lake: FaultyLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = CountingLake(lake, whole(write_mode=FullRefresh(), reads=["demo.whole"]))
    demo.run()

    def disturb() -> None:
        table = load_lake(lake.settings).load_table("demo.whole")
        table.append(pa.Table.from_pylist([{"n": 9, "text": "theirs"}], schema=table.schema().as_arrow()))

    order, take, look = list[str](), TableLock.take, table_run.TableRun._evolution
    monkeypatch.setattr(TableLock, "take", lambda lock: (order.append("waits"), take(lock)))
    monkeypatch.setattr(table_run.TableRun, "_evolution", lambda run: (order.append("looks"), look(run))[1])
    demo.lakehouse.meanwhile += [disturb, disturb]
    demo.run()
    assert demo.lakehouse.staged == 1 + 3
    assert order == ["looks", "looks", "waits", "looks"]

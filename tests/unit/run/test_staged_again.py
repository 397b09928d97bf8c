"""A run whose columns others took between its staging and its publish: it is staged again, and nothing is mistaken.
The real run with workers that need no Spark. What is compared before a commit: unit/commit/test_evolution.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import StringType

from lakehouse_assets.commit.target import open_target
from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.run import report, table_run
from tests.conftest import failure_text
from tests.support.faults import FaultyLake, Signs, from_failure, tiny

COLUMNS = [column("day", "date", required=True), column("n", "long", required=True)]
FIRST, SECOND, THIRD = "2024-01-01", "2024-01-02", "2024-01-03"


def declared(*more: str, **options: Any) -> Table:
    columns = [*COLUMNS, *(column(name, "string") for name in more)]
    return tiny(columns=columns, on_schema_change="append_new_columns", sorted_by=[], unique=[], **options)


def change_before_publish(
    lake: FaultyLake, patch: pytest.MonkeyPatch, change: Callable[[UpdateSchema], object]
) -> None:
    """Somebody changes the table's columns once, after a run was staged and before it publishes."""
    publish, left = table_run.publish, [change]

    def meddled(catalog: Any, identifier: str, *arguments: Any, **options: Any) -> Any:
        if left:
            with catalog.load_table(identifier).update_schema() as update:
                left.pop()(update)
        return publish(catalog, identifier, *arguments, **options)

    patch.setattr(table_run, "publish", meddled)
    open_target(load_lake(lake.settings), declared())


def rows(lake: FaultyLake) -> list[dict[str, Any]]:
    found = load_lake(lake.settings).load_table("demo.numbers").scan().to_arrow().to_pylist()
    return sorted(({**row, "day": str(row["day"])} for row in found), key=lambda row: (row["day"], row["n"]))


def test_columns_that_others_added_in_another_order_do_not_get_its_values(
    lake: FaultyLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swapped(update: UpdateSchema) -> None:
        update.add_column("other", StringType()).add_column("text", StringType())

    change_before_publish(lake, monkeypatch, swapped)
    assert lake.run(declared("text", "other"), FIRST).success
    assert all((row["text"], row["other"]) == (f"n{row['n']}", None) for row in rows(lake))
    assert rows(lake)
    assert len(Signs(lake).started()) == 2


def test_a_run_that_is_tried_again_does_not_drop_what_came_since_it_began(
    lake: FaultyLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = report.staging_failure

    def meddled(*arguments: Any) -> dg.Failure:
        with load_lake(lake.settings).load_table("demo.numbers").update_schema() as update:
            update.add_column("precious", StringType())
        return failure(*arguments)

    monkeypatch.setattr(report, "staging_failure", meddled)
    table = tiny(on_schema_change="sync_all_columns", retry_policy=dg.RetryPolicy(max_retries=1))
    assert lake.run(table, FIRST).success
    time.sleep(0.01)
    (lake.settings.home / "fail").write_text(f"{SECOND} once")
    result = lake.run(table, SECOND)
    assert "precious is not declared, and may have been added while this run was working" in failure_text(result)
    assert "precious" in load_lake(lake.settings).load_table("demo.numbers").schema().column_names


def test_a_run_that_is_resumed_after_its_commit_still_says_which_columns_it_changed(
    lake: FaultyLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any) -> None:
        raise RuntimeError("it dies before it has reported")

    assert lake.run(declared(), FIRST).success
    with monkeypatch.context() as patch:
        patch.setattr(report, "add_metadata", dies)
        died = lake.run(declared("text"), FIRST)
    assert not died.success
    resumed = lake.run(declared("text"), FIRST, tags=from_failure(died.run_id))
    (event,) = resumed.get_asset_materialization_events()
    assert event.materialization.metadata["schema_change"].value == "- column text: none → string"


def test_a_run_that_was_published_in_parts_names_the_newest_of_them(
    lake: FaultyLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any) -> None:
        raise RuntimeError("it dies before it has reported")

    table = tiny(publish_others=True, partitions_per_worker=1)
    (lake.settings.home / "fail").write_text(FIRST)
    first = lake.run(table, FIRST, SECOND)
    assert not first.success
    (lake.settings.home / "fail").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(report, "add_metadata", dies)
        died = lake.run(table, FIRST, SECOND, tags=from_failure(first.run_id))
    assert not died.success
    resumed = lake.run(table, FIRST, SECOND, tags=from_failure(died.run_id))
    head = lake.table(table).current_snapshot().snapshot_id
    told = {e.materialization.metadata["snapshot_id"].value for e in resumed.get_asset_materialization_events()}
    assert told == {str(head)}


def test_what_failed_at_first_and_was_staged_then_has_succeeded(
    lake: FaultyLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_before_publish(lake, monkeypatch, lambda update: update.add_column("theirs", StringType()))
    (lake.settings.home / "fail").write_text(f"{SECOND} once")
    result = lake.run(declared("text", publish_others=True), FIRST, THIRD)
    assert result.success
    assert sorted({row["day"] for row in rows(lake)}) == [FIRST, SECOND, THIRD]

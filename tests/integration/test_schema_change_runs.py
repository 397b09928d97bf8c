"""Declarations that change, from step to table: what Spark writes then, what each policy lets through, what stays.
Real Spark, one for all tests. Decisions and metadata alone: unit/commit/test_schema_policy.py, test_evolution.py."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.modes import Append, FullRefresh, Merge, Tuning, WriteMode
from lakehouse_assets.declare.table import Table
from tests.conftest import Lake, failure_text
from tests.support import merges
from tests.support.twins import twins

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("inline")]
ID, DAY, N = column("id", "long", required=True), column("day", "date", required=True), column("n", "int")
DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-04")
FIRST, SECOND = "2024-01-01", "2024-01-02"


def table(*more: Any, n: str = "int", **options: Any) -> Table:
    """Of days, with these columns beside id, day and n."""
    return Table(
        **{
            "identifier": "demo.rows",
            "columns": [ID, DAY, column("n", n), *more],
            "partitions": DAYS,
            "partitioned_by": ["day"],
            "step": "tests.support.change_steps:rows",
        }
        | options
    )


def merged(*more: Any, **options: Any) -> Table:
    return table(*more, **{"partitions": None, "write_mode": Merge(["id"])} | options)


def give(lake: Lake, *rows: dict[str, Any], columns: str = "id day n") -> None:
    merges.give(lake, *rows, columns=columns.split())


def row(id: int, day: str = FIRST, **values: Any) -> dict[str, Any]:
    return {"id": id, "key": day, "day": day, "n": id, **values}


def unkeyed(id: int, **values: Any) -> dict[str, Any]:
    return {"id": id, "day": FIRST, "n": id, **values}


def found(lake: Lake, of: Table) -> dict[int, dict[str, Any]]:
    rows = lake.rows(of).to_pylist()
    return {r.pop("id"): {name: value for name, value in r.items() if name != "day"} for r in rows}


def paths(lake: Lake, of: Table) -> set[str]:
    return {task.file.file_path for task in lake.table(of).scan().plan_files()}


def test_columns_are_added_and_widened_in_the_commit_of_the_rows(lake: Lake) -> None:
    old = table()
    give(lake, row(1), row(2, SECOND))
    assert lake.run(old, FIRST, SECOND).success
    before, files = lake.table(old), paths(lake, old)
    new = table(column("extra", "string", "New."), n="long", on_schema_change="append_new_columns")
    give(lake, row(2**40, SECOND, extra="x"), columns="id day n extra")
    result = lake.run(new, SECOND)
    assert result.success
    after = lake.table(new)
    assert after.metadata.metadata_log[-1].metadata_file == before.metadata_location, "one commit"
    assert found(lake, new) == {1: {"n": 1, "extra": None}, 2**40: {"n": 2**40, "extra": "x"}}
    assert len(files & paths(lake, new)) == 1, "the file of the other day is as it was"
    assert before.scan(snapshot_id=before.current_snapshot().snapshot_id).to_arrow().num_rows == 2
    (materialization,) = result.asset_materializations_for_node("demo__rows")
    assert materialization.metadata["schema_change"].value == "- column n: int → long\n- column extra: none → string"
    shown = materialization.metadata["dagster/column_schema"].value.columns
    assert [(c.name, c.type, c.constraints.nullable) for c in shown] == [
        ("id", "long", False),
        ("day", "date", False),
        ("n", "long", True),
        ("extra", "string", True),
    ]


def test_nothing_starts_where_the_change_is_not_allowed(lake: Lake) -> None:
    give(lake, row(1))
    assert lake.run(table(), FIRST).success
    before = lake.table(table()).metadata_location
    result = lake.run(table(column("extra", "string")), FIRST)
    text = failure_text(result)
    assert "column extra: declared string, found none (to add it, declare on_schema_change=" in text
    assert lake.table(table()).metadata_location == before


@pytest.mark.long("test_evolution.py holds which columns are written.")
def test_ignored_columns_are_left_out_and_filled_with_nulls(lake: Lake) -> None:
    old = table(column("text", "string"))
    give(lake, row(1, text="a"), columns="id day n text")
    assert lake.run(old, FIRST).success
    new = table(column("extra", "string"), n="long", on_schema_change="ignore")
    give(lake, row(2, SECOND, extra="x"), columns="id day n extra")
    assert lake.run(new, SECOND).success
    assert found(lake, new) == {1: {"n": 1, "text": "a"}, 2: {"n": 2, "text": None}}
    assert len(lake.table(new).metadata.schemas) == 1
    give(lake, row(2**40, SECOND, extra="x"), columns="id day n extra")
    result = lake.run(new, SECOND)
    assert not result.success, "a value is never cut to fit"
    assert "overflow" in failure_text(result).lower(), "a value is never cut to fit"


@pytest.mark.long("test_evolution.py holds how fields are nested.")
def test_nested_fields_are_written(lake: Lake) -> None:
    give(lake, row(1, point={"x": 1, "y": "y"}), columns="id day n point")
    assert (
        lake.run(table(column("point", "struct<x: int>"), on_schema_change="append_new_columns"), FIRST).success
        is False
    )
    of = table(column("point", "struct<x: long, y: string>"), on_schema_change="append_new_columns")
    assert lake.run(of, FIRST).success
    assert found(lake, of)[1]["point"] == {"x": 1, "y": "y"}


@pytest.mark.long("test_merge_rest.py and the other modes add columns alike.")
def test_a_merge_adds_columns_and_leaves_those_that_are_not_declared(lake: Lake) -> None:
    old = merged(column("text", "string"))
    give(lake, *(unkeyed(id, text=f"t{id}") for id in range(3)), columns="id day n text")
    assert lake.run(old).success
    new = merged(column("extra", "string"), n="long", on_schema_change="append_new_columns")
    give(lake, unkeyed(1, extra="x"), unkeyed(7, extra="y"), columns="id day n extra")
    assert lake.run(new).success
    assert found(lake, new) == {
        0: {"n": 0, "text": "t0", "extra": None},
        1: {"n": 1, "text": "t1", "extra": "x"},
        2: {"n": 2, "text": "t2", "extra": None},
        7: {"n": 7, "text": None, "extra": "y"},
    }


def test_a_merge_renames_a_column_and_keeps_its_values(lake: Lake) -> None:
    tuning = {"tuning": Tuning(metrics={"text": "full"})}
    give(lake, *(unkeyed(id, text=f"t{id}") for id in range(2)), columns="id day n text")
    assert lake.run(merged(column("text", "string"), **tuning)).success
    new = merged(
        column("extra", "string", was="text"),
        n="long",
        on_schema_change="sync_all_columns",
        tuning=Tuning(metrics={"extra": "full"}),
    )
    give(lake, unkeyed(1, extra="x"), unkeyed(7, extra="y"), columns="id day n extra")
    result = lake.run(new)
    assert result.success, failure_text(result)
    assert found(lake, new) == {0: {"n": 0, "extra": "t0"}, 1: {"n": 1, "extra": "x"}, 7: {"n": 7, "extra": "y"}}
    give(lake, unkeyed(0, extra="z"), columns="id day n extra")
    assert lake.run(new).success, "and Spark's Iceberg takes its properties"
    assert found(lake, new)[0]["extra"] == "z"


@pytest.mark.parametrize(
    ("mode", "extras"),
    twins(
        [(Append(["id"]), ["", "y"]), (Append(), ["", "x", "y"]), (FullRefresh(), ["x", "y"])],
        "test_evolution.py has all modes without Spark.",
    ),
    ids=["append once", "append", "full refresh"],
)
def test_every_mode_brings_its_columns(lake: Lake, mode: WriteMode, extras: list[str]) -> None:
    give(lake, unkeyed(1))
    assert lake.run(merged(write_mode=mode)).success
    new = merged(column("extra", "string"), n="long", write_mode=mode, on_schema_change="sync_all_columns")
    give(lake, unkeyed(1, extra="x"), unkeyed(2, extra="y"), columns="id day n extra")
    assert lake.run(new).success
    assert sorted(r["extra"] or "" for r in lake.rows(new).to_pylist()) == extras


def test_a_run_is_staged_again_where_somebody_else_added_a_column(lake: Lake) -> None:
    """Theirs has the field id that ours would have had, and the same type."""
    give(lake, row(1))
    assert lake.run(table(), FIRST).success
    new = table(
        column("extra", "string"),
        on_schema_change="append_new_columns",
        step="tests.support.change_steps:rows_while_a_column_is_added",
    )
    give(lake, row(2, extra="ours"), columns="id day n extra")
    assert lake.run(new, FIRST).success
    assert found(lake, new) == {2: {"n": 2, "theirs": None, "extra": "ours"}}


def test_chunks_that_disagree_publish_nothing(lake: Lake) -> None:
    of = table(step="tests.support.change_steps:rows_of_chunks_that_disagree", partitions_per_worker=1)
    give(lake, row(1), row(2, SECOND))
    result = lake.run(of, FIRST, SECOND)
    assert "unknown surprise" in failure_text(result)
    assert not lake.snapshots(of)


def test_partitions_change_with_the_rows_and_old_files_stay(lake: Lake) -> None:
    give(lake, row(1), row(2, SECOND))
    assert lake.run(table(), FIRST, SECOND).success
    files = paths(lake, table())
    new = table(partitioned_by=["day", "bucket(2, id)"], sorted_by=["n"], on_layout_change="evolve")
    give(lake, *(row(id, SECOND) for id in range(10, 20)))
    result = lake.run(new, SECOND)
    assert result.success
    assert sorted(found(lake, new)) == [1, *range(10, 20)]
    assert [task.file.spec_id for task in lake.table(new).scan("day = '2024-01-02'").plan_files()] == [1, 1]
    assert len(files & paths(lake, new)) == 1
    (materialization,) = result.asset_materializations_for_node("demo__rows")
    changes = "- partitioned by: day → day, bucket(2, id)\n- sorted by: none → n"
    assert materialization.metadata["layout_change"].value == changes
    assert "schema_change" not in materialization.metadata

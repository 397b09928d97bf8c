"""The job ``lakehouse_plan``: what it shows of tables that are missing, differ, or were made by other code.
A real SQLite catalog and a Dagster instance; nothing is materialized."""

from __future__ import annotations

from datetime import date

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.types import StringType

from lakehouse_assets.commit.target import open_target
from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.run.asset import LOOKED_AT, plan_job
from lakehouse_assets.run.resource import Lakehouse
from tests.support.tables import numbers, whole

CODE_VERSION = "dagster/code_version"
GREEN = {"on_schema_change": "append_new_columns", "on_layout_change": "evolve"}


def planned(
    settings: Settings, instance: dg.DagsterInstance, *tables: Table, names: tuple[str, ...] = ()
) -> list[tuple[str, ...]]:
    result = plan_job(tables).execute_in_process(
        instance=instance,
        resources={"lakehouse": Lakehouse(settings)},
        run_config={"tables": list(names)},
    )
    (output,) = [event for event in result.all_events if event.is_successful_output]
    metadata = output.step_output_data.metadata
    assert metadata[LOOKED_AT].value == (len(names) or len(tables))
    return [tuple(record.data.values()) for record in metadata["plan"].records]


def test_a_table_that_is_missing_would_be_created(settings: Settings, instance: dg.DagsterInstance) -> None:
    columns = "3 columns, partitioned by day, sorted by n"
    assert planned(settings, instance, numbers()) == [("demo.numbers", "table", columns, "not there", "creates it")]
    assert not load_lake(settings).namespace_exists("demo"), "nothing was changed"


def test_a_table_that_the_catalog_has_lost_is_not_said_to_be_created(
    settings: Settings, instance: dg.DagsterInstance
) -> None:
    catalog = load_lake(settings)
    target = open_target(catalog, numbers())
    rows = {"day": [date(2024, 1, 1)], "n": [1], "text": ["one"]}
    target.append(pa.table(rows, schema=target.schema().as_arrow()))
    catalog.drop_table("demo.numbers")
    ((*_, said, next_run),) = planned(settings, instance, numbers())
    assert next_run == "fails"
    assert "contains the metadata of a table with rows" in said


def test_a_table_that_is_as_declared_has_no_row(settings: Settings, instance: dg.DagsterInstance) -> None:
    open_target(load_lake(settings), numbers())
    assert planned(settings, instance, numbers()) == []


def test_every_difference_is_shown_with_what_becomes_of_it(settings: Settings, instance: dg.DagsterInstance) -> None:
    target = open_target(load_lake(settings), numbers())
    with target.update_schema() as update:
        update.add_column("old", StringType())
    columns = [*numbers().columns, column("new", "string")]
    before = target.metadata_location
    rows = planned(settings, instance, numbers(columns=columns, sorted_by=[], **GREEN))
    assert rows == [
        ("demo.numbers", "column new", "string", "none", "adds it, in the commit of its rows"),
        ("demo.numbers", "column old", "none", "string", "leaves it and adapts its new rows"),
        ("demo.numbers", "sorted by", "none", "n", "changes it, in the commit of its rows"),
    ]
    more = [column("day", "date", required=True), column("m", "long", was="n"), column("text", "string")]
    synced = {"on_schema_change": "sync_all_columns", "unique": [], "sorted_by": [], "on_layout_change": "evolve"}
    rows = planned(settings, instance, numbers(columns=more, **synced))
    assert [row[1:] for row in rows] == [
        ("name of a column", "m", "n", "renames it, with its values, in the commit of its rows"),
        ("column m", "optional", "required", "makes it optional, in the commit of its rows"),
        ("column old", "none", "string", "drops it (loses 0 values), in the commit of its rows"),
        ("sorted by", "none", "m", "changes it, in the commit of its rows"),
    ]
    values = {"day": [date(2024, 1, 1)], "n": [1], "text": ["one"], "old": ["x"]}
    target = load_lake(settings).load_table("demo.numbers")
    target.append(pa.table(values, schema=target.schema().as_arrow()))
    before = load_lake(settings).load_table("demo.numbers").metadata_location
    (drop,) = [row for row in planned(settings, instance, numbers(columns=more, **synced)) if row[1] == "column old"]
    assert drop[4].startswith("fails: dropping it loses 1 value: to drop it anyway, declare allow_drop=['old']")
    (drop,) = [
        row
        for row in planned(settings, instance, numbers(columns=more, allow_drop=["old"], **synced))
        if row[1] == "column old"
    ]
    assert drop[4] == "drops it (loses 1 value), in the commit of its rows"
    refused = planned(settings, instance, numbers(columns=columns))
    assert [row[4].partition(":")[0] for row in refused] == ["fails", "fails"]
    assert load_lake(settings).load_table("demo.numbers").metadata_location == before


def test_partitions_that_other_code_made_are_shown(settings: Settings, instance: dg.DagsterInstance) -> None:
    table, alone = numbers(), whole()
    for declared in (table, alone):
        open_target(load_lake(settings), declared)
    for key, version in (("2024-01-01", "aaa"), ("2024-01-02", "aaa"), ("2024-01-03", table.code_version)):
        event = dg.AssetMaterialization(table.key, partition=key, tags={CODE_VERSION: version})
        instance.report_runless_asset_event(event)
    instance.report_runless_asset_event(dg.AssetMaterialization(alone.key, tags={CODE_VERSION: "bbb"}))
    assert planned(settings, instance, table, alone) == [
        (
            "demo.numbers",
            "code of 2 of 3 partitions: 2024-01-01..2024-01-02 (2)",
            table.code_version,
            "aaa",
            "makes only its own partitions again",
        ),
        ("demo.whole", "code", alone.code_version, "bbb", "makes only its own partitions again"),
    ]
    assert len(planned(settings, instance, table, alone, names=("demo.whole",))) == 1


def test_what_was_declared_otherwise_is_not_called_code(settings: Settings, instance: dg.DagsterInstance) -> None:
    before, now = numbers(), numbers(unique=[])
    open_target(load_lake(settings), now)
    for key, version in (("2024-01-01", before.code_version), ("2024-01-02", "aaa"), ("2024-01-03", now.code_version)):
        event = dg.AssetMaterialization(now.key, partition=key, tags={CODE_VERSION: version})
        instance.report_runless_asset_event(event)
    assert [row[1] for row in planned(settings, instance, now)] == [
        "code of 1 of 3 partitions: 2024-01-02",
        "declaration of 1 of 3 partitions: 2024-01-01",
    ]


def test_an_unknown_table_is_refused(settings: Settings, instance: dg.DagsterInstance) -> None:
    with pytest.raises(dg.Failure, match=r"unknown tables: demo\.nothing; the declared tables are demo\.numbers"):
        planned(settings, instance, numbers(), names=("demo.nothing",))

"""What a run reads is pinned: all its workers, retries and re-executions read one version, whatever others commit.
Which versions are recorded and shown is in test_trace.py."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.types import LongType, NestedField

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.maintenance.job import maintenance_job
from lakehouse_assets.run.asset import table_asset
from lakehouse_assets.run.resource import Lakehouse
from tests.conftest import Lake, failure_text
from tests.support import input_steps
from tests.support.faults import from_failure
from tests.support.tables import DAYS, whole

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("inline")]
SOURCE = "demo.source"
SCHEMA = Schema(NestedField(1, "n", LongType(), required=False))


def copy(step: str = "copied", **options: Any) -> Table:
    """``demo.copy``: a row for each row of demo.source, on each day."""
    return Table(
        **{
            "identifier": "demo.copy",
            "columns": [column("day", "date", required=True), column("n", "long")],
            "partitions": DAYS,
            "partitioned_by": ["day"],
            "step": f"tests.support.input_steps:{step}",
            "deps": [dg.AssetKey(["demo", "source"])],
            "allow_empty": True,
        }
        | options
    )


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


@pytest.fixture
def source(lake: Lake) -> IcebergTable:
    """``demo.source`` with the rows 1 and 2."""
    catalog = load_lake(lake.settings)
    catalog.create_namespace("demo")
    table = catalog.create_table(SOURCE, SCHEMA)
    table.append(rows(1, 2))
    return table


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    yield
    input_steps.MEANWHILE.clear()


def found(lake: Lake, table: Table | None = None) -> dict[str, str]:
    """The rows by day, as text."""
    by_day: dict[str, list[int]] = {}
    for row in lake.rows(table or copy()).to_pylist():
        by_day.setdefault(str(row["day"]), []).append(row["n"])
    return {day: str(sorted(numbers)) for day, numbers in sorted(by_day.items())}


def say(lake: Lake, statement: str) -> None:
    (lake.settings.home / "statement").write_text(statement)


def reload(lake: Lake) -> IcebergTable:
    return load_lake(lake.settings).load_table(SOURCE)


def files(folder: str, pattern: str) -> Sequence[Path]:
    return sorted(Path(folder.removeprefix("file://")).glob(pattern))


def test_all_chunks_read_one_version_whoever_publishes_meanwhile(lake: Lake, source: IcebergTable) -> None:
    calls: Counter[str] = Counter()

    def publish(day: str) -> None:
        calls[day] += 1
        reload(lake).overwrite(rows(len(calls) * 10))

    input_steps.MEANWHILE.append(publish)
    result = lake.run(copy("meanwhile", partitions_per_worker=1), "2024-01-01", "2024-01-03")
    assert result.success, failure_text(result)
    assert len(calls) == 3
    assert found(lake) == dict.fromkeys(["2024-01-01", "2024-01-02", "2024-01-03"], "[1, 2]")


def test_a_re_execution_from_failure_reads_what_the_run_read_and_one_of_all_reads_anew(
    lake: Lake, source: IcebergTable
) -> None:
    def fail(day: str) -> None:
        if day == "2024-01-02":
            raise ValueError("not today")

    input_steps.MEANWHILE.append(fail)
    table = copy("meanwhile", partitions_per_worker=1)
    failed = lake.run(table, "2024-01-01", "2024-01-02")
    assert not failed.success
    reload(lake).overwrite(rows(3))
    input_steps.MEANWHILE.clear()
    resumed = lake.run(table, "2024-01-01", "2024-01-02", tags=from_failure(failed.run_id))
    assert resumed.success, failure_text(resumed)
    assert found(lake) == dict.fromkeys(["2024-01-01", "2024-01-02"], "[1, 2]")
    assert lake.run(table, "2024-01-01", "2024-01-02").success
    assert found(lake) == dict.fromkeys(["2024-01-01", "2024-01-02"], "[3]")


def failed_once(lake: Lake) -> tuple[Table, dict[str, str]]:
    """A run that has failed behind its plan; the tags of its re-execution from failure."""
    input_steps.MEANWHILE.append(lambda day: 1 / 0)
    table = copy("meanwhile")
    failed = lake.run(table, "2024-01-01")
    assert not failed.success
    input_steps.MEANWHILE.clear()
    return table, from_failure(failed.run_id)


def expire(lake: Lake) -> None:
    table = reload(lake)
    first = table.current_snapshot().snapshot_id
    table.overwrite(rows(3))
    table.maintenance.expire_snapshots().by_id(first).commit()


def create_again(lake: Lake) -> None:
    catalog = load_lake(lake.settings)
    catalog.drop_table(SOURCE)
    catalog.create_table(SOURCE, SCHEMA, location=f"{lake.settings.home.as_uri()}/again").append(rows(3))


def drop(lake: Lake) -> None:
    load_lake(lake.settings).drop_table(SOURCE)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (expire, "demo.source has expired the snapshot"),
        (create_again, "was created again"),
        (drop, "no longer in the catalog"),
    ],
)
def test_a_pinned_version_that_is_gone_is_told_before_a_worker_starts(
    lake: Lake, source: IcebergTable, act: Any, says: str
) -> None:
    table, tags = failed_once(lake)
    act(lake)
    input_steps.MEANWHILE.append(lambda day: pytest.fail("a worker has started"))
    resumed = lake.run(table, "2024-01-01", tags=tags)
    text = failure_text(resumed)
    assert all(word in text for word in ("demo.copy", says, "Nothing was staged", "Materialize the partitions again"))


def test_a_run_that_has_only_to_report_needs_its_inputs_no_more(lake: Lake, source: IcebergTable) -> None:
    done = lake.run(copy(), "2024-01-01")
    drop(lake)
    again = lake.run(copy(), "2024-01-01", tags=from_failure(done.run_id))
    assert again.success, failure_text(again)


def rename(lake: Lake) -> None:
    with reload(lake).update_schema() as update:
        update.rename_column("n", "m")


def roll_back(lake: Lake) -> None:
    table = reload(lake)
    first = table.current_snapshot().snapshot_id
    table.overwrite(rows(3))
    table.manage_snapshots().set_current_snapshot(first).commit()


def prune(lake: Lake) -> None:
    table = reload(lake)
    pinned = Path(table.metadata_location.removeprefix("file://"))
    table.overwrite(rows(3))
    pinned.unlink()


@pytest.mark.parametrize("act", [rename, roll_back, prune])
def test_what_becomes_of_the_table_is_nothing_to_its_pinned_version(lake: Lake, source: IcebergTable, act: Any) -> None:
    table, tags = failed_once(lake)
    act(lake)
    resumed = lake.run(table, "2024-01-01", tags=tags)
    assert resumed.success, failure_text(resumed)
    assert found(lake) == {"2024-01-01": "[1, 2]"}


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO lake.demo.source VALUES (7)",
        "DELETE FROM lake.demo.source WHERE n = 1",
        "DELETE FROM lake.demo.source",
        "ALTER TABLE lake.demo.source SET TBLPROPERTIES ('a' = 'b')",
        "CREATE TABLE lake.demo.mine USING iceberg AS SELECT 1 AS n",
    ],
)
def test_a_step_that_writes_to_an_input_is_refused(lake: Lake, source: IcebergTable, statement: str) -> None:
    say(lake, statement)
    before, there = reload(lake).metadata_location, files(source.location(), "**/*")
    result = lake.run(copy("writing"), "2024-01-01")
    assert "the step wrote to the catalog lake" in failure_text(result)
    assert reload(lake).metadata_location == before
    assert files(source.location(), "**/*") == there


@pytest.mark.parametrize("purge", ["", " PURGE"])
def test_a_step_that_drops_an_input_drops_nothing_and_is_told(lake: Lake, source: IcebergTable, purge: str) -> None:
    say(lake, f"DROP TABLE lake.demo.source{purge}")
    there = files(source.location(), "**/*")
    text = failure_text(lake.run(copy("dropping"), "2024-01-01"))
    assert purge or "the step dropped demo.source" in text
    assert files(source.location(), "**/*") == there


@pytest.mark.parametrize(
    "statement", ["SELECT n FROM lake.demo.other", "SELECT count(*) AS n FROM lake.demo.other.snapshots"]
)
def test_a_table_that_is_no_input_is_refused_with_what_adds_it(
    lake: Lake, source: IcebergTable, statement: str
) -> None:
    load_lake(lake.settings).create_table("demo.other", SCHEMA).append(rows(9))
    say(lake, statement)
    text = failure_text(lake.run(copy("told"), "2024-01-01"))
    assert "lake.demo.other" in text
    assert "not one of this run's inputs" in text
    declared = lake.run(copy("told", reads=["demo.other"]), "2024-01-01")
    assert declared.success, failure_text(declared)
    assert found(lake) == {"2024-01-01": "[1]" if "snapshots" in statement else "[9]"}


def test_a_branch_and_a_tag_are_read_as_they_were_when_the_run_was_planned(lake: Lake, source: IcebergTable) -> None:
    first = source.current_snapshot().snapshot_id
    source.manage_snapshots().create_tag(first, "v1.0").create_branch(first, "audit").commit()
    source.overwrite(rows(3))

    def move(day: str) -> None:
        table = reload(lake)
        table.manage_snapshots().remove_tag("v1.0").remove_branch("audit").commit()

    for ref in ("tag_v1.0", "branch_audit"):
        say(lake, f"SELECT n FROM lake.demo.source.`{ref}`")
        result = lake.run(copy("told", deps=[], reads=[f"demo.source.{ref}"]), "2024-01-01")
        assert result.success, failure_text(result)
        assert json.loads(summary(lake)["lakehouse.inputs"]).keys() == {f"demo.source.{ref}"}
        assert found(lake) == {"2024-01-01": "[1, 2]"}
    move("")
    gone = lake.run(copy("told", deps=[], reads=["demo.source.tag_v1.0"]), "2024-01-01")
    assert "no branch or tag v1.0" in failure_text(gone)


def test_a_table_of_others_that_is_not_there_is_told(lake: Lake, source: IcebergTable) -> None:
    text = failure_text(lake.run(copy(reads=["finance.rates"]), "2024-01-01"))
    assert "reads names finance.rates, but the catalog has no table" in text


def summary(lake: Lake) -> dict[str, str]:
    return dict(lake.table(copy()).current_snapshot().summary.additional_properties)


def test_the_commit_names_what_it_was_made_from_and_the_ui_shows_it(lake: Lake, source: IcebergTable) -> None:
    result = lake.run(copy(reads=["demo.other"]), "2024-01-01")
    assert "reads names demo.other" in failure_text(result)
    load_lake(lake.settings).create_table("demo.other", SCHEMA)
    result = lake.run(copy(reads=["demo.other"]), "2024-01-01")
    assert result.success, failure_text(result)
    head = source.current_snapshot().snapshot_id
    assert json.loads(summary(lake)["lakehouse.inputs"]) == {
        SOURCE: f"{head}@{source.metadata.table_uuid}",
        "demo.other": f"None@{lake.table(replace(copy(), identifier='demo.other')).metadata.table_uuid}",
    }
    (event,) = result.get_asset_materialization_events()
    assert str(head) in event.materialization.metadata["inputs"].value


@pytest.mark.slow("As many inputs as a report of a whole company has.")
def test_200_inputs_are_pinned_and_the_commit_tells_their_number(lake: Lake, source: IcebergTable) -> None:
    catalog = load_lake(lake.settings)
    names = [f"demo.table_of_a_long_name_{n}" for n in range(200)]
    for name in names:
        catalog.create_table(name, SCHEMA)
    result = lake.run(copy(reads=names), "2024-01-01")
    assert result.success, failure_text(result)
    assert summary(lake)["lakehouse.inputs"] == "201 tables: see the materialization of this run"
    (event,) = result.get_asset_materialization_events()
    assert "and 151 more" in event.materialization.metadata["inputs"].value


def test_what_a_run_that_may_be_resumed_has_pinned_does_not_expire(lake: Lake, source: IcebergTable) -> None:
    table, tags = failed_once(lake)
    first = source.current_snapshot().snapshot_id
    for n in range(3):
        reload(lake).overwrite(rows(n))
    assert first in left_by_expiry(lake)
    resumed = lake.run(table, "2024-01-01", tags=tags)
    assert resumed.success, failure_text(resumed)
    assert first not in left_by_expiry(lake)


def left_by_expiry(lake: Lake) -> set[int]:
    """The snapshots that demo.source has, once the maintenance job has expired what it may, for that table alone."""
    age = {"history.expire.max-snapshot-age-ms": "1", "history.expire.min-snapshots-to-keep": "1"}
    reload(lake).transaction().set_properties(age).commit_transaction()
    config = {"tables": [SOURCE], "levels": ["expire"], "dry_run": False, "patient": False, "force": True}
    result = maintenance_job([whole(identifier=SOURCE), copy()], EXTENSIONS).execute_in_process(
        run_config=config, resources={"lakehouse": Lakehouse(lake.settings)}, instance=lake.instance
    )
    assert result.success
    return {snapshot.snapshot_id for snapshot in reload(lake).snapshots()}


def stale(lake: Lake, *tables: Table) -> list[str]:
    """Why the UI calls the first day of demo.copy outdated."""
    graph = dg.Definitions(
        [*(table_asset(table, EXTENSIONS) for table in tables)], resources={"lakehouse": None}
    ).resolve_asset_graph()
    loading = LoadingContextForTest(lake.instance)
    resolver = CachingStaleStatusResolver(lake.instance, graph, loading)
    return [cause.reason for cause in resolver.get_stale_causes(tables[-1].key, "2024-01-01")]


def test_the_ui_says_that_an_input_changed_as_long_as_the_rows_are_made_of_an_older_version(lake: Lake) -> None:
    whole_table = whole(identifier="demo.source")
    assert lake.run(whole_table).success
    table, tags = failed_once(lake)
    assert lake.run(whole_table).success, "after it was pinned"
    resumed = lake.run(table, "2024-01-01", tags=tags)
    assert resumed.success, failure_text(resumed)
    assert stale(lake, whole_table, table) == ["has a new dependency data version"]
    assert lake.run(table, "2024-01-01").success
    assert stale(lake, whole_table, table) == []

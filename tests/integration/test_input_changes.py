"""Steps that read on from where their table's last commit was: each change of an input once, whatever happens between.
What comes out is compared with a replay of the input's own history."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.types import LongType, NestedField, StringType
from pyspark.sql import SparkSession

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.modes import Merge, Overwrite, Rewrites
from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.liveness import reap
from lakehouse_assets.environment.catalog import catalog_properties, load_lake
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.maintenance.rewrite.compact import compact
from lakehouse_assets.worker.session import configure
from tests.conftest import Lake, failure_text
from tests.support import change_reading_steps as steps
from tests.support.change_reading_deaths import Stage, log
from tests.support.faults import from_failure
from tests.support.live_lake import live_catalogs
from tests.support.rewrites import token
from tests.support.twins import twins

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("inline")]
SOURCE = "demo.source"
SCHEMA = Schema(NestedField(1, "n", LongType(), required=False), NestedField(2, "text", StringType(), required=False))
POSITIONS, WITNESS = "lakehouse.positions", "lakehouse.reads-changes-of"
MERGED = "tests.support.change_reading_steps:merged"
READ_ALL = {"lakehouse/read_all": "true"}


def mirror(**options: Any) -> Table:
    """``demo.mirror``: the rows of demo.source, by n."""
    return Table(
        **{
            "identifier": "demo.mirror",
            "columns": [column("n", "long", required=True), column("text", "string")],
            "step": MERGED,
            "deps": [dg.AssetKey(["demo", "source"])],
            "write_mode": Merge(["n"], delete_when="_change_type = 'DELETE'", order_by="_change_type"),
        }
        | options
    )


def rows(*numbers: int, text: str = "a") -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64()), "text": pa.array([text] * len(numbers), pa.string())})


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
    steps.MEANWHILE.clear()
    steps.RENAMED.clear()


def reload(lake: Lake, name: str = SOURCE) -> IcebergTable:
    return load_lake(lake.settings).load_table(name)


def read(lake: Lake, table: Table, *, tags: dict[str, str] | None = None) -> None:
    result = lake.run(table, tags=tags)
    assert result.success, failure_text(result)


def logged(lake: Lake) -> Counter[tuple[str, int]]:
    return Counter((row["change"], row["n"]) for row in lake.rows(log()).to_pylist())


def mirrored(lake: Lake) -> dict[int, str]:
    return {row["n"]: row["text"] for row in lake.rows(mirror()).to_pylist()}


def position(lake: Lake, table: Table) -> int:
    """The snapshot of demo.source that the head of the table's main names."""
    entry = lake.table(table).current_snapshot().summary[POSITIONS]
    assert entry
    return int(json.loads(entry)[SOURCE].partition("@")[0])


def head(lake: Lake) -> int:
    return reload(lake).current_snapshot().snapshot_id


def test_each_change_is_read_once_and_what_cancels_out_not_at_all(lake: Lake, source: IcebergTable) -> None:
    read(lake, log())
    assert logged(lake) == {("INSERT", 1): 1, ("INSERT", 2): 1}
    assert position(lake, log()) == head(lake)
    source.append(rows(3))
    source.append(rows(4))
    read(lake, log())
    assert logged(lake)[("INSERT", 3)] == 1
    assert position(lake, log()) == head(lake)
    reload(lake).append(rows(5))
    reload(lake).delete(EqualTo("n", 5))
    reload(lake).delete(EqualTo("n", 1))
    read(lake, log())
    read(lake, log())
    assert logged(lake) == {**{("INSERT", n): 1 for n in (1, 2, 3, 4)}, ("DELETE", 1): 1}


def test_a_merge_of_the_changes_has_the_rows_of_the_input(lake: Lake, source: IcebergTable) -> None:
    read(lake, mirror())
    source.overwrite(rows(2, 3, text="b"))
    read(lake, mirror())
    assert mirrored(lake) == {2: "b", 3: "b"}
    reload(lake).delete(EqualTo("n", 2))
    reload(lake).append(rows(7, text="c"))
    read(lake, mirror())
    assert mirrored(lake) == {3: "b", 7: "c"}


def test_the_input_keeps_what_is_not_read_yet(lake: Lake, source: IcebergTable) -> None:
    for _ in range(2):
        read(lake, log())
        assert reload(lake).metadata.refs["lakehouse.reader.demo.log"].snapshot_id == head(lake)
        reload(lake).append(rows(3))


@pytest.mark.parametrize("table", [log(), mirror()], ids=["append", "merge"])
def test_a_run_that_fails_reads_the_same_again(lake: Lake, source: IcebergTable, table: Table) -> None:
    read(lake, table)
    source.append(rows(3))
    steps.MEANWHILE.append(lambda: 1 / 0)
    failed = lake.run(table)
    assert not failed.success
    reload(lake).append(rows(4))
    steps.MEANWHILE.clear()
    read(lake, table, tags=from_failure(failed.run_id))
    found = {row["n"] for row in lake.rows(table).to_pylist()}
    assert found == {1, 2, 3}, "as it was pinned"
    read(lake, table)
    assert sorted(row["n"] for row in lake.rows(table).to_pylist()) == [1, 2, 3, 4]


def test_of_two_runs_at_once_the_second_reads_on_where_the_first_has_ended(lake: Lake, source: IcebergTable) -> None:
    read(lake, log())
    reload(lake).append(rows(3))

    def other() -> None:
        steps.MEANWHILE.clear()
        read(lake, log())
        reload(lake).append(rows(4))

    steps.MEANWHILE.append(other)
    read(lake, log())
    assert logged(lake) == {("INSERT", n): 1 for n in (1, 2, 3, 4)}


def test_a_rollback_of_the_table_goes_back_in_the_input(lake: Lake, source: IcebergTable) -> None:
    read(lake, log())
    first = lake.table(log()).current_snapshot().snapshot_id
    source.append(rows(3))
    read(lake, log())
    lake.table(log()).manage_snapshots().rollback_to_snapshot(first).commit()
    reload(lake).append(rows(4))
    read(lake, log())
    assert logged(lake) == {("INSERT", n): 1 for n in (1, 2, 3, 4)}


def compact_both(lake: Lake) -> None:
    for name in (SOURCE, "demo.log"):
        report = compact(load_lake(lake.settings), name, token(), min_input_files=2)
        assert report.landed, name


def test_compaction_of_either_changes_nothing(lake: Lake, source: IcebergTable) -> None:
    for n in (3, 4):
        read(lake, log())
        reload(lake).append(rows(n))
    compact_both(lake)
    assert position(lake, log()) != head(lake), "a rewrite copies the position forward"
    read(lake, log())
    assert logged(lake) == {("INSERT", n): 1 for n in (1, 2, 3, 4)}
    reload(lake).delete(EqualTo("n", 1))
    read(lake, log())
    assert logged(lake)[("DELETE", 1)] == 1


def test_a_compaction_of_the_table_meanwhile_has_nothing_staged_again(lake: Lake, source: IcebergTable) -> None:
    read(lake, log())
    reload(lake).append(rows(3))
    read(lake, log())
    reload(lake).append(rows(4))
    calls = Counter[str]()

    def act() -> None:
        calls["step"] += 1
        assert compact(load_lake(lake.settings), "demo.log", token(), min_input_files=2).landed

    steps.MEANWHILE.append(act)
    read(lake, log())
    assert calls["step"] == 1
    assert logged(lake) == {("INSERT", n): 1 for n in (1, 2, 3, 4)}


def test_a_compaction_alone_is_no_change(lake: Lake, source: IcebergTable) -> None:
    source.append(rows(3))
    read(lake, log())
    compact(load_lake(lake.settings), SOURCE, token(), min_input_files=2)
    read(lake, log())
    assert logged(lake).total() == 3
    assert position(lake, log()) == head(lake)


def test_commits_of_others_to_the_table_leave_its_position(lake: Lake, source: IcebergTable) -> None:
    read(lake, log())
    source.append(rows(3))
    lake.table(log()).append(pa.table({"n": pa.array([9]), "text": pa.array(["x"]), "change": pa.array(["OTHER"])}))
    read(lake, log())
    assert logged(lake) == {("INSERT", 1): 1, ("INSERT", 2): 1, ("INSERT", 3): 1, ("OTHER", 9): 1}


def expire_all_but_the_head(lake: Lake, name: str) -> None:
    """As PyIceberg's own clients do it."""
    table = reload(lake, name)
    for ref in [ref for ref in table.metadata.refs if ref != "main"]:
        table.manage_snapshots().remove_tag(ref).commit()
    table = reload(lake, name)
    current = table.current_snapshot().snapshot_id
    old = [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot.snapshot_id != current]
    table.maintenance.expire_snapshots().by_ids(old).commit()


def expired(lake: Lake) -> None:
    reload(lake).append(rows(3))
    reload(lake).append(rows(4))
    expire_all_but_the_head(lake, SOURCE)


def created_again(lake: Lake) -> None:
    catalog = load_lake(lake.settings)
    catalog.drop_table(SOURCE)
    catalog.create_table(SOURCE, SCHEMA, location=f"{lake.settings.home.as_uri()}/again").append(rows(1, 2, 3, 4))


def rolled_back(lake: Lake) -> None:
    """It was read up to its head, which is then no more in its history."""
    first = head(lake)
    reload(lake).append(rows(8))
    read(lake, log())
    reload(lake).manage_snapshots().rollback_to_snapshot(first).commit()
    reload(lake).append(rows(3, 4))


def deleted_row_by_row(lake: Lake) -> None:
    mode = Merge(["n"], rewrites=Rewrites.MERGE_ON_READ)
    steps.GIVEN[:] = [(1, "b"), (3, "a"), (4, "a")]
    options = {"columns": [column("n", "long"), column("text", "string")], "deps": [], "write_mode": mode}
    read(lake, log("given", identifier=SOURCE, **options))


def last_delete_file_removed(lake: Lake) -> None:
    """By a copy-on-write commit, which is all that came since the table was read: Iceberg drops delete files then that
    are older than all data files."""
    deleted_row_by_row(lake)
    spark = configure(SparkSession.active().newSession(), live_catalogs(catalog_properties(lake.settings)))
    spark.sql(f"UPDATE lake.{SOURCE} SET text = 'c'")
    read(lake, log(), tags=READ_ALL)
    spark.sql(f"UPDATE lake.{SOURCE} SET text = 'd' WHERE n = 4")
    assert reload(lake).current_snapshot().summary["total-delete-files"] == "0"


def column_dropped_and_added_again(lake: Lake) -> None:
    with reload(lake).update_schema() as update:
        update.delete_column("text")
    with reload(lake).update_schema() as update:
        update.add_column("text", StringType())
    reload(lake).append(rows(3, 4))


def position_expired(lake: Lake) -> None:
    """The commit that carries it, and others came after."""
    lake.table(log()).append(pa.table({"n": pa.array([9]), "text": pa.array(["x"]), "change": pa.array(["OTHER"])}))
    expire_all_but_the_head(lake, "demo.log")
    reload(lake).append(rows(3, 4))


@pytest.mark.parametrize(
    ("act", "says"),
    twins(
        [
            (rolled_back, "main was rolled back"),
            (last_delete_file_removed, "row-level deletes"),
            (deleted_row_by_row, "row-level deletes"),
            (expired, "has expired"),
            (created_again, "was created again"),
            (column_dropped_and_added_again, "columns text were dropped and added again"),
            (position_expired, "no snapshot of main records how far it was read"),
        ],
        "What can not be told apart has many causes; they are refused by one function.",
        keep=2,
    ),
)
def test_what_cannot_be_told_apart_is_refused_and_read_all_is_a_way_out(
    lake: Lake, source: IcebergTable, act: Any, says: str
) -> None:
    read(lake, log())
    act(lake)
    before = lake.snapshots(log())
    refused = lake.run(log())
    assert not refused.success
    text = failure_text(refused)
    assert all(word in text for word in (SOURCE, "demo.log", says, "lakehouse/read_all: true"))
    assert lake.snapshots(log()) == before
    read(lake, mirror(), tags=READ_ALL)
    assert mirrored(lake).keys() == {1, 2, 3, 4}
    read(lake, log(), tags=READ_ALL)
    reload(lake).append(rows(5))
    read(lake, log())
    assert logged(lake)[("INSERT", 5)] == 1


def test_an_input_that_was_created_again_is_told_although_it_is_empty(lake: Lake, source: IcebergTable) -> None:
    read(lake, log())
    catalog = load_lake(lake.settings)
    catalog.drop_table(SOURCE)
    catalog.create_table(SOURCE, SCHEMA, location=f"{lake.settings.home.as_uri()}/again")
    assert (
        "it is unknown what changed in demo.source since demo.log read it: the table was created again"
    ) in failure_text(lake.run(log()))
    read(lake, log(), tags=READ_ALL)
    read(lake, log())
    reload(lake).append(rows(5))
    read(lake, log())
    assert logged(lake) == {("INSERT", n): 1 for n in (1, 2, 5)}


def test_a_renamed_or_added_column_is_read_on(lake: Lake, source: IcebergTable) -> None:
    read(lake, mirror())
    with reload(lake).update_schema() as update:
        update.rename_column("text", "words")
        update.add_column("more", LongType())
    reload(lake).append(pa.table({"n": pa.array([3]), "words": pa.array(["w"]), "more": pa.array([1])}))
    steps.RENAMED.update({"words": "text"})
    read(lake, mirror())
    assert mirrored(lake) == {1: "a", 2: "a", 3: "w"}


def test_rows_written_anew_cancel_out_whatever_their_types(lake: Lake) -> None:
    catalog = load_lake(lake.settings)
    catalog.create_namespace("demo")
    odd = pa.table(
        {
            "n": pa.array([1, 2, 2, None], pa.int64()),
            "text": pa.array(["a", "b", "b", None]),
            "b": pa.array([b"x", b"y", b"y", None], pa.binary()),
            "d": pa.array([float("nan"), 0.5, 0.5, None]),
            "m": pa.array([[("k", 1), ("l", 2)], [("k", 2)], [("k", 2)], None], pa.map_(pa.string(), pa.int64())),
            "s": pa.array([{"c": b"z"}, None, None, None], pa.struct([("c", pa.binary())])),
        }
    )
    table = catalog.create_table(SOURCE, odd.schema)
    table.append(odd)
    read(lake, log("narrow"))
    for changed in (odd, odd.slice(0, 2)):
        reload(lake).overwrite(changed)
        read(lake, log("narrow"))
    added, gone = {1: 1, 2: 2, None: 1}, {2: 1, None: 1}
    assert logged(lake) == {
        **{("INSERT", n): c for n, c in added.items()},
        **{("DELETE", n): c for n, c in gone.items()},
    }


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {
                "write_mode": Merge(["n"], order_by="_change_type"),
                "step": "merged",
                "columns": [column("n", "long"), column("text", "string")],
            },
            "delete_when does not say",
        ),
        ({"write_mode": Overwrite()}, "can't keep track of"),
        ({"partitions": dg.StaticPartitionsDefinition(["a", "b"])}, "can't keep track of"),
        ({"deps": []}, "not one of this run's inputs"),
    ],
)
def test_a_table_that_cannot_read_on_is_told_how_it_could(
    lake: Lake, source: IcebergTable, options: dict[str, Any], says: str
) -> None:
    result = lake.run(log(**options), *(["a", "b"] if "partitions" in options else []))
    text = failure_text(result)
    assert all(word in text for word in (SOURCE, says))


def test_an_input_with_a_column_of_that_name_is_refused(lake: Lake, source: IcebergTable) -> None:
    with source.update_schema() as update:
        update.add_column("_change_type", StringType())
    assert "demo.source has a column _change_type" in failure_text(lake.run(log()))


@pytest.mark.slow("The one that crosses the border to a worker's process.")
def test_a_worker_of_its_own_reads_on(lake: Lake, source: IcebergTable, monkeypatch: pytest.MonkeyPatch) -> None:
    read(lake, log("followed"))
    reload(lake).delete(EqualTo("n", 1))
    monkeypatch.setenv("LAKEHOUSE_COMPUTE", "local")
    lake.settings = read_settings()
    read(lake, log("followed"))
    assert logged(lake) == {("INSERT", 1): 1, ("INSERT", 2): 1, ("DELETE", 1): 1}


def test_the_ui_shows_from_where_it_was_read(lake: Lake, source: IcebergTable) -> None:
    first = head(lake)
    shown = []
    for n in (3, 4):
        (event,) = lake.run(log()).get_asset_materialization_events()
        shown.append(event.materialization.metadata["inputs"].value)
        reload(lake).append(rows(n))
    assert "all, as changes" in shown[0]
    assert f"changes since {first}" in shown[1]
    (event,) = lake.run(log(), tags=READ_ALL).get_asset_materialization_events()
    assert "all, as changes" in event.materialization.metadata["inputs"].value


@pytest.mark.long("Each death is a process and a JVM of its own, twice.")
@pytest.mark.parametrize("goes_on", ["from failure", "anew"])
@pytest.mark.parametrize("stage", Stage)
def test_a_run_that_is_killed_leaves_its_changes_to_be_read_once(
    lake: Lake, source: IcebergTable, stage: Stage, goes_on: str
) -> None:
    read(lake, log())
    source.delete(EqualTo("n", 1))
    source.append(rows(3))
    command = [sys.executable, "-m", "tests.support.change_reading_deaths", stage]
    child = subprocess.run(command, env={**os.environ, "DAGSTER_HOME": lake.instance.root_directory}, timeout=120)
    assert child.returncode == -signal.SIGKILL
    reap(lake.instance)
    killed = lake.instance.get_runs(limit=1)[0].run_id
    reload(lake).append(rows(4))
    read(lake, log(), tags=from_failure(killed) if goes_on == "from failure" else None)
    read(lake, log())
    assert logged(lake) == {**{("INSERT", n): 1 for n in (1, 2, 3, 4)}, ("DELETE", 1): 1}
    assert reload(lake).metadata.refs["lakehouse.reader.demo.log"].snapshot_id == head(lake)

"""The job on a real table: what it would do, what it does, and that nobody's rows change by it."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.expressions import And, EqualTo
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Operation

from lakehouse_assets.commit.owner import TAKE_OVER
from lakehouse_assets.commit.target import open_target
from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.declare.options import Maintenance
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.maintenance import levels
from lakehouse_assets.maintenance.definitions import maintenance
from lakehouse_assets.maintenance.health.findings import Limit
from lakehouse_assets.maintenance.job import maintenance_job
from lakehouse_assets.maintenance.level import Action, MaintenanceContext, Result
from lakehouse_assets.maintenance.rewrite_levels import FragmentsLevel
from lakehouse_assets.maintenance.run_history import REWRITTEN_TAG, TABLE_TAG, RunHistory
from lakehouse_assets.run.in_flight import DROP_MISSING, MAINTENANCE, RESTORE
from lakehouse_assets.run.resource import Lakehouse
from tests.support.outsiders import commit_deletes, equality_deletes, position_deletes
from tests.support.tables import numbers, whole

# What was written a moment ago may be rewritten at once here.
CARE = Maintenance(quiet_period=timedelta(0))
TABLE, OTHER = numbers(maintenance=CARE), whole(maintenance=CARE)
SMALL_FILES = 13
FORMAT_1 = {"format-version": "1"}


@pytest.fixture
def table(settings: Settings) -> IcebergTable:
    """One day in many small files, another in two."""
    found = open_target(load_lake(settings), TABLE)
    for n in range(SMALL_FILES):
        found.append(day_rows("2024-01-01", n))
    for n in range(2):
        found.append(day_rows("2024-01-02", n))
    return found


def day_rows(day: str, n: int) -> pa.Table:
    schema = pa.schema(
        [
            pa.field("day", pa.date32(), nullable=False),
            pa.field("n", pa.int64(), nullable=False),
            pa.field("text", pa.string()),
        ]
    )
    return pa.Table.from_pylist([{"day": date.fromisoformat(day), "n": n, "text": str(n)}], schema=schema)


def run(
    settings: Settings, instance: dg.DagsterInstance, tags: dict[str, str] | None = None, **config: Any
) -> dg.ExecuteInProcessResult:
    return maintenance_job([TABLE, OTHER], EXTENSIONS).execute_in_process(
        run_config=config,
        tags=tags,
        resources={"lakehouse": Lakehouse(settings)},
        instance=instance,
        raise_on_error=False,
    )


def shown(result: dg.ExecuteInProcessResult, name: str) -> list[dict[str, Any]]:
    """A table of the op's metadata."""
    (output,) = [event.step_output_data for event in result.all_events if event.is_successful_output]
    return [dict(record.data) for record in output.metadata[name].records]


def files(settings: Settings) -> dict[str, int]:
    """Data files by day."""
    tasks = load_lake(settings).load_table(TABLE.identifier).scan().plan_files()
    days = [str(task.file.partition[0]) for task in tasks]
    return {day: days.count(day) for day in sorted(set(days))}


def rows(settings: Settings) -> list[dict[str, Any]]:
    found = load_lake(settings).load_table(TABLE.identifier).scan().to_arrow()
    return found.sort_by([("day", "ascending"), ("n", "ascending")]).to_pylist()


def test_by_default_it_only_shows_what_it_would_do(
    settings: Settings, instance: dg.DagsterInstance, table: IcebergTable
) -> None:
    result = run(settings, instance)
    assert result.success
    (row,) = shown(result, "plan")
    assert row["table"] == TABLE.identifier
    assert row["level"] == "fragments"
    assert row["verdict"] == "taken"
    assert row["why"] == "13 small files in 1 partition"
    assert row["expected gain"] == "12 files"
    assert sum(files(settings).values()) == SMALL_FILES + 2
    assert load_lake(settings).load_table(TABLE.identifier).metadata_location == table.metadata_location


def test_it_rewrites_what_needs_it_and_the_rows_stay(
    settings: Settings, instance: dg.DagsterInstance, table: IcebergTable
) -> None:
    before = rows(settings)
    result = run(settings, instance, dry_run=False)
    assert result.success
    (row,) = shown(result, "done")
    assert (row["expected gain"], row["gain"]) == ("12 files", "12 files")
    assert row["proof"].startswith("13 rows, digest ")
    assert sorted(files(settings).values()) == [1, 2]
    assert rows(settings) == before
    summary = load_lake(settings).load_table(TABLE.identifier).current_snapshot().summary
    assert summary.operation is Operation.REPLACE
    assert summary["lakehouse.run-id"] == result.run_id
    again = run(settings, instance, dry_run=False)
    assert again.success
    assert shown(again, "done") == []


def test_the_checks_say_afterwards_how_the_table_is(
    settings: Settings, instance: dg.DagsterInstance, table: IcebergTable
) -> None:
    run(settings, instance, dry_run=False)
    records = instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(TABLE.key, "files"), limit=5
    )
    evaluation = records[0].event.dagster_event.asset_check_evaluation_data
    assert evaluation.passed
    assert evaluation.metadata["files"].value == 3


def test_a_table_with_an_unfinished_run_is_left_alone(
    settings: Settings, instance: dg.DagsterInstance, table: IcebergTable
) -> None:
    writer = instance.add_run(
        dg.DagsterRun(
            job_name="__ASSET_JOB", status=dg.DagsterRunStatus.STARTED, asset_selection=frozenset({TABLE.key})
        )
    )
    result = run(settings, instance, dry_run=False)
    assert result.success
    assert shown(result, "done") == []
    (row,) = shown(result, "plan")
    assert row["verdict"] == f"not taken: a run that writes to it is queued or running: run {writer.run_id}"


def with_a_long_history(settings: Settings, **properties: str) -> None:
    """The other table, as if a thousand snapshots had come before its only one."""
    catalog = load_lake(settings)
    table = open_target(catalog, OTHER)
    table.append(pa.Table.from_pylist([{"n": 1, "text": "1"}], schema=table.schema().as_arrow()))
    metadata = table.metadata
    (head,) = metadata.snapshots
    old = [
        head.model_copy(
            update={"snapshot_id": n, "parent_snapshot_id": n - 1 or None, "timestamp_ms": n, "sequence_number": 0}
        )
        for n in range(1, 1001)
    ]
    longer = metadata.model_copy(
        update={
            "snapshots": [*old, head.model_copy(update={"parent_snapshot_id": 1000})],
            "properties": {**metadata.properties, **properties},
        }
    )
    location = table.location_provider().new_metadata_location("00009-longer.metadata.json")
    ToOutputFile.table_metadata(longer, table.io.new_output(location))
    catalog.drop_table(OTHER.identifier)
    catalog.register_table(OTHER.identifier, location)


def test_a_long_history_is_cut_and_the_rows_stay(settings: Settings, instance: dg.DagsterInstance) -> None:
    with_a_long_history(settings)
    result = run(settings, instance, dry_run=False)
    assert result.success
    (row,) = shown(result, "done")
    assert (row["level"], row["gain"]) == ("expire", "991 snapshots")
    assert row["result"].startswith(
        "1,001 snapshots → 10 (1 head of a branch, 9 among the newest of a branch), metadata.json "
    )
    table = load_lake(settings).load_table(OTHER.identifier)
    assert len(table.metadata.snapshots) == 10
    assert table.scan().to_arrow().num_rows == 1


def test_what_can_not_be_done_on_one_table_is_red_and_done_on_the_others(
    settings: Settings, instance: dg.DagsterInstance, table: IcebergTable
) -> None:
    with_a_long_history(settings, **{"gc.enabled": "false"})
    result = run(settings, instance, dry_run=False)
    assert not result.success
    (failed,) = [event.step_failure_data.user_failure_data for event in result.all_events if event.is_step_failure]
    assert failed.description.startswith("demo.whole, expire: table demo.whole: gc.enabled is false")
    assert [record.data["table"] for record in failed.metadata["done"].records] == [TABLE.identifier]
    assert sorted(files(settings).values()) == [1, 2]


def test_a_table_of_another_format_is_left_with_that_reason(settings: Settings, instance: dg.DagsterInstance) -> None:
    catalog = load_lake(settings)
    catalog.create_namespace("demo")
    old = catalog.create_table(TABLE.identifier, TABLE.schema, partition_spec=TABLE.spec, properties=FORMAT_1)
    assert old.metadata.format_version == 1
    for n in range(SMALL_FILES):
        old.append(day_rows("2024-01-01", n))
    result = run(settings, instance, dry_run=False)
    assert result.success
    (row,) = shown(result, "plan")
    assert row["verdict"] == "not taken: its format version is not 2, the only one that can be written"
    assert load_lake(settings).load_table(TABLE.identifier).metadata_location == old.metadata_location


@pytest.mark.parametrize("part", ["manifest", "list", "metadata"])
def test_a_table_that_can_not_be_read_is_red_and_the_others_are_maintained(
    settings: Settings, instance: dg.DagsterInstance, table: IcebergTable, part: str
) -> None:
    other = open_target(load_lake(settings), OTHER)
    other.append(pa.Table.from_pylist([{"n": 1, "text": "1"}], schema=other.schema().as_arrow()))
    (manifest,) = other.current_snapshot().manifests(other.io)
    torn = {
        "manifest": manifest.manifest_path,
        "list": other.current_snapshot().manifest_list,
        "metadata": other.metadata_location,
    }[part]
    path = Path(torn.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:100])
    result = run(settings, instance, dry_run=False)
    assert not result.success
    (failed,) = [event.step_failure_data.user_failure_data for event in result.all_events if event.is_step_failure]
    assert failed.description.startswith("demo.whole: ")
    assert "is torn or foreign" in failed.description
    assert torn in failed.description or part == "metadata"  # which one that is, only the catalog knows
    assert sorted(files(settings).values()) == [1, 2]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"tables": ["demo.lost"]}, "unknown tables: demo.lost; the declared tables are demo.numbers, demo.whole"),
        (
            {"levels": ["polish"]},
            "unknown levels: polish; expected one of deletes, undersized, fragments, sort, manifests, expire, collect",
        ),
        (
            {"levels": []},
            "no level was chosen; expected one of deletes, undersized, fragments, sort, manifests, expire, collect",
        ),
    ],
)
def test_what_it_does_not_know_is_refused(
    settings: Settings, instance: dg.DagsterInstance, config: dict[str, Any], message: str
) -> None:
    result = run(settings, instance, **config)
    assert not result.success
    (failed,) = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    assert failed.user_failure_data.description == message


def test_it_is_a_part_of_the_code_location(settings: Settings) -> None:
    defs = maintenance([TABLE, OTHER], settings, EXTENSIONS)
    assert [job.name for job in defs.jobs] == [MAINTENANCE, RESTORE, DROP_MISSING, TAKE_OVER]


def tags(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> dict[str, str]:
    """What the run has noted of itself."""
    (run,) = instance.get_runs(dg.RunsFilter([result.run_id]))
    return {name: value for name, value in run.tags.items() if name.startswith("lakehouse/")}


def test_a_run_notes_how_each_table_fared_and_what_it_rewrote(
    settings: Settings, instance: dg.DagsterInstance, table: IcebergTable
) -> None:
    with_a_long_history(settings, **{"gc.enabled": "false"})
    result = run(settings, instance, dry_run=False)
    size = int(tags(instance, result)[REWRITTEN_TAG])
    assert size > 0
    assert tags(instance, result) == {
        f"{TABLE_TAG}{OTHER.identifier}": "failed",
        f"{TABLE_TAG}{TABLE.identifier}": "done",
        REWRITTEN_TAG: str(size),
    }


def test_a_run_that_is_executed_again_takes_over_nothing_that_its_parent_noted(
    settings: Settings, instance: dg.DagsterInstance, table: IcebergTable
) -> None:
    """Dagster gives it its parent's tags."""
    stale = {f"{TABLE_TAG}{OTHER.identifier}": "under way", REWRITTEN_TAG: "5000000"}
    noted = RunHistory([record(instance, run(settings, instance, stale))])
    assert noted.rewritten(time.time()) == 0
    assert noted.wait_of(OTHER.identifier, time.time()) == ""


def record(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> dg.RunRecord:
    (found,) = instance.get_run_records(dg.RunsFilter([result.run_id]))
    return found


def test_a_killed_run_has_noted_which_table_was_at_work(
    settings: Settings, instance: dg.DagsterInstance, table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> Result:
        raise KeyboardInterrupt  # what nothing in the run catches

    monkeypatch.setattr(FragmentsLevel, "carry_out", killed)
    with suppress(BaseException):
        run(settings, instance, dry_run=False)
    (record,) = instance.get_runs()
    assert record.tags[f"{TABLE_TAG}{TABLE.identifier}"] == "under way"
    assert int(record.tags[REWRITTEN_TAG]) > 0


def test_what_was_found_is_shown_beside_what_was_expected(
    settings: Settings, instance: dg.DagsterInstance, table: IcebergTable
) -> None:
    result = run(settings, instance, dry_run=False)
    (row,) = shown(result, "done")
    assert row["expected gain"] == row["gain"] == "12 files"
    assert row["result"].startswith("13 → 1 files, ")
    assert row["expected size"] == row["size"]
    assert row["USD"] == "0"
    assert float(row["expected seconds"]) > 0
    assert float(row["seconds"]) >= 0


def test_a_table_that_needs_spark_says_so_before(
    settings: Settings, instance: dg.DagsterInstance, table: IcebergTable
) -> None:
    with table.transaction() as change:
        change.set_properties({"write.parquet.bloom-filter-enabled.column.n": "true"})
    (row,) = shown(run(settings, instance), "plan")
    assert row["by"] == "Spark"
    assert "; by Spark: it has bloom filters (" in row["why"]


def test_many_manifests_become_few_and_the_rows_stay(
    settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Limit(101, 1_000) == levels.LIMIT
    monkeypatch.setattr(levels, "LIMIT", Limit(11, 100))
    made = open_target(load_lake(settings), TABLE)
    for n in range(11):
        made.append(day_rows("2024-01-01", n))
    before = rows(settings)
    result = run(settings, instance, dry_run=False, levels=["manifests"])
    assert result.success
    (row,) = shown(result, "done")
    assert (row["expected gain"], row["gain"], row["proof"]) == ("10 manifests", "10 manifests", "11 entries")
    assert row["result"].startswith("11 manifests of ")
    assert " → 1 manifests of " in row["result"]
    assert rows(settings) == before
    assert sum(files(settings).values()) == 11


def test_deletes_are_applied_and_their_files_go_also_those_that_apply_to_nothing(
    settings: Settings, instance: dg.DagsterInstance, table: IcebergTable
) -> None:
    """One delete file names rows of two files of the day; another names a file that a writer has removed since."""

    def path(n: int) -> str:
        (task,) = table.scan(And(EqualTo("day", "2024-01-01"), EqualTo("n", n))).plan_files()
        return task.file.file_path

    first, second, third = path(0), path(1), path(2)
    commit_deletes(table, position_deletes(table, {first: [0], second: [0]}))
    commit_deletes(table.refresh(), position_deletes(table, {third: [0]}))
    table.refresh().delete(And(EqualTo("day", "2024-01-01"), EqualTo("n", 2)))
    before = rows(settings)
    result = run(settings, instance, dry_run=False)
    assert result.success
    (row,) = shown(result, "done")
    assert (row["level"], row["expected gain"]) == ("deletes", "11 files, 2 delete files")
    assert row["gain"] == "11 files, 2 delete files"
    assert row["proof"].startswith("10 rows, digest ")
    assert row["result"].endswith("; removed delete files that applied to nothing: 1")
    assert rows(settings) == before
    assert len(before) == 12
    assert sorted(files(settings).values()) == [1, 2]


def test_what_is_too_little_to_be_mended_shows_its_numbers_and_is_done_by_force(
    settings: Settings, instance: dg.DagsterInstance
) -> None:
    """One row of 50 deleted, in one of three small files; two delete files name it."""
    table = open_target(load_lake(settings), TABLE)
    table.append(pa.concat_tables(day_rows("2024-01-01", n) for n in range(48)))
    for n in (48, 49):
        table.append(day_rows("2024-01-01", n))
    (first,) = table.scan(EqualTo("n", 0)).plan_files()
    for _ in range(2):
        commit_deletes(table.refresh(), position_deletes(table, {first.file.file_path: [0]}))
    before = rows(settings)

    result = run(settings, instance)
    assert shown(result, "plan") == []
    (numbers,) = shown(result, "measured")
    assert numbers["deletes"] == "4 % of 10 % of the rows of a partition, 2 delete files"
    assert (numbers["fragments"], numbers["manifests"]) == ("3 of 12", "5 of 101")
    assert numbers["undersized"] == "0 bytes of 512 MiB"
    assert numbers["expire"].startswith("5 of 1,001 snapshots, metadata.json ")

    result = run(settings, instance, force=True, levels=["deletes"], dry_run=False)
    assert result.success
    assert shown(result, "measured") == []
    (row,) = shown(result, "done")
    assert (row["level"], row["gain"]) == ("deletes", "2 files, 2 delete files")
    assert rows(settings) == before
    assert len(before) == 49

    # Its six snapshots are young, and fewer than are kept in any case.
    assert shown(run(settings, instance, force=True, levels=["expire", "deletes", "fragments"]), "plan") == []


def test_two_small_files_become_one_where_a_person_forces_it(
    settings: Settings, instance: dg.DagsterInstance, table: IcebergTable
) -> None:
    result = run(settings, instance, force=True, levels=["fragments"], dry_run=False)
    assert result.success
    assert list(files(settings).values()) == [1, 1]


def test_only_partitions_with_equality_deletes_are_left_to_spark(
    settings: Settings, instance: dg.DagsterInstance, table: IcebergTable
) -> None:
    day = next(iter(table.scan(EqualTo("day", "2024-01-02")).plan_files())).file.partition
    for n in range(12):
        table.append(day_rows("2024-01-02", 10 + n))
    commit_deletes(table.refresh(), equality_deletes(table, "n", [10], day))
    rows = {row["level"]: row for row in shown(run(settings, instance), "plan")}
    assert {level: row["by"] for level, row in rows.items()} == {"fragments": "Python", "deletes": "Spark"}
    assert rows["deletes"]["why"].endswith("; by Spark: equality deletes apply to its files")


def test_what_turns_out_to_need_spark_goes_there_with_all_that_was_to_be_rewritten_with_it(
    settings: Settings, instance: dg.DagsterInstance, table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody deletes by equality in one of two partitions, between the look and the work."""
    day = next(iter(table.scan(EqualTo("day", "2024-01-02")).plan_files())).file.partition
    for n in range(12):
        table.append(day_rows("2024-01-02", 10 + n))
    really, left = FragmentsLevel.carry_out, []

    def late(level: FragmentsLevel, means: MaintenanceContext, action: Action) -> Result:
        commit_deletes(table.refresh(), equality_deletes(table, "n", [10], day))
        return really(level, means, action)

    def by_spark(level: FragmentsLevel, means: MaintenanceContext, action: Action, token: RunToken) -> Result:
        left.append((token.text.partition(".")[2], len(action.partitions)))
        return Result()

    monkeypatch.setattr(FragmentsLevel, "carry_out", late)
    monkeypatch.setattr(FragmentsLevel, "_by_spark", by_spark)
    assert run(settings, instance, dry_run=False).success
    assert left == [("fragments.Python.Spark", 2)], "an action by Spark of the same run has another token"
    assert table.refresh().current_snapshot().summary.operation is not Operation.REPLACE

"""Live files that somebody deleted: the job drops them from the metadata, those and no others, so that readers work."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from lakehouse_assets.commit.commit_part import CommitPart
from lakehouse_assets.commit.landing import NothingLeft
from lakehouse_assets.commit.publish import publish
from lakehouse_assets.commit.target import open_target
from lakehouse_assets.commit.tokens import RUN_ID, RunToken
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import MaintenanceRefused, PublishRefused, StorageRefused
from lakehouse_assets.maintenance.collect import missing
from lakehouse_assets.maintenance.collect.ledger import Entry
from lakehouse_assets.maintenance.collect.missing import DROPPED, DropMissing
from lakehouse_assets.maintenance.levels import site_of
from lakehouse_assets.maintenance.table_jobs import drop_missing_job
from lakehouse_assets.run import in_flight
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.storage.place import place_of
from tests.conftest import failure_text
from tests.support.lakes import path_of
from tests.support.outsiders import commit_deletes, equality_deletes, live, live_deletes, position_deletes
from tests.support.tables import numbers

TABLE = numbers()
FIRST, SECOND, THIRD = (date(2024, 1, day) for day in (1, 2, 3))
TOKEN = RunToken("run-9", datetime.now(UTC))


def append(table: Table, day: date, run: str = "run-1") -> Path:
    """Three rows of a day, as one file, which is returned."""
    before = {entry.data_file.file_path for entry in live(table.refresh())} if table.current_snapshot() else set()
    rows = [{"day": day, "n": n, "text": str(n)} for n in range(3)]
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()), {RUN_ID: run})
    ((path),) = {entry.data_file.file_path for entry in live(table.refresh())} - before
    return path_of(path)


@pytest.fixture
def catalog(settings: Settings) -> Catalog:
    return load_lake(settings)


@pytest.fixture
def table(catalog: Catalog) -> Table:
    return open_target(catalog, TABLE)


@pytest.fixture
def files(table: Table) -> list[Path]:
    """The table's files: of the first day two, of two runs, of the second one."""
    return [append(table, FIRST, "run-1"), append(table, FIRST, "run-2"), append(table, SECOND, "run-1")]


def drop(settings: Settings, instance: dg.DagsterInstance, **config: Any) -> dg.ExecuteInProcessResult:
    return drop_missing_job([TABLE]).execute_in_process(
        run_config={"table": TABLE.identifier, "dry_run": False, **config},
        resources={"lakehouse": Lakehouse(settings)},
        instance=instance,
        raise_on_error=False,
    )


def shown(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    assert result.success, failure_text(result)
    (output,) = [event.step_output_data for event in result.all_events if event.is_successful_output]
    files = output.metadata["files"]
    assert isinstance(files, dg.TableMetadataValue)
    found = {name: value.value for name, value in output.metadata.items()}
    return {**found, "files": [record.data for record in files.records]}


def days(table: Table) -> list[date]:
    """The day of each row, by PyIceberg's own reader."""
    return sorted(table.refresh().scan().to_arrow().column("day").to_pylist())


def paths(table: Table) -> set[Path]:
    return {path_of(entry.data_file.file_path) for entry in live(table.refresh())}


def dropped(found: Iterable[Any]) -> set[Path]:
    return {path_of(entry.data_file.file_path) for entry in found}


def test_the_table_can_be_read_again_without_the_missing_file(
    settings: Settings, instance: dg.DagsterInstance, table: Table, files: list[Path]
) -> None:
    files[1].unlink()
    with pytest.raises(FileNotFoundError):
        days(table)
    before = table.refresh().metadata_location
    told = shown(drop(settings, instance, dry_run=True))
    assert table.refresh().metadata_location == before
    assert (told["missing"], told["rows"]) == (1, 3)
    (row,) = told["files"]
    assert path_of(row.pop("file")) == files[1]
    assert row == {
        "content": "rows",
        "partition": "day=2024-01-01",
        "rows": "3",
        "written by": "run run-2",
        "in the trash": "no",
    }

    run = drop(settings, instance)
    assert shown(run)["rows"] == 3
    assert days(table) == [FIRST] * 3 + [SECOND] * 3
    assert paths(table) == {files[0], files[2]}
    snapshot = table.refresh().current_snapshot()
    assert snapshot
    assert snapshot.summary
    assert snapshot.summary.operation is Operation.DELETE
    said = snapshot.summary.additional_properties
    assert (said["deleted-data-files"], said["deleted-records"]) == ("1", "3")
    assert (said["total-data-files"], said["total-records"]) == ("2", "6")
    assert said[RUN_ID] == run.run_id
    assert "day=2024-01-01" in said[DROPPED]
    assert files[1].name in said[DROPPED]
    assert "run run-2" in said[DROPPED]

    again = shown(drop(settings, instance))
    assert again["missing"] == 0
    assert table.refresh().current_snapshot() == snapshot


def test_one_that_comes_back_stays(
    settings: Settings, instance: dg.DagsterInstance, table: Table, catalog: Catalog, files: list[Path]
) -> None:
    content = {file: file.read_bytes() for file in files}
    for file in files[1:]:
        file.unlink()
    assert shown(drop(settings, instance, dry_run=True))["missing"] == 2
    files[1].write_bytes(content[files[1]])
    change = DropMissing.look(table.refresh())
    assert dropped(change.missing) == {files[2]}
    files[2].write_bytes(content[files[2]])
    with pytest.raises(NothingLeft, match=f"{TABLE.identifier}.*missing now"):
        publish(catalog, TABLE.identifier, change, TOKEN)
    assert paths(table) == {*files}
    assert len(days(table)) == 9


def test_commits_in_between_are_kept_and_what_they_removed_is_not_dropped_again(
    table: Table, catalog: Catalog, files: list[Path]
) -> None:
    files[0].unlink()
    files[2].unlink()
    change = DropMissing.look(table.refresh())
    later = append(table, THIRD)
    table.delete("day = '2024-01-02'")
    meanwhile: list[Path] = []

    class CommitFirst(CommitPart):
        def refuse(self, now: Table) -> None:
            if not meanwhile:
                meanwhile.append(append(catalog.load_table(TABLE.identifier), THIRD))

    published = publish(catalog, TABLE.identifier, change, TOKEN, [CommitFirst()])
    assert published.attempts == 2
    assert dropped(change.dropped) == {files[0]}
    assert paths(table) == {files[1], later, *meanwhile}
    assert days(table) == [FIRST] * 3 + [THIRD] * 6


def test_one_that_the_trash_has_is_refused(
    settings: Settings, instance: dg.DagsterInstance, table: Table, files: list[Path]
) -> None:
    site = site_of(Lakehouse(settings), instance)
    trash = site.trash(table, TABLE.identifier, place_of(table.location()))
    (file,) = (file for file in site.list_table(table, trash.place) if path_of(file.place.location) == files[0])
    trash.put([Entry.of(file, "by mistake", 0)], "run-9")
    files[2].unlink()
    told = {path_of(row["file"]): row["in the trash"] for row in shown(drop(settings, instance, dry_run=True))["files"]}
    assert told == {files[0]: "yes", files[2]: "no"}
    text = failure_text(drop(settings, instance))
    assert f"table {TABLE.identifier}: the trash has 1 of its 2 missing files" in text
    assert in_flight.RESTORE in text
    assert paths(table) == {*files}


def test_an_error_of_the_storage_is_no_missing_file(
    settings: Settings, instance: dg.DagsterInstance, table: Table, files: list[Path]
) -> None:
    files[0].unlink()
    files[1].unlink()
    files[1].symlink_to(files[1])  # opening it fails with ELOOP
    text = failure_text(drop(settings, instance))
    assert f"table {TABLE.identifier}: the storage can't tell" in text
    assert files[1].name in text
    with pytest.raises(StorageRefused):
        DropMissing.look(table.refresh())
    assert paths(table) == {*files}


def test_a_name_that_pyiceberg_reads_as_another_is_not_taken_for_missing(table: Table) -> None:
    """It is there for other clients."""
    opened = append(table, FIRST).rename(path_of(table.location()) / "part")
    table.delete("true")
    name = f"file://{opened}#1.parquet"
    table.add_files([name])
    opened.rename(f"{opened}#1.parquet")
    with pytest.raises(FileNotFoundError):
        days(table)
    with pytest.raises(MaintenanceRefused, match=f"may be there: {name}"):
        DropMissing.look(table.refresh())


def test_deletes_of_missing_files_are_no_problem(table: Table, catalog: Catalog, files: list[Path]) -> None:
    commit_deletes(table, position_deletes(table, {locations(table)[files[0]]: [0]}))
    files[0].unlink()
    publish(catalog, TABLE.identifier, DropMissing.look(table.refresh()), TOKEN)
    assert days(table) == [FIRST] * 3 + [SECOND] * 3


def locations(table: Table) -> dict[Path, str]:
    return {path_of(entry.data_file.file_path): entry.data_file.file_path for entry in live(table)}


@pytest.mark.parametrize("kind", ["position", "equality"])
def test_a_missing_delete_file_that_is_needed_is_refused(
    table: Table, catalog: Catalog, files: list[Path], kind: str
) -> None:
    (of,) = (entry for entry in live(table) if path_of(entry.data_file.file_path) == files[0])
    if kind == "position":
        made = position_deletes(table, {of.data_file.file_path: [0]})
    else:
        made = equality_deletes(table, "n", [0], of.data_file.partition)
    commit_deletes(table, made)
    (delete,) = (path_of(entry.data_file.file_path) for entry in live_deletes(table.refresh()))
    delete.unlink()
    files[2].unlink()
    with pytest.raises(PublishRefused, match="deleted rows would come back: day=2024-01-01") as refused:
        publish(catalog, TABLE.identifier, DropMissing.look(table.refresh()), TOKEN)
    assert delete.name in str(refused.value)
    assert paths(table) == {*files}


def test_a_whole_partition_goes_with_its_delete_files(table: Table, catalog: Catalog, files: list[Path]) -> None:
    commit_deletes(table, position_deletes(table, {locations(table)[files[0]]: [0]}))
    (delete,) = (path_of(entry.data_file.file_path) for entry in live_deletes(table.refresh()))
    for file in (files[0], files[1], delete):
        file.unlink()
    publish(catalog, TABLE.identifier, DropMissing.look(table.refresh()), TOKEN)
    assert days(table) == [SECOND] * 3
    assert live_deletes(table) == []


def test_a_table_that_was_created_again_is_left_alone(table: Table, catalog: Catalog, files: list[Path]) -> None:
    files[0].unlink()
    change = DropMissing.look(table.refresh())
    catalog.drop_table(TABLE.identifier)
    anew = catalog.create_table(TABLE.identifier, table.schema(), f"{table.location()}-anew")
    append(anew, FIRST)
    with pytest.raises(PublishRefused, match="created again"):
        publish(catalog, TABLE.identifier, change, TOKEN)
    assert len(days(anew)) == 3


def test_the_collector_names_the_job() -> None:
    assert (missing.RESTORE, missing.DROP_MISSING) == (in_flight.RESTORE, in_flight.DROP_MISSING)

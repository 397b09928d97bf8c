"""Collecting and restoring by the jobs, on a real table: what is seen in the UI, and that what goes can come back."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lakehouse_assets.commit.target import open_target
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.maintenance.collect.seen import Site
from lakehouse_assets.maintenance.job import maintenance_job
from lakehouse_assets.maintenance.table_jobs import restore_job
from lakehouse_assets.run.resource import Lakehouse
from tests.support.tables import numbers

TABLE = numbers()
LONG_AGO = datetime.now(UTC) - timedelta(days=60)
GRACE = timedelta(days=4)


@pytest.fixture
def folder(settings: Settings) -> Path:
    """The data folder of a table with one file of a few KiB."""
    rows = [{"day": date(2024, 1, 1), "n": n, "text": str(n)} for n in range(1000)]
    table = open_target(load_lake(settings), TABLE)
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    return Path(table.location().removeprefix("file://")) / "data"


def orphan(folder: Path, name: str = "left behind.parquet", size: int = 10) -> Path:
    path = folder / name
    path.write_bytes(b"x" * size)
    os.utime(path, (LONG_AGO.timestamp(), LONG_AGO.timestamp()))
    return path


def collect(settings: Settings, instance: dg.DagsterInstance, **config: Any) -> dg.ExecuteInProcessResult:
    return maintenance_job([TABLE], EXTENSIONS).execute_in_process(
        run_config={"levels": ["collect"], "patient": False, "dry_run": False, **config},
        resources={"lakehouse": Lakehouse(settings)},
        instance=instance,
        raise_on_error=False,
    )


def restore(settings: Settings, instance: dg.DagsterInstance, **config: Any) -> dg.ExecuteInProcessResult:
    return restore_job([TABLE]).execute_in_process(
        run_config={"table": TABLE.identifier, "dry_run": False, **config},
        resources={"lakehouse": Lakehouse(settings)},
        instance=instance,
        raise_on_error=False,
    )


def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the storage's clock, the grace goes by."""
    now_ms = Site.now_ms
    monkeypatch.setattr(Site, "now_ms", lambda site: now_ms(site) + GRACE // timedelta(milliseconds=1))


def verdicts(result: dg.ExecuteInProcessResult) -> dict[str, str]:
    """Files by verdict, of those that are not needed."""
    (output,) = [event.step_output_data for event in result.all_events if event.is_successful_output]
    records = [record.data for record in output.metadata["collection"].records]
    return {str(row["verdict"]): str(row["files"]) for row in records if row["verdict"] != "needed or held"}


def due(result: dg.ExecuteInProcessResult) -> list[dict[str, str]]:
    """The files that are named as due, by the op that failed or did not."""
    outputs = [event.step_output_data.metadata for event in result.all_events if event.is_successful_output]
    failures = [event.step_failure_data.user_failure_data for event in result.all_events if event.is_step_failure]
    (metadata,) = outputs + [failure.metadata for failure in failures if failure]
    return [dict(record.data) for record in metadata["due"].records] if "due" in metadata else []


def storage_check(instance: dg.DagsterInstance) -> dg.AssetCheckEvaluation:
    key = dg.AssetCheckKey(TABLE.key, "storage")
    (record,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    assert record.event
    assert record.event.dagster_event
    return record.event.dagster_event.asset_check_evaluation_data


def failure(result: dg.ExecuteInProcessResult) -> str:
    (event,) = [event for event in result.all_events if event.is_step_failure]
    return str(event.step_failure_data.user_failure_data.description)


def test_what_nobody_needs_is_marked_then_in_the_trash_and_comes_back(
    settings: Settings, instance: dg.DagsterInstance, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = orphan(folder)
    looked = collect(settings, instance, dry_run=True)
    assert verdicts(looked) == {"not needed": "1", "would go to the trash": "0"}
    marked = collect(settings, instance)
    assert marked.success
    assert verdicts(marked) == {"not needed": "1", "went to the trash": "0"}
    assert path.exists()
    check = storage_check(instance)
    assert check.passed
    assert check.metadata["unneeded_files"].value == 1
    later(monkeypatch)
    assert verdicts(collect(settings, instance, dry_run=True))["would go to the trash"] == "1"
    assert path.exists()
    gone = collect(settings, instance)
    assert gone.success
    assert verdicts(gone)["went to the trash"] == "1"
    assert not path.exists()
    assert storage_check(instance).metadata["unneeded_files"].value == 0
    assert load_lake(settings).load_table(TABLE.identifier).scan().to_arrow().num_rows == 1000

    shown = restore(settings, instance, run=gone.run_id, dry_run=True)
    (output,) = [event.step_output_data.metadata for event in shown.all_events if event.is_successful_output]
    assert output["in_trash"].value == 1
    assert not path.exists()
    (row,) = output["trash"].records
    assert row.data["file"].endswith(path.name)
    assert row.data["run"] == gone.run_id
    other = restore(settings, instance, run="another", dry_run=True)
    (output,) = [event.step_output_data.metadata for event in other.all_events if event.is_successful_output]
    assert output["in_trash"].value == 0

    back = restore(settings, instance, run=gone.run_id, paths=[str(path)])
    assert back.success
    assert path.read_bytes() == b"x" * 10


@pytest.mark.parametrize("recreated", [True, False])
def test_files_of_a_table_that_was_dropped_come_back_as_well(
    settings: Settings,
    instance: dg.DagsterInstance,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    recreated: bool,
) -> None:
    path = orphan(folder)
    collect(settings, instance)
    later(monkeypatch)
    collect(settings, instance)
    assert not path.exists()
    lake = load_lake(settings)
    schema = lake.load_table(TABLE.identifier).schema()
    lake.drop_table(TABLE.identifier)
    if recreated:
        lake.create_table(TABLE.identifier, schema)
    assert restore(settings, instance).success
    assert path.exists()


def test_a_large_share_is_an_error_until_a_person_allows_it(
    settings: Settings, instance: dg.DagsterInstance, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = orphan(folder, size=100_000)
    collect(settings, instance)
    later(monkeypatch)
    refused = collect(settings, instance)
    assert not refused.success
    assert path.exists()
    assert "allow_large" in failure(refused)
    check = storage_check(instance)
    assert not check.passed
    assert check.severity is dg.AssetCheckSeverity.ERROR
    assert "allow_large" in check.description
    assert collect(settings, instance, allow_large=True).success
    assert not path.exists()
    assert storage_check(instance).passed


def test_the_first_files_that_are_due_are_named_as_long_as_they_are_there(
    settings: Settings, instance: dg.DagsterInstance, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {str(orphan(folder, f"{n}.parquet", size=10_240)) for n in range(21)}
    assert not due(collect(settings, instance)), "marked only"
    later(monkeypatch)
    for dry_run in (True, False):
        records = due(collect(settings, instance, dry_run=dry_run))
        assert len({record["location"] for record in records} & paths) == len(records) == 20
        assert {(record["why"], record["size"]) for record in records} == {
            ("no snapshot and no run names it", "10 KiB")
        }
    assert not due(collect(settings, instance, allow_large=True))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"table": "demo.nothing"}, "unknown table demo.nothing; the declared tables are demo.numbers"),
        ({"run": "another"}, "the trash has none of the requested files"),
        ({"paths": ["ftp://x/y"]}, "ftp://x/y"),
    ],
)
def test_what_can_not_be_restored_is_said(
    settings: Settings, instance: dg.DagsterInstance, folder: Path, config: dict[str, Any], expected: str
) -> None:
    result = restore(settings, instance, **config)
    assert not result.success
    assert expected in failure(result)

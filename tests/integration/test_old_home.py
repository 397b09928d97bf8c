"""A home that was filled before the library was packaged is filled on: resumed, maintained, restored.
tests/old_home/make.txt tells what is in it, and which code made it."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from lakehouse_assets import Domain, code_location
from lakehouse_assets.cli.home import prepare
from lakehouse_assets.cli.instance import opened
from lakehouse_assets.environment.settings import Settings, read_settings
from tests.conftest import ROOT, failure_text
from tests.support.faults import FaultyLake, FaultyLakehouse, from_failure, rows_by_day, tiny

pytestmark = pytest.mark.spark  # none starts, but its jars must be there
HOME = Path("/tmp/lakehouse-old-home")
FAILED = "0a1b2c3d-0000-4000-8000-000000000001"
DAYS = ("2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04")


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Where it was made: its tables name their files by absolute paths."""
    shutil.rmtree(HOME, ignore_errors=True)
    with tarfile.open(ROOT / "tests" / "old_home" / "home.tar.gz") as archive:
        archive.extractall(HOME.parent, filter="fully_trusted")
    monkeypatch.setenv("LAKEHOUSE_HOME", str(HOME))
    for name in ("DAGSTER_HOME", "DAGSTER_EVENT_BATCH_SIZE"):
        monkeypatch.setenv(name, "")  # prepare() sets them
        monkeypatch.delenv(name)
    yield read_settings()
    shutil.rmtree(HOME)


def test_it_is_filled_on(settings: Settings) -> None:
    prepare(settings)
    table = tiny()
    location = code_location(Domain("demo", tables=[table]), resources={"lakehouse": FaultyLakehouse(settings)})
    with opened(settings) as (instance, _):
        lake = FaultyLake(settings, instance)
        assert rows_by_day(lake, table) == dict.fromkeys(DAYS[:2], 3)
        assert instance.get_materialized_partitions(table.key) == {*DAYS[:2]}
        before = lake.snapshots(table)

        resumed = lake.run(table, DAYS[2], DAYS[3], tags=from_failure(FAILED))
        assert resumed.success, failure_text(resumed)
        assert rows_by_day(lake, table) == dict.fromkeys(DAYS, 3)
        assert lake.snapshots(table) == before + 1
        assert lake.table(table).current_snapshot().summary["lakehouse.token"] == FAILED
        again = lake.run(table, DAYS[2], DAYS[3], tags=from_failure(FAILED))
        assert again.success, failure_text(again)
        assert lake.snapshots(table) == before + 1, "it had landed"

        planned = run_job(location, instance, "lakehouse_plan")
        assert planned.success, failure_text(planned)
        orphan = Path(lake.table(table).location().removeprefix("file://")) / "data" / "orphan.parquet"
        assert not orphan.exists()
        restored = run_job(location, instance, "lakehouse_restore", table=table.identifier, dry_run=False)
        assert restored.success, failure_text(restored)
        assert orphan.exists()
        maintained = run_job(location, instance, "lakehouse_maintenance", dry_run=False, force=True)
        assert maintained.success, failure_text(maintained)
        assert rows_by_day(lake, table) == dict.fromkeys(DAYS, 3)


def run_job(
    location: dg.Definitions, instance: dg.DagsterInstance, name: str, **config: object
) -> dg.ExecuteInProcessResult:
    return location.resolve_job_def(name).execute_in_process(config, instance, raise_on_error=False)

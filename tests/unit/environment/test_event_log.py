"""The event log that writes a batch in one transaction stores what Dagster's own stores, and fails as a whole.
Real instances on SQLite; how much sooner it is done is bench/'s."""

# No `from __future__ import annotations` here: Dagster compares the context's annotation itself.

import shutil
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.event_log import SqliteEventLogStorage
from sqlalchemy import create_engine

from lakehouse_assets.cli.home import INSTANCE
from lakehouse_assets.drive.slots import POOL
from lakehouse_assets.environment.event_log import BatchedSqliteEventLog
from tests.conftest import ROOT

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-06")
KEY = dg.AssetKey("counted")


@dg.asset(
    partitions_def=DAYS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    check_specs=[dg.AssetCheckSpec("good", asset="counted")],
)
def counted(context: dg.AssetExecutionContext):
    yield dg.AssetCheckResult(check_name="good", passed=True)
    for day in context.partition_keys:
        context.add_asset_metadata({"day": day}, partition_key=day)
    yield dg.MaterializeResult(tags={"colour": "blue"})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "dagster").mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    return tmp_path / "dagster"


def stored(instance: dg.DagsterInstance) -> dict[str, object]:
    """What the pages of the UI would read after two runs."""
    span = {"dagster/asset_partition_range_start": "2024-01-01", "dagster/asset_partition_range_end": "2024-01-05"}
    for _ in range(2):
        result = dg.materialize([counted], instance=instance, tags=span)
    entry = instance.get_asset_records([KEY])[0].asset_entry
    latest = entry.last_materialization_record
    records = instance.fetch_materializations(KEY, limit=100).records
    assert latest.storage_id == records[0].storage_id
    assert entry.last_run_id == result.run_id
    check = instance.event_log_storage.get_latest_asset_check_execution_by_key([dg.AssetCheckKey(KEY, "good")])
    return {
        "log": Counter(e.dagster_event_type for e in instance.all_logs(result.run_id)),
        "latest": latest.asset_materialization.metadata["day"].value,
        "partitions": instance.get_materialized_partitions(KEY),
        "days": [(r.partition_key, r.asset_materialization.metadata["day"].value) for r in records],
        # Their values are of the run: data versions.
        "tags": Counter(name for tags in instance.get_event_tags_for_asset(KEY) for name in tags),
        "checks": [c.status for c in check.values()],
    }


def test_it_tells_what_dagsters_own_log_tells(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with dg.DagsterInstance.get() as plain:
        assert type(plain.event_log_storage) is SqliteEventLogStorage
        expected = stored(plain)
    shutil.rmtree(home)
    home.mkdir()
    shutil.copy(INSTANCE, home)
    monkeypatch.setenv("DAGSTER_EVENT_BATCH_SIZE", "1000")
    batches: list[int] = []
    store = BatchedSqliteEventLog.store_event_batch
    monkeypatch.setattr(
        BatchedSqliteEventLog,
        "store_event_batch",
        lambda self, events: (batches.append(len(events)), store(self, events)),
    )
    with dg.DagsterInstance.get() as batched:
        assert stored(batched) == expected
    assert batches == [6, 5] * 2, "planned events of five partitions and a check, then five materializations"


def test_where_it_lies_is_known_whatever_else_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A `dagster` command in the checkout shows everything that is wrong with the code location."""
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    monkeypatch.setenv("LAKEHOUSE_COMPUTE", "mainframe")
    BatchedSqliteEventLog.from_config_value(None, {}).dispose()
    assert (tmp_path / "dagster" / "history" / "runs").is_dir()


def test_a_home_written_by_dagsters_own_log_is_read_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with dg.DagsterInstance.get() as plain:
        stored(plain)
    shutil.copy(INSTANCE, home)
    monkeypatch.setenv("DAGSTER_EVENT_BATCH_SIZE", "1000")
    with dg.DagsterInstance.get() as batched:
        assert len(batched.fetch_materializations(KEY, limit=100).records) == 10
        stored(batched)
        assert len(batched.fetch_materializations(KEY, limit=100).records) == 20


@pytest.mark.parametrize("file", ["history/runs.db", "history/runs/index.db"])
def test_a_run_ends_though_a_file_is_locked_for_longer_than_sqlite_waits(home: Path, file: str) -> None:
    (home / "dagster.yaml").symlink_to(INSTANCE)
    with dg.DagsterInstance.get() as instance:
        run = instance.create_run_for_job(dg.Definitions([counted]).resolve_implicit_global_asset_job_def())
        with closing(sqlite3.connect(home / file, isolation_level=None, check_same_thread=False)) as locker:
            locker.execute("BEGIN EXCLUSIVE")
            unlocked = threading.Timer(7, lambda: locker.execute("COMMIT"))
            unlocked.start()
            instance.report_run_failed(run)
            unlocked.join()
        assert instance.get_run_by_id(run.run_id).status is dg.DagsterRunStatus.FAILURE


def test_other_files_of_sqlite_keep_their_own_patience(home: Path) -> None:
    (home / "dagster.yaml").symlink_to(INSTANCE)
    with dg.DagsterInstance.get():
        for file, patience in ((home.parent / "catalog.db", 5_000), (home / "history" / "other.db", 60_000)):
            with create_engine(f"sqlite:///{file}").connect() as connection:
                assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == patience


@pytest.mark.slow("A race of real processes for slots.")
@pytest.mark.server
def test_runs_that_claim_at_once_never_hold_more_slots_than_there_are(home: Path) -> None:
    for folder in ("holders", "ready"):
        (home / folder).mkdir()
    (home / "dagster.yaml").symlink_to(INSTANCE)
    with dg.DagsterInstance.get() as instance:
        instance.event_log_storage.set_concurrency_slots(POOL, 2)
    command = [sys.executable, "-m", "tests.support.claimant"]
    claimants = [
        subprocess.Popen([*command, f"run-{n}", "30", "6"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for n in range(6)
    ]
    assert max(int(claimant.communicate()[0]) for claimant in claimants) == 2


def tables_of(path: Path) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(path)) as database:
        found = database.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
        return [*found, *database.execute("SELECT * FROM alembic_version"), *database.execute("PRAGMA journal_mode")]


def test_a_new_runs_log_is_a_copy_of_what_dagster_makes(home: Path, tmp_path: Path) -> None:
    theirs = SqliteEventLogStorage(str(tmp_path / "theirs"))
    ours = BatchedSqliteEventLog.from_config_value(None, {})
    (template,) = (home / "history" / "runs").glob(".empty-*")
    written = template.stat().st_mtime_ns
    for storage in (theirs, ours):
        with storage.run_connection("run"):
            pass
    assert tables_of(Path(ours.path_for_shard("run"))) == tables_of(Path(theirs.path_for_shard("run")))
    assert [*ours.get_all_run_ids()] == ["run"]
    assert template.stat().st_mtime_ns == written
    assert sorted(path.name for path in template.parent.iterdir()) == [template.name, "index.db", "run.db"]

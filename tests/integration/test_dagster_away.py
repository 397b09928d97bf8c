"""A run outlasts the absence of Dagster's own PostgreSQL, and nothing waits for one that refuses: a real server.
The catalog's is in test_catalog_away.py, Dagster's SQLite files are in unit/environment/test_event_log.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import dagster as dg
import psycopg2
import pytest
from dagster_postgres import utils

from lakehouse_assets import Domain, code_location
from lakehouse_assets.drive.liveness import start_time
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.run import executor
from lakehouse_assets.run.executor import wait_for_database
from tests.conftest import Lake
from tests.integration.test_catalog_away import server as server
from tests.integration.test_catalog_away import uri
from tests.support.faults import FaultyLakehouse, Signs, rows_by_day, span, tiny, wait_for
from tests.support.postgres import PostgreSQL

pytestmark = pytest.mark.server
DAY = "2024-01-01"
WAITS = "Dagster's database can't be reached; waiting for it"


def alter(server: PostgreSQL, how: str) -> None:
    with psycopg2.connect(uri(server)) as connection, connection.cursor() as cursor:
        cursor.execute(f"ALTER ROLE poor {how}")


@pytest.fixture
def instance(server: PostgreSQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """Dagster itself gives up at once, so that short absences do."""
    alter(server, "SUPERUSER CONNECTION LIMIT -1 PASSWORD 'right'")
    compute_logs = {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"}
    where = uri(server, "poor:right").replace("://", "+psycopg2://")
    config = {"storage": {"postgres": {"postgres_url": where}}, "compute_logs": compute_logs}
    (tmp_path / "dagster.yaml").write_text(json.dumps(config | {"telemetry": {"enabled": False}}))
    monkeypatch.setattr(utils.retry_pg_connection_fn, "__defaults__", (0, 0.0))
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        yield instance


def numbers_job() -> dg.JobDefinition:
    lakehouse = FaultyLakehouse(read_settings())
    location = code_location(Domain("demo", tables=[tiny()]), resources={"lakehouse": lakehouse})
    return dg.Definitions.merge(location, dg.Definitions(jobs=[dg.define_asset_job("fill")])).resolve_job_def("fill")


def test_a_run_outlasts_it(
    server: PostgreSQL, settings: Settings, instance: dg.DagsterInstance, caplog: pytest.LogCaptureFixture
) -> None:
    """It is away from before its worker ends."""
    lake = Lake(settings, instance)
    settings.home.mkdir()
    signs = Signs(lake)
    signs.hold(DAY)

    with ThreadPoolExecutor() as pool:
        job, tags = dg.reconstructable(numbers_job), span([DAY])
        running = pool.submit(dg.execute_job, job, instance, tags=tags, raise_on_error=False)
        wait_for(lambda: signs.started() or running.done())
        server.end()
        signs.hold()
        wait_for(lambda: not any(map(start_time, signs.workers())))
        wait([running], timeout=4)
        server.start()
        run = running.result()
    assert run.success
    stored = instance.get_run_by_id(run.run_id)
    assert stored
    assert stored.status is dg.DagsterRunStatus.SUCCESS
    events = [e.dagster_event_type for e in instance.all_logs(run.run_id) if e.is_dagster_event]
    assert events.count(dg.DagsterEventType.ASSET_MATERIALIZATION) == 1
    assert dg.DagsterEventType.RUN_SUCCESS in events
    assert rows_by_day(lake, tiny()) == {DAY: 3}
    assert caplog.text.count(f"{WAITS}, at most 300 s") == 1


def test_no_other_process_waits_nor_a_run_for_longer(
    server: PostgreSQL,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(executor, "UNREACHABLE_SECONDS", 1)
    server.end()
    try:
        with pytest.raises(utils.DagsterPostgresException):
            instance.get_runs()
        assert WAITS not in caplog.text
        wait_for_database(instance)
        for _ in range(2):
            with pytest.raises(utils.DagsterPostgresException):
                instance.get_runs()
        assert caplog.text.count(WAITS) == 1
    finally:
        server.start()
    instance.get_runs()


def test_a_wrong_password_is_not_waited_for(
    server: PostgreSQL, instance: dg.DagsterInstance, caplog: pytest.LogCaptureFixture
) -> None:
    wait_for_database(instance)
    alter(server, "PASSWORD 'another'")
    with pytest.raises(utils.DagsterPostgresException):
        instance.get_runs()
    assert WAITS not in caplog.text

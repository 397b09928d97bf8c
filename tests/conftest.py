"""Fixtures every test may use: a home of its own, a Dagster instance, and a way to materialize tables on them.
Servers are in servers.py, the steps that workers run in steps.py."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.table import Table as IcebergTable

from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment import output
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.run.asset import table_asset
from lakehouse_assets.run.resource import Lakehouse
from tests import durations
from tests.support.dagster_server import DagsterServer, dagster_server
from tests.support.instances import light_instance
from tests.support.made_once import service_models_are_read_once as service_models_are_read_once
from tests.support.made_once import statements_are_compiled_once as statements_are_compiled_once

ROOT = Path(__file__).parent.parent


def missing(what: str) -> NoReturn:
    """Skip a test that this machine can't run; where all are required (LAKEHOUSE_REQUIRE_ALL=1) it fails."""
    if os.environ.get("LAKEHOUSE_REQUIRE_ALL") == "1":
        pytest.fail(what)
    pytest.skip(f"{what} (LAKEHOUSE_REQUIRE_ALL=1 makes this an error)")


def pytest_configure() -> None:
    """Handle SIGINT, which a shell ignores for what it starts in the background. Dagster treats SIGTERM as it treats
    SIGINT, and its children inherit that: the processes that follow a run's output would not end.

    The tests' JVMs do too little for their second compiler to pay: without it tests take 0.65 to 0.7 of the CPU. Such a
    JVM has 48 MB for compiled code instead of 240, which the queries of some hundred tests in one JVM fill.
    """
    # Hundreds of homes would each keep a JVM.
    os.environ.setdefault("LAKEHOUSE_WORKER_IDLE", "PT0S")
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before those that `-m` does not choose are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    durations.apply(items, durations.recorded())


def pytest_collection_finish() -> None:
    """Has the garbage collector look no more at what imports have left, half a million objects."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else nanobind tells of leaks at the end


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """A worker that runs in the test's process, or a command, leaves its variables to the next test otherwise."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def own_aws_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3's default session keeps the credentials that the environment had when the first test used it."""
    if boto3 := sys.modules.get("boto3"):
        monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)


@pytest.fixture(autouse=True)
def own_secrets() -> None:
    """What one test's catalog has as a password is a word in the messages of another test."""
    output.KNOWN.clear()


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """An empty LAKEHOUSE_HOME; jars and archive come from the machine's cache."""
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in list(os.environ):
        if name.startswith("PYICEBERG_CATALOG__"):
            monkeypatch.delenv(name)
    return read_settings()


@pytest.fixture(scope="session")
def empty_instance(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a Dagster instance without runs, to be copied: to make one takes seven times as long."""
    folder = tmp_path_factory.mktemp("instance")
    with light_instance(folder):
        return folder


@pytest.fixture
def instance(tmp_path: Path, empty_instance: Path) -> Iterator[dg.DagsterInstance]:
    """A Dagster instance on SQLite in a folder of its own."""
    shutil.copytree(empty_instance, tmp_path / "dagster")
    with light_instance(tmp_path / "dagster") as instance:
        yield instance


@pytest.fixture(scope="session")
def pool_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterServer]:
    """The UI and the daemon over tests/support/pool_location.py, for the session."""
    with dagster_server(tmp_path_factory.mktemp("pool") / "home", "tests.support.pool_location") as server:
        yield server


@dataclass
class Lake:
    """Tables of one test, materialized through Dagster as the UI would."""

    settings: Settings
    instance: dg.DagsterInstance

    def run(
        self, table: Table, first: str | None = None, last: str | None = None, *, tags: dict[str, str] | None = None
    ) -> dg.ExecuteInProcessResult:
        """One run for the partitions from first to last; never raises: look at ``success``."""
        span = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last or first}
        return dg.materialize(
            [table_asset(table, EXTENSIONS)],
            instance=self.instance,
            resources={"lakehouse": Lakehouse(self.settings)},
            tags={**(span if first else {}), **(tags or {})},
            raise_on_error=False,
        )

    def table(self, table: Table) -> IcebergTable:
        return load_lake(self.settings).load_table(table.identifier)

    def rows(self, table: Table, columns: Sequence[str] = ("*",)) -> pa.Table:
        return self.table(table).scan(selected_fields=tuple(columns)).to_arrow()

    def snapshots(self, table: Table) -> int:
        return len(self.table(table).snapshots())


@pytest.fixture
def lake(settings: Settings, instance: dg.DagsterInstance) -> Lake:
    return Lake(settings, instance)


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps run in the test's process; name it before ``lake``, which reads it."""
    monkeypatch.setenv("LAKEHOUSE_COMPUTE", "inline")


@pytest.fixture(params=["inline", "local"])
def compute(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of running a step; name it before ``lake``, which reads it."""
    monkeypatch.setenv("LAKEHOUSE_COMPUTE", request.param)
    return request.param


def failure_text(result: dg.ExecuteInProcessResult) -> str:
    """What a person reads at the failed step: description and metadata."""
    failures = [e for e in result.all_events if e.is_step_failure]
    assert len(failures) == 1, "one step should have failed"
    data = failures[0].step_failure_data
    text = [data.error.message if data.error else ""]
    if data.user_failure_data:
        text.append(data.user_failure_data.description or "")
        text += [str(v.value) for v in data.user_failure_data.metadata.values()]
    return "\n".join(text)


def advice(instance: dg.DagsterInstance) -> list[str]:
    """What Dagster logged about the Pipes sessions of the newest run, except that each was opened."""
    (run,) = instance.get_runs(limit=1)
    messages = [entry.user_message for entry in instance.all_logs(run.run_id)]
    return [text for text in messages if text.startswith("[pipes]") and "opened dagster pipes" not in text]

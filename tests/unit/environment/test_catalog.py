"""Where the configuration of ``lake`` comes from, and opening it.
Its translation for Spark is in test_spark_catalog.py, what of it can't work in test_catalog_problems.py."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import boto3
import pyarrow as pa
import pytest
from moto import mock_aws
from pyiceberg.exceptions import ForbiddenError, ServiceUnavailableError, TooManyRequestsError
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import _import_retry_strategy
from pyiceberg.schema import Schema
from sqlalchemy.exc import OperationalError

from lakehouse_assets.commit import tokens
from lakehouse_assets.environment.catalog import (
    FILE_IO,
    CatalogUnavailable,
    catalog_problems,
    catalog_properties,
    load_lake,
    with_retries,
    worker_properties,
)
from lakehouse_assets.environment.env_reader import SettingsError, public
from lakehouse_assets.environment.file_io import RETRIES
from lakehouse_assets.environment.settings import Settings, read_settings
from tests.conftest import ROOT
from tests.support.http_server import Handler, http_server


def configure(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)


# where the configuration comes from


def test_without_configuration_it_is_the_embedded_one(settings: Settings) -> None:
    found = catalog_properties(settings)
    assert found["uri"].startswith(f"sqlite:///{settings.home}/catalog.db?")
    assert found["warehouse"] == (settings.home / "warehouse").as_uri()
    assert catalog_problems(settings, {"local": ["shop.orders"]}) == []


def test_a_uri_is_enough(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, URI="sqlite:////srv/lake.db")
    found = catalog_properties(settings)
    assert found["uri"] == "sqlite:////srv/lake.db"
    assert found["warehouse"] == (settings.home / "warehouse").as_uri()


def test_pyicebergs_files_have_patience_with_s3(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "s3.retry-strategy-impl"
    given = catalog_properties(settings)
    assert _import_retry_strategy(given[name]).max_attempts == RETRIES
    assert load_file_io(given, "s3://lake/a").properties[name] == load_lake(settings).properties[name] == given[name]
    assert public(given)[name] == given[name]


@pytest.mark.parametrize("name", FILE_IO)
def test_another_way_to_read_files_is_the_users_to_choose(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert catalog_properties(settings)[name] == FILE_IO[name]
    variable = name.upper().replace(".", "__").replace("-", "_")
    configure(monkeypatch, URI="https://x", WAREHOUSE="lake", **{variable: "ours.Own"})
    assert catalog_properties(settings)[name] == "ours.Own"


def test_a_mapping_in_the_file_is_named_by_its_dotted_names(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "catalog:\n  lake:\n    uri: https://x\n    auth:\n      type: basic\n      basic:\n        username: me\n"
    (tmp_path / ".pyiceberg.yaml").write_text(text)
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    problems = " ".join(catalog_problems(settings, {"local": ["shop.orders"]}))
    assert "(auth.type)" in problems
    assert "(auth.basic.username)" in problems


def test_a_worker_puts_its_own_secrets_to_what_it_was_told(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {"type": "rest", "uri": "https://x", "warehouse": "lake", "credential": "id:secret"} | FILE_IO
    received = public(whole)
    assert "credential" not in received
    configure(monkeypatch, CREDENTIAL="id:secret")
    assert catalog_properties(settings, received) == whole


BROKEN = {
    "empty": b"",
    "a list": b"- catalog\n",
    "a tab": b"catalog:\n\tlake:\n\t\turi: https://me:hunter2@x\n",
    "a brace": b"catalog:\n  lake: {uri: https://me:hunter2@x}\n",
    "binary": b"\x00\x01",
    "no text": b"catalog: \xff\xfe",
    "no catalogs": b"catalog:\n",
    "a name only": b"catalog:\n  lake:\n",
    "a URI only": b"catalog:\n  lake: https://me:hunter2@x\n",
    "catalogs in a list": b"catalog:\n  - lake\n",
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("beside", [{}, {"CREDENTIAL": "id:hunter2"}])
def test_a_file_that_pyiceberg_can_not_take_is_told_by_its_name_beside_all_others(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes, beside: dict[str, str]
) -> None:
    (tmp_path / ".pyiceberg.yaml").write_bytes(content)
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    configure(monkeypatch, **beside)
    problems = catalog_problems(replace(settings, staging="s3://key:secret@lake"), {"ecs": ["shop.orders"]})
    assert sum(str(tmp_path / ".pyiceberg.yaml") in problem for problem in problems) == 1
    assert [any(part in p for p in problems) for part in ("LAKEHOUSE_STAGING", "LAKEHOUSE_LANDING")] == [True, True]
    assert not any("hunter2" in problem or "LAKE__URI" in problem for problem in problems)
    with pytest.raises(SettingsError, match=r"\.pyiceberg\.yaml"):
        catalog_properties(settings)


def test_pyiceberg_is_not_imported_over_a_file_that_it_ends_on(tmp_path: Path) -> None:
    """It reads the file when it is imported."""
    (tmp_path / ".pyiceberg.yaml").touch()
    environment = {**os.environ, "PYICEBERG_HOME": str(tmp_path), "LAKEHOUSE_MAX_WORKERS": "many"}
    load = [sys.executable, "-c", "import lakehouse_assets.definitions"]
    done = subprocess.run(load, env=environment, cwd=ROOT, capture_output=True, text=True)
    _, _, message = done.stderr.partition("SettingsError: ")
    assert f"{tmp_path}/.pyiceberg.yaml" in message
    assert "LAKEHOUSE_MAX_WORKERS" in message


def test_a_worker_without_its_secret_uri_is_told_what_is_missing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = public({"type": "rest", "uri": "https://me:hunter2@catalog/lake", "warehouse": "s3://lake"})
    with pytest.raises(SettingsError, match=r"PYICEBERG_CATALOG__LAKE__URI \(uri\) is missing.*own environment"):
        catalog_properties(settings, received)
    configure(monkeypatch, TYPE="sql")
    (missing,) = catalog_problems(settings, {"local": ["shop.orders"]})
    assert "LAKE__URI (uri) is missing" in missing
    assert "worker" not in missing


def test_a_worker_needs_no_sql_catalog(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, URI="postgresql://me:hunter2@db/lake", WAREHOUSE="s3://lake")
    sent = worker_properties(settings)
    monkeypatch.delenv("PYICEBERG_CATALOG__LAKE__URI")
    assert catalog_properties(settings, sent) == sent
    assert "hunter2" not in str(sent)
    assert sent["warehouse"] == "s3://lake"


def test_nor_does_opening_the_catalog(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, URI="nonsense://me:hunter2@db/lake")
    with pytest.raises(SettingsError, match="LAKE__URI") as refused:
        load_lake(settings)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("mode", ["refs", "REFS", "some"])
def test_a_catalog_that_would_hide_old_snapshots_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    configure(monkeypatch, TYPE="rest", URI="https://x", WAREHOUSE="lake", SNAPSHOT_LOADING_MODE=mode)
    (problem,) = catalog_problems(settings, {"local": ["shop.orders"]})
    assert f"(snapshot-loading-mode) is '{mode}', expected 'all'" in problem
    assert "remove it" in problem


def test_nor_may_its_server_ask_for_that(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    class Server(Handler):
        def do_GET(self) -> None:
            self.answer(200, b'{"defaults": {}, "overrides": {"snapshot-loading-mode": "refs"}}', {})

    with http_server(Server) as uri:
        configure(monkeypatch, TYPE="rest", URI=uri, WAREHOUSE="lake")
        with pytest.raises(SettingsError, match=r"\(snapshot-loading-mode\) is 'refs', expected 'all'"):
            load_lake(settings)


# a catalog that won't serve


def test_a_busy_catalog_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", waits.append)
    answers: list[object] = [ServiceUnavailableError("busy"), TooManyRequestsError("slower"), "open"]

    def call() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert with_retries(call) == "open"
    assert len(set(waits)) == 2
    assert all(0 <= wait <= 1 for wait in waits)


def test_a_catalog_that_stays_busy_is_given_up_with_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _: None)
    monkeypatch.setattr("lakehouse_assets.environment.catalog.RETRY_SECONDS", 0.05)

    def call() -> None:
        asked.append(1)
        raise ServiceUnavailableError("busy")

    with pytest.raises(CatalogUnavailable, match="'lake' can't be used: ServiceUnavailableError: busy") as failed:
        with_retries(call)
    assert len(asked) > 1
    assert isinstance(failed.value.__cause__, ServiceUnavailableError)


def test_an_error_that_is_not_the_catalogs_is_not_called_so() -> None:
    with pytest.raises(KeyError):
        with_retries(lambda: {}["absent"])


def test_a_catalog_that_refuses_is_asked_once() -> None:
    asked = []

    def call() -> None:
        asked.append(1)
        raise ForbiddenError("ForbiddenException: not yours")

    with pytest.raises(CatalogUnavailable, match="'lake' can't be used: ForbiddenError: ForbiddenException: not yours"):
        with_retries(call)
    assert len(asked) == 1


def test_so_is_glue_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.exceptions import NoCredentialsError

    def call() -> None:
        raise NoCredentialsError

    with pytest.raises(CatalogUnavailable, match="NoCredentialsError: Unable to locate credentials"):
        with_retries(call)


# the embedded catalog under a lock


def test_a_commit_that_a_reader_of_the_file_held_up_is_seen_by_nobody(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite refuses the COMMIT, not the UPDATE before it, and leaves the transaction open."""
    settings.home.mkdir()
    configure(monkeypatch, URI=f"sqlite:///{settings.home}/catalog.db?timeout=0.1")
    lake, rows = load_lake(settings), pa.table({"n": [1]})
    lake.create_namespace("demo")
    table = lake.create_table("demo.numbers", rows.schema)
    with closing(sqlite3.connect(settings.home / "catalog.db")) as reader:
        unfinished = reader.execute("SELECT 1 FROM iceberg_tables UNION ALL SELECT 2 FROM iceberg_tables")
        unfinished.fetchone()
        with pytest.raises(OperationalError, match="locked"):
            table.append(rows)
        assert lake.load_table("demo.numbers").snapshots() == []
        unfinished.close()
    lake.load_table("demo.numbers").append(rows)
    assert len(load_lake(settings).load_table("demo.numbers").snapshots()) == 1


def test_glue_is_not_told_of_the_runs_that_a_tables_own_metadata_knows(tmp_path: Path, monkeypatch) -> None:
    for name, value in {"TYPE": "glue", "GLUE__REGION": "us-east-1", "WAREHOUSE": tmp_path.as_uri()}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    with mock_aws():
        lake = load_lake(read_settings({"LAKEHOUSE_HOME": str(tmp_path)}))
        lake.create_namespace("demo")
        table = lake.create_table("demo.t", Schema())
        run = tokens.token_property(tokens.RunToken("run", datetime.now(UTC)), 1)
        table.transaction().set_properties(run | {"owner": "us"}).commit_transaction()
        parameters = boto3.client("glue", "us-east-1").get_table(DatabaseName="demo", Name="t")["Table"]["Parameters"]
        assert lake.load_table("demo.t").properties.items() >= (run | {"owner": "us"}).items()
        assert parameters["owner"] == "us"
        assert not run.keys() & parameters.keys()


def test_many_may_open_a_new_home_at_once(settings: Settings) -> None:
    """Each one's look for the catalog's tables comes before any of them has created them."""
    opened = threading.Barrier(8)

    def namespaces(_: int) -> list[object]:
        opened.wait()
        return [*load_lake(settings).list_namespaces()]

    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(namespaces, range(8))] == [[]] * 8

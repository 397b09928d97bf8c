"""Secrets planted wherever a user may put one, and then looked for wherever others may look.
What counts as a secret is in tests/unit/environment/test_secret_names.py."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import dagster as dg
import psycopg2
import pytest
from botocore.model import OperationModel
from dagster_pipes import DAGSTER_PIPES_CONTEXT_ENV_VAR, decode_param

from lakehouse_assets.cli.doctor import diagnose
from lakehouse_assets.environment.aws import bucket_and_key
from lakehouse_assets.environment.env_reader import SENSITIVE, is_secret
from lakehouse_assets.environment.settings import Settings, read_settings
from tests.conftest import Lake, failure_text, missing
from tests.support.driven import SITES, tiny_site
from tests.support.fakes.spark_node import s3_of
from tests.support.faults import FaultyLake, Signs, tiny, wait_for
from tests.support.oauth import oauth
from tests.support.postgres import binaries, postgresql
from tests.support.servers import SECRET_KEY, SeaweedFS, free_ports
from tests.support.tables import numbers
from tests.support.twins import twins
from tests.support.watched_steps import FLAG
from tests.unit.environment.test_secret_names import NAMES_OF_OTHERS, NAMES_OF_SECRETS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.server]

PAGES = ("environment/", "SQL/", "jobs/", "stages/", "executors/", "storage/")
DETAILS = ("environment", "sql?details=true&planDescription=true", "jobs", "stages?details=true", "allexecutors")
WATCHED = "tests.support.watched_steps:watched"


def planted(place: str) -> str:
    """A secret that says where it was planted; letters and digits, so that no encoding hides it."""
    return f"planted{place}{uuid4().hex}"


def plant_for_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Secrets in a run's own environment, of its catalog and of its workers' Spark."""
    secrets = {
        "PYICEBERG_CATALOG__LAKE__HEADER__X_API_KEY": planted("Header"),
        "LAKEHOUSE_SPARK__spark__hadoop__fs__s3a__secret__key": planted("S3A"),
        "LAKEHOUSE_SPARK__spark__sql__catalog__other__credential": planted("Other"),
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    return list(secrets.values())


def objects(weed: SeaweedFS, settings: Settings) -> dict[str, str]:
    """All that lies under the staging prefix, by its key."""
    s3, (bucket, prefix) = s3_of(weed), bucket_and_key(settings.staging)
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
    return {key: s3.get_object(Bucket=bucket, Key=key)["Body"].read().decode(errors="replace") for key in keys}


@dataclass
class Watch:
    """What somebody sees who looks over the shoulder of a run."""

    secrets: list[str]
    ui: str
    flag: Path
    seen: dict[str, str] = field(default_factory=dict)

    def look(self) -> None:
        """While the worker waits: every process's arguments, what Pipes handed over, and Spark's UI."""
        wait_for(self.flag.exists, 120)
        try:
            for process in Path("/proc").glob("[0-9]*"):
                self._look_at(process)
            self._look_at_spark()
        finally:
            self.flag.unlink()

    def _look_at(self, process: Path) -> None:
        try:
            self.seen[f"{process}/cmdline"] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            environment = (process / "environ").read_bytes().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            return
        told = dict(pair.partition("=")[::2] for pair in environment)
        parameters = decode_param(told[DAGSTER_PIPES_CONTEXT_ENV_VAR]) if DAGSTER_PIPES_CONTEXT_ENV_VAR in told else {}
        context = ""
        with suppress(KeyError, FileNotFoundError):  # of another test, whose run has removed it
            context = Path(parameters["path"]).read_text()
        if str(self.flag.parent) in context:  # this test's own
            self.seen |= {"Pipes' parameters": json.dumps(parameters), "Pipes' context": context}

    def _look_at_spark(self) -> None:
        (application,) = json.loads(self._get(f"{self.ui}/api/v1/applications"))
        for page in PAGES:
            self._get(f"{self.ui}/{page}")
        for detail in DETAILS:
            self._get(f"{self.ui}/api/v1/applications/{application['id']}/{detail}")
        for execution in re.findall(r"execution/\?id=(\d+)", self.seen[f"{self.ui}/SQL/"]):
            self._get(f"{self.ui}/SQL/execution/?id={execution}")

    def _get(self, url: str) -> str:
        self.seen[url] = urllib.request.urlopen(url, timeout=30).read().decode()
        return self.seen[url]

    def files(self, folder: Path) -> None:
        """Afterwards: all that was written."""
        for file in folder.rglob("*"):
            if file.is_file():
                self.seen[str(file)] = file.read_bytes().decode(errors="replace")

    def found(self) -> str:
        """Where a secret is to be seen, with what stands before it, a line each."""
        hits = (
            (place, text.find(secret), secret, text) for place, text in self.seen.items() for secret in self.secrets
        )
        return "\n".join(f"{place}: …{text[max(0, at - 60) : at + 20]!r}" for place, at, _, text in hits if at >= 0)


@pytest.fixture
def plant(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[dict[str, str]], Watch]:
    """Sets a catalog's properties as variables, and secrets and Spark's UI beside them."""

    def plant(properties: dict[str, str], *secrets: str) -> Watch:
        (port,) = free_ports(1)
        of_s3a, of_other = planted("S3A"), planted("Other")
        for name, value in properties.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.upper().replace('.', '__').replace('-', '_')}", value)
        (tmp_path / "events").mkdir()
        spark = {
            "spark.ui.enabled": "true",
            "spark.ui.port": str(port),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": (tmp_path / "events").as_uri(),
            "spark.hadoop.fs.s3a.secret.key": of_s3a,
            "spark.sql.catalog.other": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.other.credential": f"id:{of_other}",
        }
        for name, value in spark.items():
            monkeypatch.setenv(f"LAKEHOUSE_SPARK__{name.replace('.', '__')}", value)
        return Watch([of_s3a, of_other, *secrets], f"http://127.0.0.1:{port}", settings.home / "landing/secrets" / FLAG)

    return plant


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance that keeps what runs print, as users' instances do: secrets are looked for there, too."""
    (folder := tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(folder)) as instance:
        yield instance


def run_watched(instance: dg.DagsterInstance, watch: Watch, tmp_path: Path):
    """Materialize with somebody looking on; then look at all that is left of it."""
    table = replace(
        numbers(identifier=f"secrets.numbers_{uuid4().hex[:8]}"), step="tests.support.watched_steps:watched"
    )
    with ThreadPoolExecutor(1) as pool:
        looked = pool.submit(watch.look)
        result = Lake(read_settings(), instance).run(table, "2024-01-01")
        looked.result()
    watch.seen["events"] = "\n".join(str(event) for event in result.all_events)
    watch.files(tmp_path)
    return result


@pytest.fixture(scope="module")
def database() -> Iterator[tuple[str, str]]:
    """A PostgreSQL that wants a password: its URI without it, and the password."""
    if binaries() is None:
        missing("PostgreSQL is not installed")
    password = planted("Database")
    with postgresql() as server:
        connection = psycopg2.connect(host=server.host, port=server.port, user=server.user, dbname=server.database)
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE ROLE app LOGIN PASSWORD '{password}'")
            cursor.execute("CREATE DATABASE app OWNER app")
            cursor.execute("SHOW hba_file")
            (rules,) = cursor.fetchone()
            # Only app has to say its password.
            cursor.execute(
                "COPY (VALUES ('host all app 127.0.0.1/32 scram-sha-256'), ('host all all 127.0.0.1/32 trust')) "
                f"TO '{rules}'"
            )
            cursor.execute("SELECT pg_reload_conf()")
        connection.close()
        yield f"{server.host}:{server.port}/app", password


@pytest.mark.long("A run of real workers on PostgreSQL; what hides the password is the same for all catalogs.")
def test_a_run_on_a_database_with_a_password(
    plant, instance: dg.DagsterInstance, database: tuple[str, str], tmp_path: Path
) -> None:
    at, password = database
    of_s3 = planted("S3")
    told = {"uri": f"postgresql://app:{password}@{at}", "s3.access-key-id": "somebody", "s3.secret-access-key": of_s3}
    watch = plant(told, password, of_s3)

    result = run_watched(instance, watch, tmp_path)

    assert result.success, failure_text(result)
    assert {"Pipes' context", f"{watch.ui}/environment/"} <= watch.seen.keys()
    assert sum("SQL/execution" in place for place in watch.seen) >= 2
    for written in ("events/", ".err", "/staging/", "00000-fork", ".db"):
        assert any(written in place for place in watch.seen), written
    assert watch.found() == ""


@pytest.mark.long("Runs of real workers against an OAuth2 server; test_catalogs.py has one such run.")
def test_a_run_by_oauth2_and_one_whose_client_is_locked_out(
    plant, instance: dg.DagsterInstance, weed: SeaweedFS, tmp_path: Path
) -> None:
    client, header = planted("Client"), planted("Header")
    with oauth(weed.catalog_uri, client_secret=client, seconds=3) as authority:
        keys = weed.s3_properties()
        told = {**authority.properties(), **keys, "warehouse": weed.warehouse, "header.x-api-key": header}
        watch = plant(told, client, header, keys["s3.secret-access-key"])
        result = run_watched(instance, watch, tmp_path)
        watch.secrets += list(authority.good_until)
        assert result.success, failure_text(result)
        assert watch.found() == ""

        look = watch.look

        def look_and_lock_out() -> None:
            wait_for(watch.flag.exists, 120)
            authority.client_secret = "another"
            authority.good_until.clear()
            look()

        watch.look = look_and_lock_out  # type: ignore[method-assign]
        failed = run_watched(instance, watch, tmp_path)
    assert not failed.success
    assert watch.found() == ""


def test_a_wrong_password_is_not_told(
    plant, instance: dg.DagsterInstance, database: tuple[str, str], tmp_path: Path
) -> None:
    wrong = planted("Wrong")
    watch = plant({"uri": f"postgresql://app:{wrong}@{database[0]}"}, wrong)
    result = Lake(read_settings(), instance).run(numbers(), "2024-01-01")
    assert not result.success
    assert "password authentication failed" in failure_text(result)
    watch.seen["events"] = "\n".join(str(event) for event in result.all_events)
    watch.files(tmp_path)
    assert watch.found() == ""


def test_a_password_that_is_not_percent_encoded_is_told_neither_whole_nor_in_part(
    plant,
    instance: dg.DagsterInstance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """psycopg2 takes what follows the first @ for the host, and quotes it."""
    monkeypatch.setattr("lakehouse_assets.environment.catalog.RETRY_SECONDS", 0)
    first, second, of_dagster = planted("First"), planted("Second"), planted("Dagster")
    watch = plant({"uri": f"postgresql://app:{first}@{second}@127.0.0.1:9/app"}, first, second, of_dagster)
    monkeypatch.setenv("DAGSTER_POSTGRES_HOST", f"{of_dagster}.invalid")
    monkeypatch.setenv("DAGSTER_POSTGRES_PASSWORD", of_dagster)
    settings = read_settings()

    result = Lake(settings, instance).run(numbers(), "2024-01-01")
    assert diagnose(settings, ["demo.numbers"]) == 1

    assert not result.success
    watch.seen["doctor"] = "\n".join(capsys.readouterr())
    watch.seen["events"] = "\n".join(str(event) for event in result.all_events)
    watch.files(tmp_path)
    assert "could not translate host name" in watch.seen["events"]
    assert "127.0.0.1:9" in watch.seen["doctor"]
    assert watch.found() == ""


def test_a_secret_that_spark_would_show_is_refused(
    plant, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = planted("Options")
    watch = plant({}, options)
    monkeypatch.setenv(
        "LAKEHOUSE_SPARK__spark__driver__extraJavaOptions", f"-Djavax.net.ssl.keyStorePassword={options}"
    )
    result = Lake(read_settings(), instance).run(numbers(), "2024-01-01")
    assert not result.success
    assert "spark.driver.extraJavaOptions would show in process arguments" in failure_text(result)
    watch.seen["events"] = "\n".join(str(event) for event in result.all_events)
    watch.files(tmp_path)
    assert watch.found() == ""


@pytest.mark.parametrize("compute", twins(SITES, "What a worker is told is made in one place for all launchers."))
def test_workers_elsewhere_and_their_services_are_told_no_secret(
    compute: str,
    weed: SeaweedFS,
    tmp_path: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By tiny workers, one that stages and one that fails; what real ones log is test_launchers.py's to look at."""
    secrets = plant_for_runs(monkeypatch)
    days = ("2024-01-01", "2024-01-02")
    seen: dict[str, str] = {}
    with tiny_site(compute, weed, tmp_path) as site:
        answer = site.service.answer

        def heard(operation: OperationModel, parameters: dict[str, Any]) -> dict[str, Any]:
            seen[f"{operation.name} {len(seen)}"] = json.dumps(parameters, default=str)
            return answer(operation, parameters)

        monkeypatch.setattr(site.service, "answer", heard)
        lake = FaultyLake(read_settings(), instance)
        lake.settings.home.mkdir(parents=True)
        signs = Signs(lake)
        signs.hold(*days)
        signs.fail(days[1])

        def look() -> None:
            try:
                wait_for(lambda: len(signs.started()) == len(days))
                seen.update(objects(weed, lake.settings))
            finally:
                (lake.settings.home / "hold").unlink()

        with ThreadPoolExecutor(1) as pool:
            looked = pool.submit(look)
            result = lake.run(tiny(), *days)
            looked.result()
        seen.update(objects(weed, lake.settings))
        seen.update({f"log of {key}": process.log.read_text() for key, process in site.workers() if process})
    seen["events"] = "\n".join(str(event) for event in result.all_events)
    assert not result.success
    assert "KeyError" in failure_text(result)
    for place in (site.asks, "/context.json", "/messages/1.json", "demo.numbers", "log of "):
        assert any(place in name for name in seen), place
    assert Watch([*secrets, SECRET_KEY], "", Path(), seen).found() == ""


def test_java_takes_the_same_names_for_secrets(jvm: SparkSession) -> None:
    names = [*NAMES_OF_SECRETS, *NAMES_OF_OTHERS]
    pattern = jvm._jvm.java.util.regex.Pattern.compile(SENSITIVE)  # as Spark reads spark.redaction.regex
    assert [n for n in names if pattern.matcher(n).find()] == [n for n in names if is_secret(n, "")]

"""What the roles ask of S3 Tables where the lake's tables are there, recorded in deploy/proof/s3tables.json.
SeaweedFS stands for it, with a key for each role: it speaks the same protocols, and asks no policies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import boto3
import dagster as dg
import pytest
from pyiceberg.manifest import DataFile

from lakehouse_assets import code_location
from lakehouse_assets.commit.staged import missing_files
from lakehouse_assets.declare.options import Level
from lakehouse_assets.domains.nyc import tables
from lakehouse_assets.domains.nyc.domain import DOMAIN as NYC
from lakehouse_assets.domains.nyc.landing import deliver, into_bucket
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.storage import objects
from resources.reports import reports_at_home
from tests.conftest import Lake, failure_text
from tests.support.fakes.ecs import EcsSite, ecs_site
from tests.support.proxy import proxy
from tests.support.recorded_calls import Recorder, assert_recorded
from tests.support.servers import ACCESS_KEY, BUCKET, SECRET_KEY, SeaweedFS, seaweedfs

pytestmark = [
    pytest.mark.server,
    pytest.mark.spark,
    pytest.mark.long("Fills and maintains a table as each role; test_role_policies.py holds what was recorded."),
]

FLIGHTS = tables.flights
DAYS = ("2013-03-09", "2013-03-10")


@dataclass
class Site:
    """A table bucket, and ECS whose tasks have the worker's key."""

    weed: SeaweedFS
    ecs: EcsSite
    recorder: Recorder
    keys: dict[str, dict[str, str]] = field(default_factory=dict)
    """The keys of each role that has acted."""

    @contextmanager
    def acting(self, role: str, home: Path) -> Iterator[Lakehouse]:
        """This process has a key of the role."""
        if role not in self.keys:
            self.keys[role] = self.weed.keys(role)
        keys = self.keys[role]
        self.recorder.roles[keys["s3.access-key-id"]] = (role,)
        named = {n: keys[f"s3.{kind}"] for n, kind in KEYS.items()}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(boto3, "DEFAULT_SESSION", None)
            objects._client.cache_clear()
            for name, value in {**self.ecs.environment, **named, "LAKEHOUSE_HOME": str(home)}.items():
                patch.setenv(name, value)
            yield Lakehouse(read_settings())


def lists_tables(method: str, path: str) -> bool:
    """S3 Tables has no such operation.

    https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-tables-setting-up.html
    """
    return path.startswith(f"/{BUCKET}?")


KEYS = {
    f"{prefix}{name}": kind
    for prefix in ("AWS_", "PYICEBERG_CATALOG__LAKE__S3__", "PYICEBERG_CATALOG__LAKE__CLIENT__")
    for name, kind in (("ACCESS_KEY_ID", "access-key-id"), ("SECRET_ACCESS_KEY", "secret-access-key"))
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    recorder = Recorder({ACCESS_KEY: ("worker",)})
    with (
        seaweedfs() as weed,
        proxy(weed.catalog_uri, heard=recorder.hear) as rest,
        proxy(weed.s3_endpoint, heard=recorder.hear, refuses=lists_tables) as s3,
    ):
        behind = replace(weed, catalog_uri=rest.uri, s3_endpoint=s3.uri)
        with ecs_site(behind, tmp_path_factory.mktemp("ecs")) as ecs:
            yield Site(weed, ecs, recorder)


def location() -> dg.Definitions:
    return code_location(NYC, resources={"reports": reports_at_home()})


def test_partitions_are_filled(site: Site, tmp_path: Path, instance: dg.DagsterInstance) -> None:
    s3 = boto3.Session(ACCESS_KEY, SECRET_KEY).client("s3", endpoint_url=site.weed.s3_endpoint)
    put = into_bucket(s3, f"{site.ecs.environment['LAKEHOUSE_LANDING']}/nyc")
    deliver(lambda name, content: any(day in name for day in DAYS) and put(name, content))
    with site.acting("run", tmp_path):
        for day in DAYS:
            result = Lake(read_settings(), instance).run(FLIGHTS, day)
            assert result.success, failure_text(result)


def test_staged_files_that_aws_has_removed_are_found_out(site: Site, tmp_path: Path) -> None:
    with site.acting("run", tmp_path):
        table = load_lake(read_settings()).load_table(FLIGHTS.identifier)
        there = [task.file for task in table.scan().plan_files()]
        gone = DataFile.from_args(file_path=f"{table.location()}/data/gone.parquet")
        assert missing_files(table.io, [*there, gone]) == [gone.file_path]


def test_sensors_look_at_the_tables(site: Site, tmp_path: Path, instance: dg.DagsterInstance) -> None:
    with site.acting("code", tmp_path) as lakehouse:
        defs = location()
        for name in ("lakehouse_health", "lakehouse_maintenance_due"):
            context = dg.build_sensor_context(instance, definitions=defs, resources={"lakehouse": lakehouse})
            assert defs.resolve_sensor_def(name).evaluate_tick(context).cursor


def test_a_table_is_maintained(site: Site, tmp_path: Path, instance: dg.DagsterInstance) -> None:
    with site.acting("maintenance", tmp_path):
        # Of these only manifests are left to us there; all of them ask for the same.
        levels = [level.value for level in Level if level is not Level.COLLECT]
        config = {"dry_run": False, "force": True, "patient": False, "levels": levels}
        job = location().resolve_job_def("lakehouse_maintenance")
        before = load_lake(read_settings()).load_table(FLIGHTS.identifier).metadata_location
        assert job.execute_in_process({**config, "tables": [FLIGHTS.identifier]}, instance=instance).success
        assert load_lake(read_settings()).load_table(FLIGHTS.identifier).metadata_location != before


def test_the_calls_are_those_that_the_policies_are_proved_by(site: Site) -> None:
    """Behind all others of this file: what they asked of S3 Tables."""
    assert_recorded("s3tables.json", (call for call in site.recorder.calls if call.action.startswith("s3tables:")))

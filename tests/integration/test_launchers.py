"""One contract, every launcher: real flights for several partitions come out row for row as the local launcher's.
What each service's answers mean, and what happens when it fails, is in test_ecs.py and test_emr.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from lakehouse_assets.declare.table import Table
from lakehouse_assets.domains.nyc import tables
from lakehouse_assets.domains.nyc.landing import deliver, into_bucket
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.run.resource import Lakehouse
from tests.conftest import Lake, failure_text
from tests.support.driven import SITES
from tests.support.servers import SECRET_KEY, SeaweedFS

pytestmark = [pytest.mark.spark, pytest.mark.server]

DAYS = ("2013-03-09", "2013-03-10", "2013-03-11")
FLIGHTS = replace(tables.flights, partitions_per_worker=2)
LANDING = "landing"


@pytest.fixture(scope="module")
def delivered(weed: SeaweedFS) -> str:
    """The drop zone, with the days that are needed."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in weed.environment().items():
            patch.setenv(name, value)
        place = f"{weed.plain}/{LANDING}"
        put = into_bucket(Lakehouse(read_settings()).s3(), f"{place}/nyc")
        wanted = (*DAYS, "2013-03-12", "dimensions")
        deliver(lambda name, content: any(part in name for part in wanted) and put(name, content))
    return place


# Of the runs' own environment: no worker is told them.
PLANTED = {
    "PYICEBERG_CATALOG__LAKE__HEADER__X_API_KEY": "plantedHeader0a1b2c",
    "LAKEHOUSE_SPARK__spark__sql__catalog__other__credential": "id:plantedOther3d4e5f",
}


@contextmanager
def lake_on(compute: str, weed: SeaweedFS, folder: Path, landing: str, instance: dg.DagsterInstance) -> Iterator[Lake]:
    site = SITES[compute](weed, folder / "site") if compute in SITES else nullcontext()
    with site as running, pytest.MonkeyPatch.context() as patch:
        told = running.environment if running else weed.environment() | {"LAKEHOUSE_STAGING": f"{weed.plain}/staging"}
        patch.setenv("LAKEHOUSE_COMPUTE", compute)
        home = {"LAKEHOUSE_LANDING": landing, "LAKEHOUSE_HOME": str(folder / "home")}
        for name, value in (told | home | PLANTED).items():
            patch.setenv(name, value)
        yield Lake(read_settings(), instance)


def rows(lake: Lake, table: Table) -> pa.Table:
    found = lake.rows(table)
    return found.sort_by([(name, "ascending") for name in found.column_names])


def assert_no_secret_is_written(folder: Path) -> None:
    """Neither by the run and Dagster nor, in their logs, by the workers, which do need S3's."""
    written = {file: file.read_bytes().decode(errors="replace") for file in folder.rglob("*") if file.is_file()}
    logs = [file for file in written if file.name == "stderr" or file.suffix == ".log"]
    assert len(logs) >= 2
    found = [file for file, text in written.items() if any(secret in text for secret in PLANTED.values())]
    assert found + [file for file in logs if SECRET_KEY in written[file]] == []


def run(lake: Lake, table: Table, *span: str) -> dg.ExecuteInProcessResult:
    result = lake.run(table, *span)
    assert result.success, failure_text(result)
    return result


@pytest.fixture(scope="module")
def by_local(
    weed: SeaweedFS, delivered: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, pa.Table]]:
    """What local workers make of it, by table; and the tables that the others only read."""
    folder = tmp_path_factory.mktemp("local")
    (folder / "dagster").mkdir()
    with (
        dg.DagsterInstance.local_temp(str(folder / "dagster")) as instance,
        lake_on("local", weed, folder, delivered, instance) as lake,
    ):
        with lake_on("inline", weed, folder, delivered, instance) as inline:  # one JVM
            for table in (tables.airlines, tables.airports, tables.planes):
                run(inline, table)
            run(inline, tables.weather, DAYS[0], "2013-03-12")
        run(lake, FLIGHTS, DAYS[0], DAYS[-1])
        run(lake, tables.flights_enriched, DAYS[0], DAYS[-1])
        yield {t.identifier: rows(lake, t) for t in (FLIGHTS, tables.flights_enriched)}


@pytest.mark.long("Each launcher runs the same days of flights; test_ecs.py and test_emr.py run one real worker each.")
@pytest.mark.parametrize("compute", SITES)
def test_flights_come_out_row_for_row_as_the_local_launcher_s(
    compute: str,
    by_local: dict[str, pa.Table],
    weed: SeaweedFS,
    delivered: str,
    tmp_path: Path,
    instance: dg.DagsterInstance,
) -> None:
    with lake_on(compute, weed, tmp_path, delivered, instance) as lake:
        before = lake.snapshots(FLIGHTS)
        (first, *_) = run(lake, FLIGHTS, DAYS[0], DAYS[-1]).get_asset_materialization_events()
        run(lake, tables.flights_enriched, DAYS[0], DAYS[-1])
        assert lake.snapshots(FLIGHTS) == before + 1
        for table in (FLIGHTS, tables.flights_enriched):
            assert rows(lake, table) == by_local[table.identifier]
    assert_no_secret_is_written(tmp_path)
    told = first.materialization.metadata
    assert told["workers"].value == 2
    assert "https://" in told["worker"].value
    assert told["vcpu_hours"].value > 0
    assert told["gib_hours"].value > 0
    assert told["usage_source"].value
    assert told["estimated_usd"].value > 0

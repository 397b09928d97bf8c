"""The core of what workers do, on the versions of Spark and Iceberg that EMR brings (tests/versions), against the
project's own. The orchestrator is the same; all the rest of what workers do is tested on the project's own only."""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import dagster as dg
import pyarrow as pa
import pytest
from psycopg2.extensions import connection as Connection
from pyiceberg.table import StaticTable

from lakehouse_assets.declare.modes import Append, Merge, Rewrites
from lakehouse_assets.declare.table import Table
from lakehouse_assets.domains.nyc import tables
from lakehouse_assets.domains.nyc.landing import deliver, into_folder
from lakehouse_assets.environment.launchers.local import LocalLauncher
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.run.asset import table_asset
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.wire.receipts import Receipt
from tests.conftest import ROOT, Lake, failure_text, missing
from tests.support import merges
from tests.support.faults import span
from tests.support.hot_tables import UPSERT, events_table, state_table
from tests.support.merges import PLAIN, found, give, merged, row
from tests.support.tables import numbers
from tests.support.topics import Topic
from tests.versions import COMBINATIONS, Combination
from tests.versions.launcher import cold, warm

pytestmark = [pytest.mark.spark, pytest.mark.long("Repeats on EMR's versions of Spark and Iceberg.")]

# Those that live short compile little; Derby writes no derby.log into the checkout.
JAVA = "-XX:TieredStopAtLevel=1 -Dderby.stream.error.file=/dev/null"

# The night of 10 March has an hour less. The monthly table is computed of these two days.
NYC = (
    (tables.airlines, None, None),
    (tables.airports, None, None),
    (tables.planes, None, None),
    (tables.weather, "2013-03-09", "2013-03-11"),
    (tables.flights, "2013-03-09", "2013-03-10"),
    (tables.flights_enriched, "2013-03-09", "2013-03-10"),
    (replace(tables.route_delays_monthly, deps=[tables.flights.key]), "2013-03-01", "2013-03-01"),
)


@dataclass
class LakeOf(Lake):
    """As Lake, with other workers."""

    workers: LocalLauncher

    def run(self, table, first=None, last=None, *, tags=None) -> dg.ExecuteInProcessResult:
        lakehouse = Lakehouse(self.settings)
        lakehouse.launcher = lambda compute=None: self.workers
        return dg.materialize(
            [table_asset(table, EXTENSIONS)],
            instance=self.instance,
            resources={"lakehouse": lakehouse},
            tags={**(span([first, last or first]) if first else {}), **(tags or {})},
            raise_on_error=False,
        )

    def sorted(self, table: Table) -> pa.Table:
        return self.rows(table).sort_by([(column.name, "ascending") for column in table.columns])


@contextmanager
def _lake(workers: LocalLauncher, folder: Path) -> Iterator[LakeOf]:
    (folder / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(folder / "dagster")) as instance:
        yield LakeOf(read_settings({**os.environ, "LAKEHOUSE_HOME": str(folder / "home")}), instance, workers)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A drop zone of the year, and the settings of all workers."""
    landing = tmp_path_factory.mktemp("landing")
    deliver(into_folder(landing / "nyc"))
    variables = {
        "PYTHONPATH": str(ROOT),
        "LAKEHOUSE_HOME": str(tmp_path_factory.mktemp("scratch")),
        "LAKEHOUSE_LANDING": str(landing),
        "LAKEHOUSE_SPARK__spark__driver__extraJavaOptions": JAVA,
        "LAKEHOUSE_SPARK__spark__driver__memory": "1g",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PYICEBERG_CATALOG__")]:
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def own(quick: None) -> Iterator[LocalLauncher]:
    """Workers on the project's own Spark and Iceberg."""
    with warm(Path(sys.executable), read_settings().cache) as workers:
        yield workers


@pytest.fixture(scope="module")
def expected(own: LocalLauncher, tmp_path_factory: pytest.TempPathFactory) -> dict[str, pa.Table]:
    """The rows of nyc as the project's own workers write them, by table."""
    with _lake(own, tmp_path_factory.mktemp("own")) as lake:
        for table, first, last in NYC:
            assert lake.run(table, first, last).success
        return {table.identifier: lake.sorted(table) for table, *_ in NYC}


@pytest.fixture(scope="module", params=COMBINATIONS, ids=str)
def combination(request: pytest.FixtureRequest) -> Combination:
    if not request.param.built:
        missing(f"no environment for {request.param}: `make test-versions` builds it, in minutes")
    return request.param


@pytest.fixture(scope="module")
def lake(combination: Combination, quick: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeOf]:
    """A home whose workers all run in the combination's environment."""
    with (
        warm(combination.interpreter, combination.folder) as workers,
        _lake(workers, tmp_path_factory.mktemp("other")) as lake,
    ):
        yield lake


def test_a_range_lands_as_one_commit_and_a_rerun_changes_nothing(combination: Combination, lake: LakeOf) -> None:
    table = numbers(identifier="demo.range")
    in_a_process = replace(lake, workers=cold(combination.interpreter, combination.folder))
    result = in_a_process.run(table, "2024-01-01", "2024-01-04")
    assert result.success, failure_text(result)
    first = lake.sorted(table)
    assert first.num_rows == 12
    assert lake.snapshots(table) == 1
    assert lake.run(table, "2024-01-01", "2024-01-04").success
    assert lake.sorted(table) == first
    assert lake.table(table).inspect.files().num_rows == 4
    assert [s.summary.operation.value for s in lake.table(table).snapshots()][1:] == ["overwrite"]


@pytest.mark.parametrize("compute", ["local", "emr"])
def test_it_was_this_spark_and_this_iceberg(combination: Combination, lake: LakeOf, compute: str) -> None:
    """On EMR the stage is kept in the Derby that Spark brings; here in a JVM that runs already, as there."""
    table = numbers(identifier=f"demo.on_{compute}")
    result = replace(lake, settings=replace(lake.settings, compute=compute)).run(table, "2024-01-01")
    assert result.success, failure_text(result)
    receipt = lake.settings.home / "staging" / table.identifier / result.run_id / "00000.json"
    fork = StaticTable.from_metadata(Receipt.from_json(receipt.read_text()).metadata_location)
    told = fork.current_snapshot().summary.additional_properties
    assert told["engine-version"] == combination.pyspark
    assert told["iceberg-version"].startswith(f"Apache Iceberg {combination.iceberg} ")


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("tests.support.steps:raising", ["KeyError: 'carrier'", 'return {}["carrier"]']),
        ("tests.support.steps:raising_in_java", ["no such n"]),
        ("tests.support.fault_steps:without_n", ["missing n, unknown none"]),
        ("tests.support.fault_steps:retyped", ["`n`", "STRING", "BIGINT"]),
        ("tests.support.steps:other_days", ["1 row", "2024-02-29"]),
        ("tests.support.steps:nulls", ["n is null", "2024-01-01"]),
        ("tests.support.steps:doubles", ["n=0: 2 rows"]),
    ],
)
def test_a_faulty_step_is_told_and_nothing_is_published(lake: LakeOf, step: str, says: list[str]) -> None:
    table = replace(numbers(identifier="demo.faulty"), step=step)
    result = lake.run(table, "2024-01-01", "2024-01-02")
    told = "\n".join([failure_text(result), *(str(check) for check in result.get_asset_check_evaluations())])
    assert not result.success, told
    assert all(word in told for word in says), told
    assert not any(word in told for word in ("\tat ", "fork_")), told
    assert lake.snapshots(table) == 0


def test_a_faulty_delivery_is_told(lake: LakeOf, tmp_path: Path) -> None:
    table = replace(tables.flights, identifier="demo.flights")
    there = replace(lake, settings=replace(lake.settings, landing=str(tmp_path)))
    assert f"no folder {tmp_path}/demo/flights" in failure_text(there.run(table, "2013-03-09"))

    day = tmp_path / "demo/flights/2013-03-09.csv.gz"
    delivered = Path(lake.settings.landing, "nyc/flights/2013-03-09.csv.gz")
    day.parent.mkdir(parents=True)
    day.write_bytes(delivered.read_bytes())
    assert "2013-03-10 is missing" in failure_text(there.run(table, "2013-03-09", "2013-03-10"))

    header, first, *others = gzip.decompress(delivered.read_bytes()).splitlines()
    for column, value, type_ in (("dep_time", "05:17", "int"), ("time_hour", "2013-3-9T10:00:00Z", "timestamp")):
        cells = dict(zip(header.decode().split(","), first.decode().split(","), strict=True)) | {column: value}
        day.write_bytes(gzip.compress(b"\n".join([header, ",".join(cells.values()).encode(), *others])))
        told = failure_text(there.run(table, "2013-03-09"))
        assert f"column {column}: '{value}' is no {type_}" in told
        assert day.name in told


@pytest.mark.parametrize("rewrites", Rewrites)
@pytest.mark.parametrize("partitioned_by", ["day", "bucket(4, id)"], ids=["days", "buckets"])
def test_changes_are_merged_and_counted(lake: LakeOf, rewrites: Rewrites, partitioned_by: str) -> None:
    mode = Merge(["id"], delete_when="op = 'D'", order_by="at", rewrites=rewrites)
    table = merges.table(mode, identifier=f"demo.rows_{uuid4().hex[:8]}", partitioned_by=[partitioned_by])
    steps = of_the_workers(lake)
    give(steps, *(row(id, 0) for id in range(10)))
    result = lake.run(table)
    assert result.success, failure_text(result)
    give(steps, row(1, 1), row(2, 2, op="D"), row(3, 3, day="2024-01-02"), row(4, 0), row(11, 11), row(12, 12, op="D"))
    result = lake.run(table)
    assert result.success, failure_text(result)
    expected = {id: ("2024-01-01", 0) for id in range(10) if id != 2}
    assert found(lake, table) == expected | {1: ("2024-01-01", 1), 3: ("2024-01-02", 3), 11: ("2024-01-01", 11)}
    assert merged(result) == {"changes": 6, "left_out": 0, "matched": 4, "inserted": 1, "updated": 2, "deleted": 1}
    assert lake.snapshots(table) == 2


def test_an_append_leaves_out_what_is_there(lake: LakeOf) -> None:
    table = merges.table(Append(dedup_on=["id"]), identifier=f"demo.rows_{uuid4().hex[:8]}")
    for ids in ((1, 2), (2, 3, 4, 4)):
        give(of_the_workers(lake), *(row(id, len(ids)) for id in ids), columns=PLAIN)
        result = lake.run(table)
        assert result.success, failure_text(result)
    assert {id: n for id, (_, n) in found(lake, table).items()} == {1: 2, 2: 2, 3: 4, 4: 4}
    assert merged(result) == {"changes": 4, "left_out": 1, "matched": 1, "inserted": 2, "updated": 0, "deleted": 0}
    assert lake.rows(table).num_rows == 4


def of_the_workers(lake: LakeOf) -> LakeOf:
    """The lake with the workers' own home, in which their steps look for rows."""
    return replace(lake, settings=replace(lake.settings, home=Path(os.environ["LAKEHOUSE_HOME"])))


def test_nyc_is_row_for_row_what_the_projects_own_spark_writes(lake: LakeOf, expected: dict[str, pa.Table]) -> None:
    for table, first, last in NYC:
        result = lake.run(table, first, last)
        assert result.success, failure_text(result)
        assert lake.sorted(table) == expected[table.identifier]


def test_the_projects_own_spark_reads_it_and_both_write_the_same_table(
    lake: LakeOf, own: LocalLauncher, expected: dict[str, pa.Table]
) -> None:
    table = tables.flights_enriched
    for workers, day in ((own, "2013-03-09"), (lake.workers, "2013-03-10"), (own, "2013-03-10")):
        result = replace(lake, workers=workers).run(table, day)
        assert result.success, failure_text(result)
        assert lake.sorted(table) == expected[table.identifier]


@pytest.mark.server
def test_rows_of_sources_are_moved(combination: Combination, lake: LakeOf, database: Connection, topic: Topic) -> None:
    in_a_process = replace(lake, workers=cold(combination.interpreter, combination.folder))
    topic.send(range(3))
    with database.cursor() as cursor:
        cursor.executemany(UPSERT, [(n, str(n), n == 1) for n in range(3)])
    for table in (events_table(), state_table()):
        result = in_a_process.run(table)
        assert result.success, failure_text(result)
    assert lake.sorted(events_table())["n"].to_pylist() == [0, 1, 2]
    assert lake.sorted(state_table())["n"].to_pylist() == [0, 2]

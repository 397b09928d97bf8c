"""A second domain, added as the README says on a copy of the code location: by a folder of four files, and one word."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from resources.catalog import load_lake
from resources.settings import Settings
from tests.conftest import ROOT

FILES = {
    "__init__.py": "",
    "domain.py": '''"""The domain trade as one object."""

from lakehouse_assets.declare.location import tables_of
from lakehouse_assets.domains.trade import tables
from lakehouse_assets.run.domain import Domain

DOMAIN = Domain(name="trade", tables=tables_of(tables))
''',
    "tables.py": '''"""The declarations of the tables of trade."""

import dagster as dg

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.table import Table

orders = Table(
    identifier="trade.orders",
    columns=[
        column("number", "int", "Order number", required=True),
        column("ordered_at", "timestamptz", "When it was ordered", required=True),
    ],
    step="lakehouse_assets.domains.trade.steps:orders",
    partitions=dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01"),
    partitioned_by=["day(ordered_at)"],
    unique=["number"],
)
''',
    "steps.py": '''"""The steps of trade."""

from pyspark.sql import DataFrame, SparkSession

from lakehouse_assets.step.dropzone import read_csv
from lakehouse_assets.step.window import Window


def orders(spark: SparkSession, window: Window) -> DataFrame:
    """The orders of the window's days, from LAKEHOUSE_LANDING's trade/orders/<day>.csv.gz."""
    return read_csv(spark, f"{window.landing}/orders", window.keys, {"number": "int", "ordered_at": "timestamp"})
''',
}
ORDERED = """

from lakehouse_assets.run.updated import when_updated  # noqa: E402

latest = Table(
    identifier="trade.latest",
    columns=orders.columns,
    step=orders.step,
    deps=[orders.key],
    automation=when_updated(orders.key),
)
"""
DESCRIBE = """
import json
from lakehouse_assets.definitions import defs
graph = defs.resolve_asset_graph()
texts = lambda keys: sorted(key.to_user_string() for key in keys)
sensors = {s.name: texts(s.asset_selection.resolve(graph)) for s in defs.get_repository_def().sensor_defs}
print(json.dumps({"assets": texts(graph.get_all_asset_keys()), "sensors": sensors}))
"""
MATERIALIZE = """
import dagster as dg
from lakehouse_assets.definitions import defs
job = defs.resolve_implicit_global_asset_job_def().get_subset(asset_selection={dg.AssetKey(["trade", "orders"])})
with dg.DagsterInstance.ephemeral() as instance:
    assert job.execute_in_process(instance=instance, tags={"dagster/partition": "2024-01-02"}).success
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the code location with the domain."""
    package = tmp_path / "checkout" / "lakehouse_assets"
    shutil.copytree(ROOT / "lakehouse_assets", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "domains" / "trade").mkdir()
    for name, text in FILES.items():
        (package / "domains" / "trade" / name).write_text(text)
    definitions = (package / "definitions.py").read_text()
    assert 'DOMAINS = ("nyc",)\n' in definitions
    (package / "definitions.py").write_text(definitions.replace('DOMAINS = ("nyc",)', 'DOMAINS = ("nyc", "trade")'))
    return package.parent


def python(checkout: Path, program: str) -> str:
    path = f"{checkout}{os.pathsep}{ROOT}"
    environment = {**os.environ, "PYTHONPATH": path, "LAKEHOUSE_COMPUTE": "inline"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_its_tables_are_in_the_location_and_each_sensor_has_its_own_domains_assets(
    settings: Settings, checkout: Path
) -> None:
    without = json.loads(python(ROOT, DESCRIBE))
    added = json.loads(python(checkout, DESCRIBE))
    assert added["assets"] == [*without["assets"], "trade/orders"]
    assert added["sensors"] == without["sensors"]  # nothing of trade has a condition yet
    with (checkout / "lakehouse_assets/domains/trade/tables.py").open("a") as tables:
        tables.write(ORDERED)
    automated = json.loads(python(checkout, DESCRIBE))["sensors"]
    assert automated == {**without["sensors"], "trade_automation": ["trade/latest", "trade/orders"]}


@pytest.mark.spark
def test_its_step_reads_its_own_part_of_the_drop_zone(settings: Settings, checkout: Path) -> None:
    file = Path(settings.landing, "trade/orders/2024-01-02.csv.gz")
    file.parent.mkdir(parents=True)
    file.write_bytes(gzip.compress(b"number,ordered_at\n1,2024-01-02T10:00:00Z\n2,2024-01-02T11:00:00Z\n"))
    python(checkout, MATERIALIZE)
    assert load_lake(settings).load_table("trade.orders").scan().to_arrow()["number"].to_pylist() == [1, 2]

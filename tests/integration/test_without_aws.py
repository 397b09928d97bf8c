"""The local environment where nothing is installed but what the wheel requires: a table is filled and maintained.
Also of the workers, whose processes inherit the lack. The real installation is test_installed.py's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import read_settings
from tests.support.base_install import importable, site_customization

ROOT = Path(__file__).parents[2]
# The only modules that need an extra: each is imported by who has chosen AWS.
OF_AWS = {"lakehouse_assets.maintenance.collect.s3_bins"} | {
    f"lakehouse_assets.extensions.aws.{name}"
    for name in ("aws_launcher", "ecs", "emr", "emr_eks", "emr_serverless", "job_runs")
}


def test_every_module_but_those_of_aws_needs_only_what_the_wheel_requires() -> None:
    package = ROOT / "lakehouse_assets"
    files = [file for file in package.rglob("*.py") if not file.is_relative_to(package / "domains")]
    paths = [file.relative_to(ROOT).with_suffix("") for file in files if file.stem not in ("__main__", "definitions")]
    names = {".".join(path.parts).removesuffix(".__init__") for path in paths}
    assert names - importable(names) == OF_AWS


@pytest.mark.slow("What a newcomer's machine is like.")
@pytest.mark.spark
def test_local_needs_no_extra_no_credentials_and_no_region(tmp_path: Path) -> None:
    # This repository's own domains need the extra demo.
    (tmp_path / "sitecustomize.py").write_text(site_customization("demo"))
    bare = {n: v for n, v in os.environ.items() if not n.startswith(("AWS_", "LAKEHOUSE_", "PYICEBERG_"))}
    (tmp_path / "dagster").mkdir()
    ours = {
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "DAGSTER_HOME": str(tmp_path / "dagster"),
        "LAKEHOUSE_HOME": str(tmp_path / "home"),
    }

    def done(*command: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-m", *command], cwd=ROOT, env=bare | ours, capture_output=True, text=True
        )
        assert ran.returncode == 0, (ran.stdout + ran.stderr)[-8000:]
        return ran.stdout

    def lakehouse(*command: str) -> str:
        return done("lakehouse_assets.cli", *command)

    lakehouse("run", "nyc.landing", "nyc.airlines")  # which also keeps the runs, for the trace
    catalog = load_lake(read_settings({"LAKEHOUSE_HOME": str(tmp_path / "home")}))
    table = catalog.load_table("nyc.airlines")
    assert table.scan().to_arrow().num_rows == 16
    assert lakehouse("doctor", "nyc.airlines").count(" ok") == 6
    for n in range(3):
        table.append(pa.Table.from_pylist([{"carrier": f"A{n}", "name": "A"}], schema=table.schema().as_arrow()))
    for _ in range(2):  # each pass after the first reads the mark of its owner in the table's folder
        lakehouse("maintain", "--apply", "--force", "--level=fragments", "--level=expire", "--level=collect")
    assert len(catalog.load_table("nyc.airlines").inspect.files()) == 1
    assert (tmp_path / "home" / "warehouse" / "nyc" / "airlines" / "metadata" / "lakehouse-owner.json").exists()
    assert "matches its declaration" in lakehouse("plan", "nyc.airlines")
    assert lakehouse("trace", "nyc.airlines").startswith("nyc.airlines: snapshot ")

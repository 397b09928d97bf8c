"""The local environment where AWS's client is not even installed: a table is filled from the drop zone all the same.
Also of the workers, whose processes inherit the lack."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import read_settings

ROOT = Path(__file__).parents[2]
# Python runs it at its start, in every process that has this folder on its path.
WITHOUT_BOTO3 = "import sys\nsys.modules['boto3'] = sys.modules['botocore'] = None\n"


@pytest.mark.slow("What a newcomer's machine is like.")
@pytest.mark.spark
def test_local_needs_no_boto3_no_credentials_and_no_region(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_BOTO3)
    bare = {n: v for n, v in os.environ.items() if not n.startswith(("AWS_", "LAKEHOUSE_", "PYICEBERG_"))}
    (tmp_path / "dagster").mkdir()
    ours = {
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "DAGSTER_HOME": str(tmp_path / "dagster"),
        "LAKEHOUSE_HOME": str(tmp_path / "home"),
    }
    select = "key:nyc/landing or key:nyc/airlines"
    dagster = [sys.executable, "-m", "dagster", "asset", "materialize", "-m", "lakehouse_assets.definitions"]
    done = subprocess.run(
        [*dagster, "--select", select],
        cwd=ROOT,
        env=bare | ours,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    settings = read_settings({"LAKEHOUSE_HOME": str(tmp_path / "home")})
    assert load_lake(settings).load_table("nyc.airlines").scan().to_arrow().num_rows == 16
    doctor = [sys.executable, "-m", "lakehouse_assets.cli", "doctor", "nyc.airlines"]
    asked = subprocess.run(doctor, cwd=ROOT, env=bare | ours, capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.count(" ok") == 2

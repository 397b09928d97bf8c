"""What `lakehouse new` writes, and which names it refuses; a project is filled in integration/test_installed.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from lakehouse_assets.cli.project import enter_project, make_project
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.errors import LakehouseError
from tests.conftest import ROOT
from tests.support.twins import twins


def test_its_code_is_as_this_repositorys_own_is(tmp_path: Path) -> None:
    make_project("shop", tmp_path)
    check = [sys.executable, "-m", "ruff", "check", "--config", ROOT / "pyproject.toml", "--ignore", "D,TID", tmp_path]
    assert subprocess.run(check, capture_output=True).returncode == 0
    form = [sys.executable, "-m", "ruff", "format", "--check", "--config", ROOT / "pyproject.toml", tmp_path]
    assert subprocess.run(form, capture_output=True).returncode == 0


def test_its_definitions_are_valid(tmp_path: Path) -> None:
    make_project("shop", tmp_path)
    validate = [sys.executable, "-m", "dagster", "definitions", "validate"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DAGSTER_HOME": str(tmp_path)}
    done = subprocess.run(validate, cwd=tmp_path / "shop", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "told"),
    [("Shop", "lower-case"), ("dagster", "installed"), ("class", "Python's keywords"), ("there", "exists")],
)
def test_a_name_that_can_not_be_one_is_refused(name: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(LakehouseError, match=told):
        make_project(name, tmp_path)


def test_none_is_made_inside_of_another(tmp_path: Path) -> None:
    make_project("shop", tmp_path)
    with pytest.raises(LakehouseError, match=f"{tmp_path / 'shop'} is already a project"):
        make_project("other", tmp_path / "shop" / "shop")


def test_a_project_is_found_from_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_project("shop", tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "shop")
    monkeypatch.chdir(tmp_path / "shop" / "shop")
    enter_project()
    assert Path.cwd() == tmp_path / "shop"


def test_elsewhere_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.other]\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LakehouseError, match="lakehouse new"):
        enter_project()


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LakehouseError, match=r"pyproject\.toml can't be read"):
        enter_project()


AUTOLOADED = """
import dagster as dg
from lakehouse_assets import Domain, code_location, tables_of
from shop import tables

@dg.definitions
def all_of_it():
    return code_location(Domain("shop", tables=tables_of(tables)))
"""


@pytest.mark.parametrize(
    ("project", "file"),
    [
        ('[tool.dagster]\nmodule_name = "shop.definitions"\n', "definitions.py"),
        ('[[tool.dagster.modules]]\ntype = "module"\nname = "shop.definitions"\n', "definitions.py"),
        ('[tool.dg.project]\nroot_module = "shop"\nautoload_defs = true\n', "defs/all.py"),
    ],
    ids=["module", "modules", "autoload"],
)
def test_a_code_location_is_found_wherever_dagster_finds_it(project: str, file: str, tmp_path: Path) -> None:
    make_project("shop", tmp_path)
    folder = tmp_path / "shop"
    (folder / "shop" / "definitions.py").unlink()
    (folder / "pyproject.toml").write_text(project)
    (folder / "shop" / file).parent.mkdir(exist_ok=True)
    (folder / "shop" / file).write_text(AUTOLOADED)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LAKEHOUSE_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "lakehouse_assets.cli", "plan"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert "shop.orders" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        (
            "tables",
            "from lakehouse_assets import Tabel\n",
            r"shop/tables\.py:1: ImportError: cannot import name 'Tabel'",
        ),
        ("tables", "orders = (\n", r"SyntaxError"),
        ("definitions", "x = 1\n", r"shop\.definitions can't be loaded"),
        (
            "tables",
            "from lakehouse_assets import Table\nt = Table('shop.t', [], 'x:y')\n",
            r"error: table 'shop\.t': it has no columns",
        ),
    ],
)
def test_what_a_persons_modules_raise_is_said_in_a_line(file: str, text: str, told: str, tmp_path: Path) -> None:
    make_project("shop", tmp_path)
    (tmp_path / "shop" / "shop" / f"{file}.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LAKEHOUSE_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "lakehouse_assets.cli", "plan"]
    done = subprocess.run(command, cwd=tmp_path / "shop", env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.search(told, done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_a_plan_that_the_next_run_would_fail_by_is_no_success(tmp_path: Path) -> None:
    make_project("shop", tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LAKEHOUSE_HOME": str(tmp_path / "home")}
    lake = load_lake(read_settings(environment))
    lake.create_namespace("shop")
    columns = Schema(NestedField(1, "day", StringType(), required=True))
    lake.create_table("shop.orders", columns, partition_spec=PartitionSpec())
    command = [sys.executable, "-m", "lakehouse_assets.cli", "plan"]
    done = subprocess.run(command, cwd=tmp_path / "shop", env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout
    assert "fails" in done.stdout
    assert "shop.orders" in done.stderr


@pytest.mark.spark
@pytest.mark.parametrize("sql", twins([True, False], "One Spark more, for the same test of a step in Python."))
def test_the_test_of_its_step_passes(tmp_path: Path, sql: bool) -> None:
    make_project("shop", tmp_path, sql=sql)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path / "shop", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.environment.settings import read_settings

ROWS = pa.table({"n": [1, 2, 3]})


def opened(home: Path) -> Catalog:
    return load_lake(read_settings({"LAKEHOUSE_HOME": str(home)}))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    catalog = opened(tmp_path / "a" / "old home")
    catalog.create_namespace("demo")
    catalog.create_table("demo.t", schema=ROWS.schema).append(ROWS)
    return tmp_path / "a" / "old home"


def told(home: Path) -> str:
    with pytest.raises(SettingsError) as refused:
        opened(home)
    return str(refused.value)


@pytest.mark.parametrize("parent_stays", [True, False])
def test_a_moved_home_is_told_and_its_advice_works(home: Path, tmp_path: Path, parent_stays: bool) -> None:
    new = home.rename(tmp_path / "it's new")
    if not parent_stays:
        home.parent.rmdir()
    text = told(new)
    assert f"{new} was moved" in text
    assert str(home) in text

    subprocess.run(text.partition("old place: ")[2], shell=True, check=True)

    assert opened(new).load_table("demo.t").scan().to_arrow() == ROWS
    opened(new).load_table("demo.t").append(ROWS)
    assert opened(new).load_table("demo.t").scan().to_arrow().num_rows == 6


def test_a_warehouse_that_was_moved_alone(home: Path, tmp_path: Path) -> None:
    new = tmp_path / "b"
    shutil.copytree(home, new)
    shutil.rmtree(home / "warehouse")
    text = told(new)
    assert f"{new / 'warehouse'} was moved" in text
    subprocess.run(text.partition("old place: ")[2], shell=True, check=True)
    assert opened(new).load_table("demo.t").scan().to_arrow() == ROWS


def test_tables_elsewhere_and_files_that_are_gone_are_no_move(home: Path, tmp_path: Path) -> None:
    catalog = opened(home)
    elsewhere = catalog.create_table("demo.elsewhere", schema=ROWS.schema, location=f"file://{tmp_path}/x/warehouse/t")
    Path(elsewhere.metadata_location.removeprefix("file://")).unlink()
    assert opened(home).load_table("demo.t").scan().to_arrow() == ROWS

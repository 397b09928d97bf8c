from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from lakehouse_assets.commit.owner import catalog_text
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.environment.local_paths import folder_of, location_of, path_of
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.storage.objects import objects_at
from lakehouse_assets.storage.place import place_of

NAMES = ("a b", "Jürgen", "a#b", "a%b", "100%", "a+b", "a&b=c", "a;b", "a'\"b", "b:c@d", "[a]{b}*$", "a\\b", "a\nb")
ROWS = pa.table({"n": [1, 2, 3]})


def opened(home: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(home))
    return load_lake(read_settings({"LAKEHOUSE_HOME": str(home)}))


def filled(catalog: Catalog, name: str = "t") -> str:
    catalog.create_namespace_if_not_exists("demo")
    table = catalog.create_table(f"demo.{name}", schema=ROWS.schema)
    table.append(ROWS)
    return table.location()


@pytest.mark.parametrize("name", NAMES)
def test_all_that_a_home_holds_is_in_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / name / "home"
    catalog = opened(home, monkeypatch)
    location = filled(catalog)
    staging = read_settings({"LAKEHOUSE_HOME": str(home)}).staging
    objects_at({}, place_of(staging)).write("receipt.json", b"{}")

    assert opened(home, monkeypatch).load_table("demo.t").scan().to_arrow() == ROWS
    assert path_of(location) == home / "warehouse" / "demo" / "t"
    assert len([*home.glob("warehouse/demo/t/data/*.parquet")]) == 1
    assert (home / "staging" / "receipt.json").is_file()
    assert str(home / "catalog.db") in catalog_text(catalog)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_path_without_such_characters_is_a_url_as_it_always_was() -> None:
    assert location_of(Path("/home/me/.lakehouse")) == "file:///home/me/.lakehouse"
    assert location_of(Path("/home/me/My Lake")) == "/home/me/My Lake"
    assert path_of("s3://bucket/key") is path_of("file://elsewhere/a") is None


@pytest.mark.parametrize("name", ["a?b", "a%20b", "Müller, Jürgen"])
def test_a_home_that_dagster_would_look_for_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"LAKEHOUSE_HOME=.*, so Dagster"):
        read_settings({"LAKEHOUSE_HOME": str(tmp_path / name)})


@pytest.fixture
def old_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home as older versions made it: its warehouse and its staged files lie beside it."""
    home = tmp_path / "My Lake"
    with monkeypatch.context() as context:
        for module in ("catalog", "settings"):
            context.setattr(f"lakehouse_assets.environment.{module}.location_of", Path.as_uri)
        context.setattr("lakehouse_assets.environment.catalog.data_folders", lambda *_: [])
        filled(opened(home, context))
        objects_at({}, place_of(read_settings({"LAKEHOUSE_HOME": str(home)}).staging)).write("old.json", b"{}")
    assert {path.name for path in tmp_path.iterdir()} == {"My Lake", "My%20Lake"}
    return home


def test_an_old_home_goes_on_with_the_folder_beside_it(old_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("new", "newer"):
        catalog = opened(old_home, monkeypatch)
        filled(catalog, name)
    assert catalog.load_table("demo.t").scan().to_arrow() == ROWS
    catalog.load_table("demo.t").append(ROWS)
    assert catalog.load_table("demo.t").scan().to_arrow().num_rows == 6
    encoded = old_home.with_name("My%20Lake")
    assert {path.name for path in (encoded / "warehouse" / "demo").iterdir()} == {"t", "new", "newer"}
    assert objects_at({}, place_of(read_settings({"LAKEHOUSE_HOME": str(old_home)}).staging)).names() == ["old.json"]
    assert not (old_home / "warehouse").exists()


def test_a_new_home_takes_nothing_of_one_that_was_deleted(old_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(old_home)
    for name in ("t", "u"):  # the second process finds a home in use
        assert path_of(filled(opened(old_home, monkeypatch), name)) == old_home / "warehouse" / "demo" / name


def test_a_home_keeps_to_itself_beside_one_with_the_encoded_name(tmp_path: Path) -> None:
    (tmp_path / "My Lake" / "warehouse").mkdir(parents=True)
    (tmp_path / "My Lake" / "catalog.db").touch()
    (tmp_path / "My%20Lake" / "warehouse").mkdir(parents=True)
    assert folder_of(tmp_path / "My Lake", "warehouse") == tmp_path / "My Lake" / "warehouse"


def test_a_cache_that_would_fall_apart_in_the_class_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"LAKEHOUSE_CACHE=.*a:b contains ':', which separates"):
        read_settings({"LAKEHOUSE_CACHE": str(tmp_path / "a:b")})

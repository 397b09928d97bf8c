"""Which errors mean a full disk, and which file system is named. Commands report it: test_full_disk.py."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from lakehouse_assets.environment.catalog import CatalogUnavailable, with_retries
from lakehouse_assets.environment.disk import full_disk
from lakehouse_assets.environment.settings import Settings
from tests.support.faults import fill, small_disk


def failed(database: Path) -> CatalogUnavailable:
    """What a catalog on the disk says, through SQLAlchemy and our own patience."""
    with create_engine(f"sqlite:///{database}").connect() as connection:
        with pytest.raises(CatalogUnavailable) as raised:
            with_retries(lambda: connection.execute(text("CREATE TABLE t (n)")))
        return raised.value


def test_the_full_file_system_is_named_of_several(settings: Settings) -> None:
    (settings.home).mkdir()
    with small_disk(settings.home / "warehouse") as disk:
        fill(disk)
        message = full_disk(failed(disk / "some.db"), settings)
        assert message == f"the disk is full: 0.0 of 8 MiB free on the file system of {disk}; free up space there"


def test_a_catalog_elsewhere_is_looked_at(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.home.mkdir()
    with small_disk(tmp_path / "elsewhere") as disk:
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{disk}/catalog.db")
        fill(disk)
        assert f"the file system of {disk};" in (full_disk(failed(disk / "catalog.db"), settings) or "")


def test_a_disk_that_has_room_again_is_not_called_full(settings: Settings) -> None:
    settings.home.mkdir()
    with sqlite3.connect(":memory:") as database:
        database.execute("PRAGMA max_page_count = 1")
        with pytest.raises(sqlite3.OperationalError, match="full") as raised:
            database.execute("CREATE TABLE t (n)")
    assert (full_disk(raised.value, settings) or "").startswith(
        "a disk was full or a quota was used up (database or disk is"
    )


@pytest.mark.parametrize(
    "error", [FileNotFoundError(2, "No such file"), ValueError("x"), sqlite3.OperationalError("x")]
)
def test_other_errors_are_none_of_it(settings: Settings, error: Exception) -> None:
    settings.home.mkdir()
    assert full_disk(error, settings) is None
    with pytest.raises(sqlite3.OperationalError) as raised:
        sqlite3.connect(settings.home / "missing" / "catalog.db")
    assert full_disk(raised.value, settings) is None

"""The line on the lake's health that ends `make run`: of tables that are well, that need care, that can't be read."""

from __future__ import annotations

from pathlib import Path

from lakehouse_assets.cli.summary import health_line
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from tests.support.manifests import Crafted, Listed
from tests.support.tables import numbers


def crafted(settings: Settings, name: str, files: int) -> Crafted:
    table = numbers(identifier=f"demo.{name}")
    made = Crafted.create(load_lake(settings), table.schema, table.spec, table.identifier)
    made.list([Listed((19_723,), size=2**20)] * files)
    return made


def test_a_lake_that_is_well(settings: Settings) -> None:
    crafted(settings, "a", 3)
    crafted(settings, "b", 4)
    assert health_line(settings, ["demo.a", "demo.b", "demo.not_yet", "other.not_yet"]) == (
        "health of the lake: 2 tables, 7 data files, 7 MiB; nothing to do"
    )


def test_tables_that_need_care_are_named_with_what_they_need(settings: Settings) -> None:
    crafted(settings, "a", 12)
    crafted(settings, "b", 4)
    assert health_line(settings, ["demo.a", "demo.b"]).endswith("16 data files, 16 MiB; demo.a needs fragments")


def test_what_can_not_be_read_is_said_and_nothing_more(settings: Settings) -> None:
    snapshot = crafted(settings, "a", 12).table.refresh().current_snapshot()
    assert snapshot
    Path(snapshot.manifest_list.removeprefix("file://")).unlink()
    assert health_line(settings, ["demo.a"]).startswith("health of the lake: unknown, FileNotFoundError: ")

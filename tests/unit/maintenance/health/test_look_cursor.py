"""The cursor of the sensors that look at tables comes back as it was, and a foreign one is as good as none."""

from __future__ import annotations

import dagster as dg
import pytest

from lakehouse_assets.maintenance.health.look import LookCursor, Seen, materializations
from tests.support.tables import numbers

TABLES = [numbers(identifier=f"demo.{name}") for name in ("c", "a", "b")]
NOW = 1_000.0


def test_it_comes_back_as_it_was() -> None:
    cursor = LookCursor("demo.a", {"demo.a": Seen("l", 7, 1.5), "demo.b": Seen("", 0, 2.0)})
    assert LookCursor.parse(cursor.text()) == cursor
    assert LookCursor.parse(None) == LookCursor()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "7",
        '{"seen": 1}',
        '{"seen": {"a": [1]}}',
        '{"seen": {"a": ["l", 1, "soon"]}}',
        '{"seen": {"a": ["l", 1e999, 1]}}',
    ],
)
def test_a_foreign_one_is_as_good_as_none(text: str) -> None:
    assert LookCursor.parse(text) == LookCursor()


@pytest.mark.parametrize(
    ("last", "order"), [("", "abc"), ("demo.a", "bca"), ("demo.aa", "bca"), ("demo.b", "cab"), ("demo.c", "abc")]
)
def test_every_table_has_its_turn(last: str, order: str) -> None:
    assert "".join(table.identifier[-1] for table in LookCursor(last).due(TABLES, {}, NOW)) == order


def test_a_table_is_due_after_an_event_and_when_its_time_has_come() -> None:
    seen = {"demo.a": Seen("", 1, NOW + 1), "demo.b": Seen("", 2, NOW + 1), "demo.c": Seen("", 3, NOW)}
    due = LookCursor("", seen).due(TABLES, {"demo.a": 1, "demo.b": 4, "demo.c": 3}, NOW)
    assert [table.identifier for table in due] == ["demo.b", "demo.c"]


def test_the_event_of_a_table_is_its_latest_materialization(instance: dg.DagsterInstance) -> None:
    assert materializations(instance, TABLES) == {"demo.a": 0, "demo.b": 0, "demo.c": 0}
    for table in (TABLES[0], TABLES[1], TABLES[0]):
        instance.report_runless_asset_event(dg.AssetMaterialization(table.key))
    found = materializations(instance, TABLES)
    assert found["demo.b"] == 0 < found["demo.a"] < found["demo.c"]


def test_tables_that_are_no_longer_declared_are_forgotten() -> None:
    cursor = LookCursor("", {"demo.a": Seen("", 0, 0), "demo.z": Seen("", 0, 0)})
    cursor.forget_others({"demo.a"})
    assert list(cursor.seen) == ["demo.a"]

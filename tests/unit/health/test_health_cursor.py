"""The health sensor's cursor comes back as it was, and a foreign one is as good as none."""

from __future__ import annotations

import pytest

from lakehouse_assets.health.health_cursor import HealthCursor, Said
from tests.support.tables import numbers

TABLES = [numbers(identifier=f"demo.{name}") for name in ("c", "a", "b")]


def test_it_comes_back_as_it_was() -> None:
    cursor = HealthCursor("demo.a", {"demo.a": Said("l", "d", 1.5), "demo.b": Said("", "Error", 2.0)})
    assert HealthCursor.parse(cursor.text()) == cursor
    assert HealthCursor.parse(None) == HealthCursor()


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "7", '{"said": 1}', '{"said": {"a": [1]}}', '{"said": {"a": ["l", "d", "soon"]}}']
)
def test_a_foreign_one_is_as_good_as_none(text: str) -> None:
    assert HealthCursor.parse(text) == HealthCursor()


@pytest.mark.parametrize(
    ("last", "order"), [("", "abc"), ("demo.a", "bca"), ("demo.aa", "bca"), ("demo.b", "cab"), ("demo.c", "abc")]
)
def test_every_table_has_its_turn(last: str, order: str) -> None:
    assert "".join(table.identifier[-1] for table in HealthCursor(last).in_turn(TABLES)) == order


def test_tables_that_are_no_longer_declared_are_forgotten() -> None:
    cursor = HealthCursor("", {"demo.a": Said("", "", 0), "demo.z": Said("", "", 0)})
    cursor.forget_others({"demo.a"})
    assert list(cursor.said) == ["demo.a"]

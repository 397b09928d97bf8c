"""What Glue takes of a table's texts, by the patterns of its API."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from lakehouse_assets.declare.columns import column, schema_of
from lakehouse_assets.extensions.hand_off.glue import OURS, parameters, table_input, unreadable_parameters, view_input
from lakehouse_assets.extensions.hand_off.records import HandOffPlan, Version

# https://docs.aws.amazon.com/glue/latest/webapi/API_Column.html and API_TableInput.html
ALLOWED = "\\u0020-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff\\t"
LINE, LINES = re.compile(f"[{ALLOWED}]{{0,255}}"), re.compile(f"[{ALLOWED}\\r\\n]{{0,2048}}")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
VERSION = Version("v1", "token", NOW, "s3://exports/orders/v1", "partners", "orders_v1")


def plan(doc: str = "") -> HandOffPlan:
    columns = schema_of([column("n", "long", doc), column("day", "date", doc)])
    fields = ("token", NOW, "shop.orders", uuid4(), 7, 1, columns.model_dump_json(), ("day",))
    return HandOffPlan(*fields, "s3://exports/orders", "partners.orders", ())


@pytest.mark.parametrize(
    ("doc", "comment"),
    [
        ("in euros,\nwithout tax", "in euros, without tax"),
        ("one\r\n\r\ntwo", "one two"),
        ("a\0b\x07c\x1b[0m", "a b c [0m"),
        ("\ttab, é, 価格, 🛒", "\ttab, é, 価格, 🛒"),
        ("\n" * 300 + "x" * 300, " " + "x" * 254),
        ("\uffff\ufffe", " "),
    ],
)
def test_a_doc_becomes_a_comment_of_one_line(doc: str, comment: str) -> None:
    found = table_input("key", plan(doc), VERSION)
    comments = [one["Comment"] for one in (*found["PartitionKeys"], *found["StorageDescriptor"]["Columns"])]
    assert comments == [comment, comment]
    assert LINE.fullmatch(comment)


def test_a_description_keeps_its_lines_and_loses_what_glue_refuses() -> None:
    described = view_input("key", plan(), VERSION, "Orders.\n\nOf all shops\x07.\0" + "x" * 3000)["Description"]
    assert described.startswith("Orders.\n\nOf all shops . x")
    assert LINES.fullmatch(described)


def test_a_view_says_of_which_version_it_is() -> None:
    given = parameters("key", plan(), VERSION)
    assert unreadable_parameters(given) == []
    assert len(unreadable_parameters({OURS: "key"})) == 4
    assert unreadable_parameters(given | {"lakehouse.sequence-number": "x"}) == ["lakehouse.sequence-number"]

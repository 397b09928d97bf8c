"""How a table in the catalog may differ from its declaration: a table of cases."""

from __future__ import annotations

import pytest
from pyiceberg.table.metadata import TableMetadata, new_table_metadata

from lakehouse_assets.commit.schema_policy import ChangeKind, SchemaChange, schema_changes
from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.table import Table
from tests.support.tables import numbers

DAY, N, TEXT = (
    column("day", "date", "The day.", required=True),
    column("n", "long", "A number.", required=True),
    column("text", "string", "The number as text."),
)


def metadata(table: Table) -> TableMetadata:
    """Of a new table with this declaration; field ids are given in the columns' order."""
    return new_table_metadata(table.schema, table.spec, table.order, "file:///nowhere", {})


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (numbers(), []),
        (numbers(columns=[TEXT, N, DAY]), []),
        (numbers(columns=[DAY, column("n", "long", "A number."), TEXT]), []),
        (numbers(properties={"set.by": "others"}), []),
        (numbers(columns=[DAY, N]), [SchemaChange(ChangeKind.MISSING, "string", "none", ("text",))]),
        (
            numbers(columns=[DAY, N, TEXT, column("new", "int")]),
            [SchemaChange(ChangeKind.UNDECLARED, "none", "int", ("new",))],
        ),
        (
            numbers(columns=[DAY, column("n", "int", "A number."), TEXT]),
            [SchemaChange(ChangeKind.TYPE, "long", "int", ("n",))],
        ),
        (
            numbers(columns=[DAY, N, column("text", "string", "The number as text.", required=True)]),
            [SchemaChange(ChangeKind.REQUIRED, "optional", "required", ("text",))],
        ),
        (
            numbers(columns=[column("day", "date", required=True), N, TEXT]),
            [SchemaChange(ChangeKind.DOC, "'The day.'", "''", ("day",))],
        ),
        (
            numbers(partitions=None, partitioned_by=["bucket(16, n)"]),
            [SchemaChange(ChangeKind.SPEC, "day", "bucket(16, n)")],
        ),
        (numbers(sorted_by=[]), [SchemaChange(ChangeKind.ORDER, "n", "none")]),
        (numbers(sorted_by=["n", "text"]), [SchemaChange(ChangeKind.ORDER, "n", "n, text")]),
        (
            numbers(partitions=None, partitioned_by=[], columns=[DAY, N, column("words", "string")]),
            [
                SchemaChange(ChangeKind.MISSING, "string", "none", ("text",)),
                SchemaChange(ChangeKind.UNDECLARED, "none", "string", ("words",)),
                SchemaChange(ChangeKind.SPEC, "day", "none"),
            ],
        ),
    ],
    ids=[
        "same",
        "order",
        "optional",
        "properties",
        "missing",
        "undeclared",
        "type",
        "required",
        "doc",
        "spec",
        "unsorted",
        "order of",
        "several",
    ],
)
def test_each_difference_is_found(found: Table, expected: list[SchemaChange]) -> None:
    assert schema_changes(numbers(), metadata(found)) == expected

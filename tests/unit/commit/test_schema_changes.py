"""How a table in the catalog may differ from its declaration: a table of cases."""

from __future__ import annotations

import pytest
from pyiceberg.table.metadata import TableMetadata, new_table_metadata

from lakehouse_assets.commit.schema_changes import Kind, SchemaChange, refusal_text, schema_changes
from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.table import Table
from tests.support.tables import numbers

DAY, N, TEXT = column("day", "date", required=True), column("n", "long", required=True), column("text", "string")


def metadata(table: Table) -> TableMetadata:
    """Of a new table with this declaration; field ids are given in the columns' order."""
    return new_table_metadata(table.schema, table.spec, table.order, "file:///nowhere", {})


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (numbers(), []),
        (numbers(columns=[TEXT, N, DAY]), []),
        (numbers(columns=[DAY, column("n", "long"), TEXT]), []),
        (numbers(columns=[DAY, N]), [SchemaChange(Kind.MISSING, "string", "none", "text")]),
        (numbers(columns=[DAY, N, TEXT, column("new", "int")]), [SchemaChange(Kind.UNDECLARED, "none", "int", "new")]),
        (numbers(columns=[DAY, column("n", "int"), TEXT]), [SchemaChange(Kind.TYPE, "long", "int", "n")]),
        (
            numbers(columns=[DAY, N, column("text", "string", required=True)]),
            [SchemaChange(Kind.REQUIRED, "optional", "required", "text")],
        ),
        (numbers(partitions=None, partitioned_by=["bucket(16, n)"]), [SchemaChange(Kind.SPEC, "day", "bucket(16, n)")]),
        (
            numbers(partitions=None, partitioned_by=[], columns=[DAY, N, column("words", "string")]),
            [
                SchemaChange(Kind.MISSING, "string", "none", "text"),
                SchemaChange(Kind.UNDECLARED, "none", "string", "words"),
                SchemaChange(Kind.SPEC, "day", "none"),
            ],
        ),
    ],
    ids=["same", "order", "optional", "missing", "undeclared", "type", "required", "spec", "several"],
)
def test_each_difference_is_found(found: Table, expected: list[SchemaChange]) -> None:
    assert schema_changes(numbers(), metadata(found)) == expected


def test_the_refusal_names_every_difference() -> None:
    found = numbers(partitions=None, partitioned_by=[], columns=[DAY, N])
    message = refusal_text(numbers(), schema_changes(numbers(), metadata(found)))
    assert "table demo.numbers: the declaration and the table in the catalog differ" in message
    assert "column text: declared string, found none; partitioned by: declared day, found none" in message

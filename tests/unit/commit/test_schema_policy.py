"""What each policy makes of each difference: a table of cases, and what the refusals say."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.types import ListType, MapType, StructType

from lakehouse_assets.commit.evolution import allowed
from lakehouse_assets.commit.schema_policy import PolicyAction, verdicts
from lakehouse_assets.declare.columns import Column, column
from lakehouse_assets.declare.modes import Merge, Tuning
from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import DeclarationError, PublishRefused
from tests.support.tables import numbers

DAY, N, TEXT = column("day", "date", required=True), column("n", "long"), column("text", "string")
POINT = column("point", "struct<lat: float, tags: list<int>>")
PLAIN = {"unique": [], "sorted_by": []}
POLICIES = ("fail", "ignore", "append_new_columns", "sync_all_columns")
A, L, R = PolicyAction.APPLY, PolicyAction.LEAVE, PolicyAction.REFUSE


def metadata(table: Table) -> TableMetadata:
    """Of a table that has rows."""
    empty = new_table_metadata(table.schema, table.spec, table.order, "file:///nowhere", dict(table.properties))
    return empty.model_copy(update={"current_snapshot_id": 1})


@pytest.mark.parametrize(
    ("declared", "found", "actions"),
    [
        ([DAY, N, TEXT], [DAY, N], (R, L, A, A)),
        ([DAY, N, column("text", "string", required=True)], [DAY, N], (R, R, R, R)),
        ([DAY, N], [DAY, N, TEXT], (R, L, L, A)),
        ([DAY, N], [DAY, N, column("text", "string", required=True)], (R, R, R, A)),
        ([DAY, N], [DAY, column("n", "int")], (R, L, A, A)),
        ([DAY, column("n", "int")], [DAY, N], (R, L, R, R)),
        ([DAY, column("n", "double")], [DAY, column("n", "float")], (R, L, A, A)),
        ([DAY, column("n", "decimal(12,2)")], [DAY, column("n", "decimal(9,2)")], (R, L, A, A)),
        ([DAY, column("n", "decimal(12,3)")], [DAY, column("n", "decimal(9,2)")], (R, L, R, R)),
        ([DAY, column("n", "binary")], [DAY, column("n", "string")], (R, L, R, R)),
        ([DAY, N], [DAY, column("n", "long", required=True)], (R, R, A, A)),
        ([DAY, N, column("Text", "string")], [DAY, N, TEXT], (R, R, R, R)),
        ([DAY, N, POINT], [DAY, N, column("point", "struct<lat: float>")], (R, R, A, A)),
        ([DAY, N, column("point", "struct<lat: float>")], [DAY, N, POINT], (R, R, R, A)),
        ([DAY, POINT], [DAY, column("point", "struct<lat: float, tags: list<string>>")], (R, R, R, R)),
        ([DAY, column("p", "struct<x: list<long>>")], [DAY, column("p", "struct<x: list<int>>")], (R, R, A, A)),
        ([DAY, column("m", "map<long, int>")], [DAY, column("m", "map<int, int>")], (R, R, R, R)),
        ([DAY, column("m", "map<int, long>")], [DAY, column("m", "map<int, int>")], (R, R, A, A)),
        (
            [DAY, column("m", "map<struct<a: int, b: int>, int>")],
            [DAY, column("m", "map<struct<a: int>, int>")],
            (R,) * 4,
        ),
        ([DAY, column("p", "struct<key: long>")], [DAY, column("p", "struct<key: int>")], (R, R, A, A)),
        ([DAY, column("p", "struct<a: int, c: int>")], [DAY, column("p", "struct<A: int, c: int>")], (R, R, R, R)),
        ([DAY, POINT], [DAY, column("point", "string")], (R, L, R, R)),
        ([DAY, column("m", "long", was="n")], [DAY, N], (R, R, A, A)),
        ([DAY, column("m", "long", was="n")], [DAY, column("m", "long")], (None,) * 4),
        ([DAY, column("m", "long", was="n")], [DAY, N, column("m", "long")], (R, L, L, A)),
        ([DAY, column("m", "long", was="n")], [DAY, column("n", "int")], (R, R, A, A)),
        ([DAY, column("M", "long", was="n")], [DAY, N, column("m", "long")], (R, R, R, R)),
        ([column("date", "date", required=True, was="day"), N], [DAY, N], (R, R, R, R)),
        (
            [DAY, column("q", "struct<lat: double>", was="point")],
            [DAY, column("point", "struct<lat: float>")],
            (R, R, A, A),
        ),
        ([DAY, column("k", "long", was="m")], [DAY, N], (R, L, A, A)),
    ],
    ids=lambda value: "; ".join(f"{c.name} {c.type}" for c in value) if isinstance(value, list) else "",
)
def test_each_policy_on_each_difference(
    declared: list[Column], found: list[Column], actions: tuple[PolicyAction, ...]
) -> None:
    there = metadata(numbers(columns=found, **PLAIN))
    options = PLAIN | {"partitioned_by": [declared[0].name]}
    said = [verdicts(numbers(columns=declared, on_schema_change=policy, **options), there) for policy in POLICIES]
    # The worst of them, where one change of the declaration makes two differences.
    worst = [next((a for a in (R, A, L) if a in {v.action for v in verdict}), None) for verdict in said]
    assert tuple(worst) == actions


def test_every_refusal_names_the_column_both_types_and_what_allows_it() -> None:
    there = metadata(numbers(columns=[DAY, column("n", "int"), column("old", "string")], **PLAIN))
    declared = numbers(columns=[DAY, N, TEXT], **PLAIN)
    with pytest.raises(PublishRefused) as refused:
        allowed(declared, IcebergTable(("demo", "numbers"), there, "", PyArrowFileIO(), NoopCatalog("none")))
    message = str(refused.value)
    assert message.startswith("table demo.numbers: the declaration and the table in the catalog differ: ")
    both = 'declare on_schema_change="append_new_columns" or declare on_schema_change="sync_all_columns"'
    assert f"column n: declared long, found int (to widen it, {both})" in message
    assert f"column text: declared string, found none (to add it, {both})" in message
    assert (
        'column old: declared none, found string (to keep it, declare on_schema_change="append_new_columns" or declare '
        'on_schema_change="ignore"; to drop it, declare on_schema_change="sync_all_columns")' in message
    )


def test_a_refusal_that_no_policy_allows_says_what_else_to_do() -> None:
    there = metadata(numbers(columns=[DAY, column("n", "string"), TEXT], **PLAIN))
    declared = numbers(columns=[DAY, N, TEXT], **PLAIN)
    (verdict,) = verdicts(declared, there)
    assert "Iceberg only widens types" in verdict.reason
    assert "Declare string, or add a column" in verdict.reason


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("declared", "found"),
    [
        ([DAY, N], [DAY, column("n", "string")]),
        ([DAY, N, column("text", "string", required=True)], [DAY, N]),
        ([DAY, POINT], [DAY, column("point", "struct<lat: float, tags: list<string>>")]),
        ([DAY, column("m", "map<long, int>")], [DAY, column("m", "map<int, int>")]),
        (
            [DAY, column("m", "map<struct<a: int>, int>")],
            [DAY, column("m", "map<struct<a: int, b: int>, int>")],
        ),
        ([DAY, N, POINT], [DAY, N, column("point", "struct<lat: float>")]),
        ([DAY, N], [DAY, N, TEXT]),
    ],
)
def test_a_refusal_names_no_policy_that_would_refuse_as_well(
    declared: list[Column], found: list[Column], policy: str
) -> None:
    there = metadata(numbers(columns=found, **PLAIN))
    for verdict in verdicts(numbers(columns=declared, on_schema_change=policy, **PLAIN), there):
        for other in re.findall(r'on_schema_change="(\w+)"', verdict.reason):
            said = verdicts(numbers(columns=declared, on_schema_change=other, **PLAIN), there)
            assert R not in {v.action for v in said if v.change == verdict.change}, f"{verdict} names {other}"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("declared", "found"), [("date", "timestamp"), ("timestamp", "date")])
def test_no_policy_lets_a_source_of_partitions_have_another_type(declared: str, found: str, policy: str) -> None:
    """Its files would not be found where a run replaces them."""
    tables = [
        numbers(columns=[column("day", of), N], partitioned_by=["day(day)"], on_schema_change=policy, **PLAIN)
        for of in (declared, found)
    ]
    (verdict,) = verdicts(tables[0], metadata(tables[1]))
    assert verdict.action is R
    assert f"declare {found}" in verdict.reason.lower()


def test_a_column_with_the_name_of_a_partition_field_is_refused_with_the_reason() -> None:
    there = metadata(numbers(columns=[column("at", "timestamp"), N], partitioned_by=["day(at)"], **PLAIN))
    declared = numbers(
        columns=[column("at", "timestamp"), column("at_day", "date"), N],
        partitioned_by=["at_day"],
        on_schema_change="append_new_columns",
        on_layout_change="evolve",
        **PLAIN,
    )
    (verdict,) = [v for v in verdicts(declared, there) if v.change.name == "at_day"]
    assert verdict.action is R
    assert "field of the table's partitions (spec 0) has this name" in verdict.reason


def test_a_part_that_must_not_be_null_is_made_optional_where_columns_may_change() -> None:
    """Under the other policies the step's nulls fail in Spark, and all other rows are written."""
    declared = [column("parts", "struct<a: int, b: list<int>, c: map<int, int>>")]
    there = metadata(numbers(columns=[DAY, *declared], **PLAIN))
    parts = there.schema().find_field("parts")
    a, b, c = parts.field_type.fields
    of_b = ListType(b.field_type.element_id, b.field_type.element_type, element_required=True)
    of_c = MapType(c.field_type.key_id, c.field_type.key_type, c.field_type.value_id, c.field_type.value_type, True)
    changed = (
        a.model_copy(update={"required": True}),
        b.model_copy(update={"field_type": of_b}),
        c.model_copy(update={"field_type": of_c}),
    )
    parts = parts.model_copy(update={"field_type": StructType(*changed)})
    strict = there.model_copy(update={"schemas": [Schema(there.schema().find_field("day"), parts)]})
    for policy, action in zip(POLICIES, (L, L, A, A), strict=True):
        said = verdicts(numbers(columns=[DAY, *declared], on_schema_change=policy, **PLAIN), strict)
        assert {v.change.name for v in said} == {"parts.a", "parts.b.element", "parts.c.value"}
        assert {v.action for v in said} == {action}


def test_a_required_column_may_be_added_where_no_row_lacks_it() -> None:
    declared = numbers(
        columns=[DAY, N, column("text", "string", required=True)], on_schema_change="append_new_columns", **PLAIN
    )
    there = numbers(columns=[DAY, N], **PLAIN)
    empty = new_table_metadata(there.schema, there.spec, there.order, "file:///nowhere", {})
    assert [v.action for v in verdicts(declared, empty)] == [A]
    all_anew = replace(declared, partitions=None, partitioned_by=["day"])
    assert [v.action for v in verdicts(all_anew, metadata(there))] == [A]


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"partitioned_by": ["day", "text"]}, "partitioned by it"),
        ({"partitioned_by": ["day"], "sorted_by": ["text"]}, "sorted by it"),
    ],
)
def test_a_column_that_the_table_is_laid_out_by_is_not_dropped(found: dict[str, list[str]], reason: str) -> None:
    there = metadata(numbers(columns=[DAY, N, TEXT], **{**PLAIN, "partitions": None} | found))
    declared = numbers(columns=[DAY, N], on_schema_change="sync_all_columns", on_layout_change="evolve", **PLAIN)
    refused = [verdict for verdict in verdicts(declared, there) if verdict.action is R]
    assert [v.change.name for v in refused] == ["text"]
    assert reason in refused[0].reason


def test_a_column_that_a_run_needs_is_not_left_out() -> None:
    there = metadata(numbers(columns=[DAY, N], **PLAIN))
    measured = {"tuning": Tuning(metrics={"text": "full"}), "on_layout_change": "evolve"}
    for options in ({"unique": ["text"]}, {"sorted_by": ["text"]}, {"write_mode": Merge(["text"])}, measured):
        declared = numbers(columns=[DAY, N, TEXT], on_schema_change="ignore", **PLAIN | options)
        refused = [v.change.name for v in verdicts(declared, there) if v.action is R]
        assert "text" in refused, options


def test_an_identifier_field_stays_required_and_is_not_dropped() -> None:
    there = metadata(numbers(columns=[DAY, N, column("id", "long", required=True)], **PLAIN))
    fields = there.schema().fields
    keyed = there.model_copy(update={"schemas": [Schema(*fields, identifier_field_ids=[3])]})
    for columns, said in (([DAY, N, column("id", "long")], "declare it required"), ([DAY, N], "declare it")):
        declared = numbers(columns=columns, on_schema_change="sync_all_columns", **PLAIN)
        (verdict,) = verdicts(declared, keyed)
        assert verdict.action is R
        assert "identifier field" in verdict.reason
        assert said in verdict.reason


def test_a_check_needs_its_column() -> None:
    there = metadata(numbers(columns=[DAY, N], **PLAIN))
    declared = numbers(columns=[DAY, N, TEXT], on_schema_change="ignore", checks={"some text": "text <> ''"}, **PLAIN)
    (verdict,) = verdicts(declared, there)
    assert verdict.action is R
    assert "used by a check" in verdict.reason


def test_layout_is_changed_only_where_that_is_declared() -> None:
    there = metadata(numbers(columns=[DAY, N, TEXT], properties={"write.target-file-size-bytes": "1"}))
    options = {
        "columns": [DAY, N, column("text", "string", "The number as text.")],
        "partitions": None,
        "partitioned_by": ["month(day)"],
        "sorted_by": ["text"],
        "properties": {"write.target-file-size-bytes": "2", "write.parquet.compression-codec": "zstd"},
        "unique": [],
    }
    for policy, action in (("fail", R), ("evolve", A)):
        said = verdicts(numbers(on_layout_change=policy, **options), there)
        assert {v.action for v in said} == {action}
        assert [str(v.change) for v in said] == [
            "doc of column text: declared 'The number as text.', found ''",
            "partitioned by: declared month(day), found day",
            "sorted by: declared text, found n",
            "property write.parquet.compression-codec: declared zstd, found not set",
            "property write.target-file-size-bytes: declared 2, found 1",
        ]


def test_an_unknown_policy_is_refused_at_load() -> None:
    with pytest.raises(
        DeclarationError, match="on_schema_change is 'append', expected one of fail, ignore, append_new"
    ):
        numbers(on_schema_change="append")

"""Which rows of a step count as changes, of each key the latest, and which are refused.
What becomes of the target is in test_merge.py and test_merge_plans.py."""

from __future__ import annotations

import re

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakehouse_assets.wire.work import MergeWork
from lakehouse_assets.worker.changes import (
    DELETES,
    OTHER,
    RETURNED,
    ChangesError,
    as_stored,
    facts_of,
    keys_as_stored,
    latest,
)

pytestmark = pytest.mark.spark
NAN = "double('NaN')"


@pytest.mark.parametrize(
    ("rows", "order_by", "kept", "others"),
    [
        pytest.param(["1, 10, 'a'"], "", [(1, "a", 1)], 0, id="one"),
        pytest.param(["1, 10, 'a'", "1, 10, 'a'"], "", [(1, "a", 2)], 0, id="the same twice"),
        pytest.param(["1, 10, 'a'", "1, 11, 'b'"], "at", [(1, "b", 2)], 0, id="the later"),
        pytest.param(["1, 10, 'a'", "1, NULL, 'b'"], "at", [(1, "a", 2)], 0, id="null is the earliest"),
        pytest.param(["1, NULL, 'a'", "1, NULL, 'a'"], "at", [(1, "a", 2)], 0, id="the same twice at null"),
        pytest.param([f"1, 10, {NAN}", f"1, 10, {NAN}"], "at", [(1, "NaN", 2)], 0, id="the same twice with NaN"),
        pytest.param(["1, 9, 'c'", "1, 10, 'a'", "1, 10, 'a'"], "at", [(1, "a", 3)], 0, id="the later, twice"),
        pytest.param(["2, 1, 'x'", "1, 10, 'a'", "1, 10, 'b'"], "", None, 1, id="two of one key"),
        pytest.param(["1, 10, 'a'", "1, 10, 'a'", "1, 10, 'b'"], "at", None, 1, id="equally late"),
        pytest.param(["1, 10, 'a'", "1, 10, 'b'", "1, 10, 'b'"], "at", None, None, id="equally late, the other way"),
        pytest.param(["1, 10, map('a', 1)"], "", [(1, "{a -> 1}", 1)], 0, id="a map"),
        pytest.param(["1, 10, map('a', 1)", "1, 9, map('b', 2)"], "at", [(1, "{a -> 1}", 2)], 0, id="the later map"),
        pytest.param(
            ["1, 10, map('a', 1, 'b', 2)", "1, 10, map('b', 2, 'a', 1)"],
            "at",
            [(1, "{a -> 1, b -> 2}", 2)],
            0,
            id="the same map twice",
        ),
        pytest.param(["1, 10, map('a', 1)", "1, 10, map('a', 2)"], "at", None, 1, id="two maps of one key"),
        pytest.param(
            [f"1, 10, array(struct(map('a', {n})))" for n in (1, 1, 2)], "at", None, 1, id="maps within other values"
        ),
    ],
)
def test_one_row_of_each_key_counts_where_its_rows_agree(
    jvm: SparkSession, rows: list[str], order_by: str, kept: list[tuple[int, str, int]] | None, others: int | None
) -> None:
    found = latest(_rows(jvm, rows), MergeWork(("id",), order_by=order_by))
    facts = facts_of(found, ["id"])
    if kept is None:
        assert facts.others == others if others is not None else facts.others > 0
    else:
        assert [tuple(row) for row in found.selectExpr("id", "string(value)", f"`{RETURNED}`").collect()] == kept
        assert (facts.rows, facts.returned, facts.others) == (len(kept), len(rows), 0)


def test_text_that_differs_only_by_its_collation_counts_as_different(jvm: SparkSession) -> None:
    rows = _rows(
        jvm, ["1, 10, 'a' COLLATE UTF8_LCASE", "1, 10, 'A' COLLATE UTF8_LCASE", "2, 10, 'a' COLLATE UTF8_LCASE"]
    )
    assert facts_of(latest(rows, MergeWork(("id",))), ["id"]).others == 1


def test_rows_that_are_only_inserted_count_once_whatever_they_hold(jvm: SparkSession) -> None:
    found = latest(_rows(jvm, ["1, 10, 'a'", "1, 11, 'b'", "2, 10, 'c'"]), MergeWork(("id",), only_inserts=True))
    assert sorted((row.id, row[OTHER]) for row in found.collect()) == [(1, False), (2, False)]


def test_a_change_that_deletes_needs_only_its_key(jvm: SparkSession) -> None:
    rows = jvm.sql("SELECT * FROM VALUES (1, 'U', 1e3D), (1, 'D', 1e9D), (2, 'U', 2D) AS (id, op, price)")
    found = latest(rows.withColumn("at", rows.price), MergeWork(("id",), "op = 'D'", "at"))
    stored = as_stored(found, jvm.sql("SELECT 1L AS id, CAST(1 AS decimal(5,2)) AS price").schema)
    assert sorted((row.id, str(row.price), row[DELETES]) for row in stored.collect()) == [
        (1, "None", True),
        (2, "2.00", False),
    ]


def test_nulls_in_a_key_are_counted(jvm: SparkSession) -> None:
    rows = _rows(jvm, ["NULL, 10, 'a'", "NULL, 10, 'b'", "1, 10, 'c'"])
    facts = facts_of(latest(rows, MergeWork(("id",))), ["id"])
    assert (facts.rows, facts.without_key) == (3, 2)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("DATE'2024-01-01'", "timestamp"),
        ("TIMESTAMP'2024-01-01 00:00:00'", "date"),
        ("TIMESTAMP_NTZ'2024-01-01 00:00:00'", "timestamp"),
        ("1.2D", "int"),
        ("1.25", "decimal(9,1)"),
        ("1.25", "int"),
        ("1", "string"),
    ],
)
def test_a_key_of_a_type_that_takes_several_values_for_one_is_refused(
    jvm: SparkSession, given: str, stored: str
) -> None:
    rows = jvm.sql(f"SELECT {given} AS id, 1 AS n")
    text = f"the key id is of type {rows.schema['id'].dataType.simpleString()} in the step's rows and {stored} in"
    with pytest.raises(ChangesError, match=re.escape(text)):
        keys_as_stored(rows, jvm.sql(f"SELECT CAST(NULL AS {stored}) AS id, 1 AS n").schema, ["id"], "demo.rows")


@pytest.mark.parametrize(
    ("given", "stored", "kept"),
    [
        ("CAST(7 AS smallint)", "bigint", "7"),
        ("7L", "int", "7"),
        ("7", "decimal(9,2)", "7.00"),
        ("CAST(7 AS decimal(20,0))", "bigint", "7"),
        ("1.25", "decimal(9,3)", "1.250"),
        ("CAST(0.1 AS float)", "double", "0.10000000149011612"),
        ("NULL", "string", None),
        ("'A' COLLATE UTF8_LCASE", "string", "A"),
    ],
)
def test_a_key_that_stays_the_same_is_compared_as_the_table_has_it(
    jvm: SparkSession, given: str, stored: str, kept: str | None
) -> None:
    target = jvm.sql(f"SELECT CAST(NULL AS {stored}) AS id, '' AS n").schema
    found = keys_as_stored(jvm.sql(f"SELECT 'D' AS op, {given} AS id, 1 AS n"), target, ["id"], "demo.rows")
    expected = ["op:string", f"id:{stored}", "n:int"]
    assert [field.simpleString() for field in found.schema] == expected, "what order_by reads stays as it is"
    assert [row.id for row in found.selectExpr("string(id) AS id").collect()] == [kept]


def test_a_key_that_the_table_cant_hold_fails(jvm: SparkSession) -> None:
    target = jvm.sql("SELECT 1 AS id").schema
    with pytest.raises(Exception, match="OVERFLOW"):
        keys_as_stored(jvm.sql("SELECT 4294967297L AS id"), target, ["id"], "demo.rows").collect()


@pytest.mark.parametrize(
    ("given", "stored", "found"),
    [
        ("struct<b: int, a: string>", "struct<a: string, b: int>", "struct<a:string,b:int>"),
        ("struct<B: int, a: string>", "struct<a: string, b: int>", "struct<a:string,b:int>"),
        ("struct<b: int, a: timestamp>", "struct<a: date, b: bigint>", "struct<a:date,b:bigint>"),
        ("struct<a: int not null, b: int>", "struct<b: bigint, a: bigint>", "struct<b:bigint,a:bigint>"),
        ("array<struct<a: int not null>>", "array<struct<a: bigint>>", "array<struct<a:bigint>>"),
        ("struct<a: int not null>", "struct<a: int>", "struct<a:int>"),
        ("struct<a: int not null, c: int>", "struct<a: int, b: int>", "struct<a:int,c:int>"),
        ("double", "float", "float"),
        ("decimal(19,4)", "decimal(18,2)", "decimal(18,2)"),
        ("array<struct<b: int, a: int>>", "array<struct<a: int, b: int>>", "array<struct<a:int,b:int>>"),
        (
            "map<string, struct<b: int, a: int>>",
            "map<string, struct<a: int, b: int>>",
            "map<string,struct<a:int,b:int>>",
        ),
        ("struct<a: int, c: int>", "struct<a: int, b: int>", "struct<a:int,c:int>"),
        ("struct<a: int>", "struct<a: int, b: int>", "struct<a:int>"),
    ],
)
def test_columns_get_the_tables_types_and_their_parts_its_order_and_none_is_lost(
    jvm: SparkSession, given: str, stored: str, found: str
) -> None:
    rows, target = (jvm.createDataFrame([], f"id {id}, part {of}") for id, of in (("int", given), ("bigint", stored)))
    assert as_stored(rows, target.schema).schema["part"].dataType.simpleString() == found


def _rows(spark: SparkSession, rows: list[str]) -> DataFrame:
    return spark.sql(f"SELECT * FROM VALUES {', '.join(f'({row})' for row in rows)} AS (id, at, value)")

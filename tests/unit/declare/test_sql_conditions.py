"""What is told of a condition in SQL when the location loads.
That Spark agrees is held in integration/test_conditions_in_spark.py."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lakehouse_assets.declare.sql_conditions import condition_problem


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("n >", "at the end of 'n >'"),
        ("n > 0 AND", "unexpected 'AND' after 'n > 0'"),
        ("(n > 0", "at the end of '(n > 0'"),
        ("n > 0)", "unexpected ')' after 'n > 0'"),
        ("n > 0 m > 2", "unexpected 'm' after 'n > 0'"),
        ("n is no null", "unexpected 'null' after 'n is no'"),
        ("n BETWEEN 1", "at the end of 'n BETWEEN 1'"),
        ("CASE WHEN n > 0 THEN true", "at the end of"),
        ("coalesce(n 0) > 0", "at the end of 'coalesce(n 0'"),
        ("op IN ('A', 'B'", "at the end of"),
        ("op = 'D", "is not closed"),
        ("n > 0 /* above", "is not closed"),
        ("", "it is empty"),
        ("-- later", "it is empty"),
        ("n > 0 AND Max (n) > 3", "Max() takes or returns many rows"),
        ("row_number() over (order by n) = 1", "row_number() takes or returns many rows"),
        ("sum(n) over () > 1", "sum() takes or returns many rows"),
        ("explode(tags) = 'x'", "explode() takes or returns many rows"),
    ],
)
def test_a_condition_that_spark_cant_read_is_told_with_the_place(condition: str, problem: str) -> None:
    assert problem in (condition_problem(condition) or "")


@pytest.mark.parametrize(
    ("condition", "column"),
    [
        ("m > 0", "m"),
        ("n > 0 and `odd name` = 1", "odd name"),
        ("s.part = n and t.part = n", "t"),
        ("exists(tags, tag -> tag = other)", "other"),
        ("coalesce(n, m[0], 3) > 0", "m"),
    ],
)
def test_a_column_that_the_row_does_not_have_is_told(condition: str, column: str) -> None:
    assert f"names the column {column!r}" in (condition_problem(condition, ["n", "s", "tags"]) or "")


@pytest.mark.parametrize(
    "condition",
    [
        "N > 0 and S.any.part = 1 and `tags`[0] = 'x'",
        "exists(tags, tag -> tag.part = n) and aggregate(tags, 0, (acc, t) -> acc + t) > 1",
        "n > (select max(other) from elsewhere)",
        "n = 'max(n)' and max = 3",
        "s.max > 0 and lake.own.max(n) > 0",
        "at > current_date or _file like 'x'",
    ],
)
def test_what_the_text_does_not_tell_is_left_to_spark(condition: str) -> None:
    assert condition_problem(condition, ["n", "s", "tags", "max", "at"]) is None


def test_the_parser_is_imported_only_where_there_is_a_condition() -> None:
    code = (
        "import sys; from lakehouse_assets.declare.sql_conditions import condition_problem as problem;"
        "before = 'sqlglot' in sys.modules; problem('n > 0'); print(before, 'sqlglot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]

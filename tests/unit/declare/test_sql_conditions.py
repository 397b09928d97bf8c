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
        ("op = 'D", "has no end"),
        ("n > 0 /* above", "has no end"),
        ("", "it is empty"),
        ("-- later", "it is empty"),
    ],
)
def test_a_condition_that_spark_cant_read_is_told_with_the_place(condition: str, problem: str) -> None:
    assert problem in (condition_problem(condition) or "")


def test_the_parser_is_imported_only_where_there_is_a_condition() -> None:
    code = (
        "import sys; from lakehouse_assets.declare.sql_conditions import condition_problem as problem;"
        "before = 'sqlglot' in sys.modules; problem('n > 0'); print(before, 'sqlglot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]

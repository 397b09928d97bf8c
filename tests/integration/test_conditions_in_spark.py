"""What is refused when the location loads, held against Spark's own parser and Iceberg's own list of names.
Of conditions: Spark's examples of all its functions, more of its syntax, and its keywords as names of columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

import pytest
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession

from lakehouse_assets.declare.sql_conditions import condition_problem
from lakehouse_assets.type_text import RESERVED

pytestmark = [pytest.mark.spark, pytest.mark.long("For changes of the versions of Spark, of Iceberg or of SQLGlot.")]

SYNTAX = r"""
n == 0 AND m <=> 3 OR NOT z != 1
!(n > 0) or isnull(n)
n NOT BETWEEN -1 AND 3
n IN (1, 2L, 3S, 4Y, 1.5BD, .5, 5., 1e3, -1D)
(a, b) IN ((1, 2), (3, 4))
name NOT LIKE 'a%' ESCAPE '/'
name LIKE ANY ('a%', 'b%') OR name NOT ILIKE ALL ('a%', 'b%')
name RLIKE '^[a-z]+$' and name REGEXP '^\\d+$'
name = 'it''s' or name = "it's" or name = 'it\'s' or name = r'\d' or name = 'a' 'b'
x = X'1F' or x = x '1f'
day = DATE '2020-01-01' and at >= timestamp_ntz'2020-01-01 00:00:00'
day > current_date - INTERVAL 3 DAYS and at < now() - INTERVAL '3 04:00:00' DAY TO SECOND
at > now() - interval '3 days 2 hours' + interval -3 days
n % 2 = 0 or n DIV 2 = 1 or n & 1 = 1 or n ^ 1 = 1 or ~n = 1 or n << 2 > 1 or n >>> 2 > 1
CASE WHEN n > 0 THEN true WHEN m IS NULL THEN false ELSE n NOT IN (1) END
CASE n WHEN 1 THEN -1 ELSE +1 END > 0
IF(n > 0, true, false) and iff(n > 0, true, false)
CAST(n AS DECIMAL(10, 2)) > 0 and try_cast(n as int) is not null and n::decimal(10, 2) > 0
s.part.deep > 0 and arr[0] = 1 and m['a'].b[1].c = 3 and t.`odd name` = 1 and `a``b` > 0
exists(arr, x -> x > 0) and aggregate(arr, 0, (acc, x) -> acc + x, acc -> acc * 10) > 0
struct(a as x, b y).x = 1 and named_struct('a', 1).a = 1
extract(YEAR FROM day) = 2020 and trim(BOTH 'x' FROM name) = 'y' and substring(name FROM 1 FOR 2) = 'ab'
position('a' IN name) = 1 and overlay(name PLACING 'x' FROM 3) = 'y'
timestampdiff(DAY, a, b) > 3 and dateadd(DAY, 3, a) > b and datediff(a, b) > 3
name COLLATE UTF8_LCASE = 'x'
n > (SELECT max(x) FROM t) and EXISTS (SELECT 1 FROM t)
percentile_cont(0.5) WITHIN GROUP (ORDER BY n) > 1
x IS NOT TRUE and x IS UNKNOWN and x IS DISTINCT FROM y
current_user = 'x' and localtimestamp > at
spark_catalog.default.f(n) > 0 and mask(name, lowerChar => 'q') = 'x'
j:a.b[0]::int = 1 and variant_get(v, '$.a', 'int') > 0
n > 0 and regexp(name, 'x') and like(name, 'x', '/') and left(name, 1) = right(name, 1)
int(n) > 0 and date(x) = day and boolean(n)
amount > 0 -- a comment
/* a comment */ amount > 0
1a > 0 and _a > 0 and n !> 3
n > :param and m > ?
"""
FORMS = (
    "{} = 1", "n > {}", "n > 0 or {} > 1", "{} is null", "{} in (1, 2)", "{} like 'a%'", "{} between 1 and 2",
    "coalesce({}, 1) > 0", "({} > 0)", "s.{}.x = 1", "{}.part = 1", "{}[0] = 1", "{}::int = 1", "cast({} as int) = 1",
)  # fmt: skip
"""How a column is written in conditions."""
NAMED_OTHERWISE = {"not between 1 and 2", "not in (1, 2)", "(if > 0)", "n > 0 or if > 1"}
"""A column of this name is quoted by backticks."""


@pytest.fixture(scope="module")
def takes(jvm: SparkSession) -> Callable[[str], bool]:
    parser = jvm._jsparkSession.sessionState().sqlParser()

    def spark_takes(condition: str) -> bool:
        try:
            parser.parseExpression(f"(\n{condition}\n)")  # as worker/row_checks.py has it
        except ParseException:
            return False
        return True

    return spark_takes


def _refused(
    conditions: list[str], takes: Callable[[str], bool], columns: Collection[str] | None = None
) -> dict[str, str]:
    """Those that Spark takes, with the reason."""
    problems = {condition: condition_problem(condition, columns) for condition in conditions}
    return {condition: problem for condition, problem in problems.items() if problem and takes(condition)}


def test_spark_takes_what_is_tried_here(takes: Callable[[str], bool]) -> None:
    assert [line for line in SYNTAX.strip().splitlines() if not takes(line)] == []


def test_no_syntax_of_spark_is_refused(takes: Callable[[str], bool]) -> None:
    assert _refused(SYNTAX.strip().splitlines(), takes) == {}


def test_no_function_of_spark_is_refused(jvm: SparkSession) -> None:
    infos = jvm._jvm.org.apache.spark.sql.api.python.PythonSQLUtils.listBuiltinFunctionInfos()
    texts = [info.getExamples().replace("_FUNC_", info.getName()) for info in infos]
    calls = [call for text in texts for call in re.findall(r"> SELECT (.*?);\s*$", text, re.MULTILINE)]
    assert len(calls) > 700

    def filters(condition: str) -> bool:
        try:
            return bool(jvm.range(1).where(f"isnotnull(\n{condition}\n)"))
        except AnalysisException:
            return False

    assert _refused(calls, takes=filters, columns=["id"]) == {}


@pytest.mark.slow("The first of its file starts Spark.")
def test_no_name_of_a_column_is_refused(jvm: SparkSession, takes: Callable[[str], bool]) -> None:
    words = [row.keyword.lower() for row in jvm.sql("SELECT keyword FROM sql_keywords()").collect()]
    assert len(words) > 300
    refused = _refused([form.format(word) for word in words for form in FORMS], takes)
    assert set(refused) <= NAMED_OTHERWISE


@pytest.mark.parametrize("condition", ["n >", "n > 0 AND", "(n > 0", "n > 0 m > 2", "n is no null", "op = 'D", ""])
def test_spark_refuses_what_is_refused(takes: Callable[[str], bool], condition: str) -> None:
    assert condition_problem(condition)
    assert not takes(condition)


def test_the_names_that_iceberg_keeps_for_itself_are_refused(jvm: SparkSession) -> None:
    listed = jvm._jvm.java.lang.Class.forName("org.apache.iceberg.MetadataColumns").getDeclaredField("META_COLUMNS")
    listed.setAccessible(True)
    assert {*listed.get(None), "_partition"} == set(RESERVED)

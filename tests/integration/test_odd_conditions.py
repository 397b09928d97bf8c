"""Conditions that a worker takes or refuses before its step runs, on real Spark: odd ones that are right load and run,
and wrong ones are named.
Whether a text is one at all is test_conditions_in_spark.py's."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.modes import Merge
from lakehouse_assets.declare.sql_conditions import OF_MANY_ROWS
from lakehouse_assets.declare.table import Table
from lakehouse_assets.worker.failure import CheckError
from lakehouse_assets.worker.row_checks import refuse_unreadable, sql

pytestmark = pytest.mark.spark

COLUMNS = {
    "id": "long", "n": "int", "m": "int", "x": "double", "amount": "decimal(9,2)", "flag": "boolean",
    "name": "string", "op": "string", "j": "string", "bin": "binary",
    "day": "date", "at": "timestamptz", "local": "timestamp",
    "arr": "list<long>", "tags": "list<string>", "attrs": "map<string, long>",
    "s": "struct<lat: double, part: struct<deep: int>>", "points": "list<struct<x: int, y: int>>",
    "case": "string", "order": "int", "max": "int", "count": "int", "year": "int", "user": "string", "Mixed": "int",
}  # fmt: skip
"""Some are named like words of SQL, functions and units."""
VALID = r"""
n > 0 -- above zero
/* count(*) > 0 */ n > 0
name = 'max(id) > 0'
name <> "row_number() over (order by id)"
N > 0 AND Id > 0 and mixed > 0 and MIXED < 9
`max` > 0 and max > 0 and count between 0 and 9
`order` > 0 and order > 0 and case = 'x' and `case` is not null
year = 2020 and extract(YEAR FROM day) = 2020 and year(day) = 2020 and date_part('YEAR', at) > 1
user = 'x' or current_user = 'x' or current_user() = 'x' or session_user = 'x'
day <= current_date and at < current_timestamp and local < localtimestamp()
current_catalog() = 'spark_catalog' and current_database() is not null
day > current_date - INTERVAL 3 DAYS or day > current_date() - 3
at > now() - interval 3 days and at - local > interval '1' day
timestampdiff(DAY, at, local) < 3 and dateadd(MONTH, 1, day) > day and date_add(day, n) > day
timestampadd(HOUR, n, at) > at and datediff(WEEK, day, day) = 0 and date_trunc('week', at) < at
make_interval(1, n) is not null and make_date(year, n, m) < day
s.part.deep > 0 and s.lat between -90 and 90 and `s`.`part`.`deep` is not null and S.Part.DEEP < 9
arr[0] = 1 and attrs['a'] > 1 and attrs.a > 1 and points[0].x > 0 and points.x[0] > 0
try_element_at(arr, 1) > 0 and element_at(attrs, 'a') = 1 and get(arr, 3) is null
exists(arr, v -> v > n) and forall(tags, t -> t rlike '^[a-z]+$') and not exists(arr, id -> id < 0)
try_element_at(filter(points, p -> p.x > p.y), 1).x = 1 and size(filter(arr, (v, i) -> v > i)) >= 0
aggregate(arr, 0L, (acc, v) -> acc + v, acc -> acc * 10) >= 0 and reduce(arr, 0L, (a, b) -> a + b) >= 0
transform(arr, a -> aggregate(arr, a, (b, c) -> b + c + n))[0] > 0
array_sort(arr, (l, r) -> case when l < r then -1 when l > r then 1 else 0 end)[0] > 0
map_filter(attrs, (k, v) -> k = name and v > 1) is not null and transform_values(attrs, (k, v) -> v + n)['a'] > 1
zip_with(arr, arr, (a, b) -> a + b)[0] > 1 and array_max(arr) > 1 and array_min(arr) < 9
greatest(n, m) > least(n, m)
named_struct('a', n, 'b', m).a > 0 and struct(n, m).n > 0 and struct(n as a).a > 0
(n, m) IN ((1, 2), (3, 4)) and n in (1, 2L, 3S, 1.5BD, 1e3) and (n, name) <=> (1, 'x')
name NOT LIKE 'a%' ESCAPE '/' and name LIKE ANY ('a%', 'b%') and name NOT ILIKE ALL ('a%', 'b%')
name RLIKE '^[a-z]+$' and regexp_like(name, '\\d') and regexp(name, r'\d') and name rlike op
name = 'it''s' or name = "it's" or name = 'it\'s' or name = 'a' 'b' or name = ''
trim(BOTH 'x' FROM name) = 'y' and substring(name FROM 1 FOR 2) = 'ab' and position('a' IN name) = 1
overlay(name PLACING 'x' FROM 3) = 'y' and left(name, 1) = right(name, 1)
amount % 1 = 0 and n DIV 2 = 1 and n & 1 = 1 or n ^ 1 = 1 or ~n = 1 or n << 2 > 1 or n >>> 2 > 1
CAST(n AS DECIMAL(10, 2)) > 0 and try_cast(name as int) is not null or n::string = '1' or int(x) > 0
try_divide(n, m) > 1 and nullif(m, 0) is null and nvl2(n, m, id) > 0 and ifnull(n, 0) = 0 and if(n > 0, true, false)
CASE n WHEN 1 THEN -1 ELSE +1 END > 0 and IF(flag, true, n > m) and flag is not true and x is not distinct from n
x != 'NaN' and not isnan(x) and x < double('Infinity') and x = 1e-3D and x = -.5
get_json_object(j, '$.a') = 'b' and from_json(j, 'a INT, b STRING').a > 1 and parse_json(j):a::int = 1
from_json(j, 'STRUCT<n: INT>').n > 1 and json_array_length(j) > 0 and schema_of_json('{"zz": 1}') is not null
try_to_date(name, 'yyyy-MM-dd') = day and date_format(at, 'yyyy-MM') = '2020-01' and try_to_timestamp(name) is null
name COLLATE UTF8_LCASE = 'x' and collation(name) is not null and contains(lower(name), 'a') and startswith(name, 'a')
bin = X'1F' and hex(bin) = '1F' and octet_length(bin) > 0 and decode(bin, 'utf-8') is not null and md5(bin) is not null
xxhash64(id, name) % 2 = 0 and crc32(bin) > 0 and crc32(name) > 0
mask(name, lowerChar => 'q') = 'x' and split(name, ',')[0] = 'a'
concat_ws('-', tags, name) <> '' and name || op <> ''
id > (SELECT max(v) FROM VALUES (1), (2) AS t(v)) and id in (select v from values (1L) as t(v))
exists (select 1 from values (1) as t(zz) where zz > 0) or n > (select count(*) from range(3))
coalesce(n, raise_error('no n')) > 0 or true
assert_true(id is not null or n is null) is null
decode(n, 1, 'one', 'other') = 'one' and coalesce(name, '') <> 'it is a max( count('
null
true
"""
WRONG = {
    "corr(id, n) > 0": "corr",
    "percentile_cont(0.5) WITHIN GROUP (ORDER BY n) > 1": "WHERE",
    "regr_count(n, m) filter (where n > 0) > 1": "WHERE",
    "cume_dist() over (order by id) = 1": "window function",
    "json_tuple(j, 'a') = '1'": "enerator",
    "rand() < 2": "on-deterministic",
    "nosuch(id) > 0": "`nosuch`",
    "length(name, 2) = 1": "requires 1 parameter",
    "n > 'a' || arr": "DATATYPE_MISMATCH",
    "n": "DATATYPE_MISMATCH",
    "s.part.zz > 0": "`zz`",
    "name rlike '('": "Unclosed group",
    r"name like 'a\\a\\'": "escape character",
    "to_date(name, 'YYYY-qq') = day": "YYYY-qq",
}
"""Conditions that load, with what is told of them before the step runs."""


@pytest.fixture(scope="module")
def rows(jvm: SparkSession) -> DataFrame:
    """Rows of the table, one without values."""
    types = {"long": "bigint", "timestamptz": "timestamp", "timestamp": "timestamp_ntz"}
    schema = ", ".join(
        f"`{name}` {types.get(of, of.replace('list<', 'array<').replace('long', 'bigint'))}"
        for name, of in COLUMNS.items()
    )
    at = datetime(2020, 1, 2, tzinfo=UTC)
    values = (
        *(1, 2, 3, 0.5, Decimal("1.50"), True, "a", "D", '{"a": 1}', b"\x1f"),
        *(date(2020, 1, 2), at, at.replace(tzinfo=None), [1, 2], ["a"], {"a": 2}, (0.5, (1,)), [(1, 2)]),
        *("x", 1, 1, 1, 2020, "x", 1),
    )
    return jvm.createDataFrame([values, (None,) * len(COLUMNS)], schema)


def declared(checks: dict[str, str]) -> Table:
    columns = [column(name, of) for name, of in COLUMNS.items()]
    return Table(identifier="demo.odd", columns=columns, step="tests.support.steps:numbers", checks=checks)


@pytest.mark.slow("The first of its file starts Spark, which makes code of fifty conditions.")
def test_odd_conditions_load_and_run(rows: DataFrame) -> None:
    lines = VALID.strip().splitlines()
    assert len(lines) > 50
    checks = declared({line: line for line in lines}).checks
    refuse_unreadable(rows, checks)
    counts = rows.agg(*(F.count_if(sql(line)) for line in lines)).first()
    assert dict(zip(lines, counts or (), strict=True))["N > 0 AND Id > 0 and mixed > 0 and MIXED < 9"] == 1


@pytest.mark.parametrize(("condition", "problem"), WRONG.items())
def test_a_wrong_condition_is_named_before_the_step(rows: DataFrame, condition: str, problem: str) -> None:
    checks = declared({"fine": "n > 0", "wrong": condition}).checks
    with pytest.raises(CheckError) as caught:
        refuse_unreadable(rows, checks)
    assert f"the check 'wrong' ({condition}) can't be evaluated: " in str(caught.value)
    assert problem in str(caught.value)


def largest() -> Column:
    return F.max("id") > 0


def test_so_is_a_wrong_function(rows: DataFrame) -> None:
    with pytest.raises(CheckError, match="the check 'own'"):
        refuse_unreadable(rows, {"own": f"{__name__}:largest"})


@pytest.mark.parametrize("delete_when", ["nosuch(gone)", "length(name, 1) = 1", "corr(id, n) > 0"])
def test_a_delete_when_that_no_columns_make_right_is_named(rows: DataFrame, delete_when: str) -> None:
    assert Merge(["id"], delete_when=delete_when)
    with pytest.raises(CheckError) as caught:
        refuse_unreadable(rows, {}, delete_when)
    assert f"delete_when ({delete_when}) can't be evaluated: " in str(caught.value)


@pytest.mark.parametrize(
    "delete_when", ["gone", "gone.at > at", "name + 1 > '2020' and n.part = 1", "n like arr", "s = 1"]
)
def test_what_the_steps_columns_may_make_right_is_left_for_later(rows: DataFrame, delete_when: str) -> None:
    refuse_unreadable(rows, {}, delete_when)


def test_what_is_refused_at_load_spark_refuses_as_well(jvm: SparkSession) -> None:
    infos = jvm._jvm.org.apache.spark.sql.api.python.PythonSQLUtils.listBuiltinFunctionInfos()
    groups = {info.getName(): info.getGroup() for info in infos}
    assert {groups[name] for name in OF_MANY_ROWS} == {"agg_funcs", "window_funcs", "generator_funcs"}

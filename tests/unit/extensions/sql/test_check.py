"""What is refused of a query before it runs, and what is not: real queries, and each kind of mistake."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.modes import Merge
from lakehouse_assets.declare.table import Table
from lakehouse_assets.extensions.sql.check import Check
from lakehouse_assets.extensions.sql.query import parse
from lakehouse_assets.extensions.sql.tables import tables_read
from tests.support.tables import DAYS, numbers, whole

REGIONS = dg.StaticPartitionsDefinition(["north", "south"])
BOTH = dg.MultiPartitionsDefinition({"day": DAYS, "region": REGIONS})
ORDERS = numbers(
    identifier="demo.orders",
    columns=[
        column("day", "date", required=True),
        column("id", "long", required=True),
        column("region", "string", required=True),
        column("customer", "struct<name: string, address: struct<city: string>>"),
        column("tags", "map<string, string>"),
        column("lines", "list<struct<sku: string, n: int>>"),
        column("at", "timestamptz"),
    ],
    sorted_by=["id"],
    unique=["id"],
)
MERGE = Merge(["n"], delete_when="_change_type = 'DELETE'", order_by="_change_type")
TABLES = {table.identifier: table for table in (ORDERS, numbers(), whole())}


def check(text: str, table: Table | None = None) -> Check:
    return Check(table or whole(), "shop/x.sql", parse(text), TABLES)


def problems(text: str, table: Table | None = None) -> list[str]:
    return [problem.removeprefix("shop/x.sql:").strip() for problem in check(text, table).problems()]


GOOD = "SELECT id AS n, region AS text FROM lake.demo.orders"


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (GOOD.replace("region ", "regin "), "1:17: the query's tables have no column regin; similar ones: region"),
        (
            "SELECT o.ID AS n, o.regin AS text FROM lake.demo.orders o",
            "1:21: lake.demo.orders has no column regin; similar ones: region",
        ),
        (
            GOOD.replace("orders", "order"),
            "1:37: no table lake.demo.order is declared"
            "; similar ones: lake.demo.orders, lake.demo.whole, lake.demo.numbers",
        ),
        (GOOD.replace("lake.", ""), "1:37: there is no table demo.orders in the query: write lake.demo.orders"),
        (GOOD.replace("lake.demo.", ""), "1:37: there is no table orders in the query: write lake.demo.orders"),
        (
            GOOD.replace("lake.demo.orders", "nowhere"),
            "1:37: there is no table nowhere in the query; tables of the lake begin with lake.",
        ),
        (GOOD.replace(" AS n", ""), "its columns are not those of demo.whole: missing n, unknown id"),
        (
            GOOD + " WHERE day IN (:keys)",
            "1:68: there is no parameter :keys; a table without Dagster partitions has none",
        ),
        (
            "SELECT count(*), '' AS text FROM lake.demo.orders",
            "column 1 of the result, COUNT(*), has no name: add one, such as AS n",
        ),
        ("SELECT 1 AS n, 2 AS N, '' AS text", "its result has n twice: leave one out, or name it otherwise"),
        ("SELECT x.id AS n, '' AS text FROM lake.demo.orders o", "1:8: there is no table x here; there is o"),
        (
            "SELECT n, txt AS text FROM changes('lake.demo.whole')",
            "1:11: the query's tables have no column txt; similar ones: text",
        ),
        ("SELECT n, text FROM lak.demo.whole", "1:21: there is no catalog lak: write lake.demo.whole"),
        ("SELECT ? AS n, '' AS text", "1:8: ? is no parameter here: parameters have names, such as :start_date"),
        ("SELECT 1 AS n, '' AS größe", "1:22: Spark takes the name größe only in back quotes: `größe`"),
        ("SELECT * FROM lake.demo.numbers", "its columns are not those of demo.whole: missing none, unknown day"),
    ],
)
def test_mistakes_are_told_with_their_place_and_cure(wrong: str, problem: str) -> None:
    assert problems(wrong)[0] == problem


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "select ID as N, `Region` as Text from lake.demo.orders",
        "WITH orders AS (SELECT 1L AS x) SELECT x AS n, 'a' AS text FROM orders",
        "WITH o AS (SELECT id, region FROM lake.demo.orders) SELECT * FROM o AS whole(n, text)",
        "SELECT * FROM lake.demo.whole",
        "SELECT w.* FROM lake.demo.whole w JOIN lake.demo.orders o ON o.id = w.n",
        "SELECT * EXCEPT (day) FROM lake.demo.numbers",
        "SELECT id AS n, customer.address.city AS text FROM lake.demo.orders",
        "SELECT o.id AS n, o.customer.name AS text FROM lake.demo.orders o WHERE o.tags['a'] = 'b'",
        "SELECT id AS n, tags.a AS text FROM lake.demo.orders",
        "SELECT id AS n, line.sku AS text FROM lake.demo.orders LATERAL VIEW explode(lines) e AS line",
        "SELECT id AS n, e.col.sku AS text FROM lake.demo.orders, LATERAL explode(lines) e",
        "SELECT id AS n, e.l.sku AS text FROM lake.demo.orders, LATERAL explode(lines) AS e(l)",
        "SELECT size(filter(lines, l -> l.n > 1)) AS n, region AS text FROM lake.demo.orders",
        "SELECT sum(id) AS n, upper(region) AS text FROM lake.demo.orders GROUP BY ALL HAVING n > 1 ORDER BY text",
        "SELECT id AS a, a + 1 AS n, region AS text FROM lake.demo.orders".replace("id AS a, a + 1 AS n", "id AS n"),
        "SELECT n, text FROM (SELECT id AS n, region AS text, row_number() OVER (ORDER BY id)"
        " AS r FROM lake.demo.orders)"
        " WHERE r = 1",
        "SELECT id AS n, region AS text FROM lake.demo.orders"
        " QUALIFY row_number() OVER (PARTITION BY id ORDER BY at) = 1",
        "SELECT id AS n, region AS text FROM lake.demo.orders o"
        " WHERE EXISTS (SELECT 1 FROM lake.demo.whole w WHERE w.n = o.id)",
        "SELECT id AS n, region AS text FROM lake.demo.orders WHERE id IN (SELECT n FROM lake.demo.whole)",
        "SELECT id AS n, region AS text FROM lake.demo.orders EXCEPT SELECT n, text FROM lake.demo.whole",
        "SELECT id AS n, region AS text FROM lake.demo.orders UNION ALL SELECT n, anything FROM lake.finance.rates",
        "SELECT n, text FROM lake.finance.rates JOIN lake.demo.orders USING (id)",
        "SELECT id AS n, date_format(dateadd(DAY, 1, at), 'y') AS text"
        " FROM lake.demo.orders WHERE at < current_timestamp",
        "SELECT year(at) AS n, extract(HOUR FROM at)::string AS text FROM lake.demo.orders",
        "SELECT n, text FROM (SELECT region, id FROM lake.demo.orders)"
        " PIVOT (sum(id) FOR region IN ('north' AS n, 'south' AS text))",
        "SELECT n, text FROM lake.demo.orders UNPIVOT (n FOR text IN (id))",
        "SELECT snapshot_id AS n, operation AS text FROM lake.demo.orders.snapshots",
        "SELECT id AS n, _file AS text FROM lake.demo.orders",
        "SELECT id AS n, _metadata.file_path AS text FROM lake.demo.orders",
        "SELECT n, text FROM lake.demo.orders.tag_old VERSION AS OF 3",
        "SELECT n, text FROM parquet.`s3://bucket/x`",
        "SELECT n, text FROM range(3) AS r(n), VALUES ('a') AS v(text)",
        "SELECT n, text, _change_type FROM changes('lake.demo.whole')",
        "SELECT id AS n, `group` AS text FROM (SELECT id, region AS `group` FROM lake.demo.orders)",
        "SELECT named_struct('n', id).n AS n, region AS text FROM lake.demo.orders",
        "SELECT /*+ BROADCAST(o) */ CAST(id AS long) AS n,"
        " CASE WHEN true THEN region END AS text FROM lake.demo.orders AS o",
        "SELECT id AS n, region AS text FROM lake.demo.orders TABLESAMPLE (10 PERCENT)",
        "FROM lake.demo.orders SELECT id AS n, region AS text",
    ],
)
def test_what_spark_can_run_is_not_refused(text: str) -> None:
    assert problems(text, whole(reads=["finance.rates"])) in (
        [],
        ["its columns are not those of demo.whole: missing none, unknown _change_type"],
    )


def test_a_table_of_another_domain_need_not_be_declared() -> None:
    assert problems("SELECT n, text FROM lake.finance.rates") == []
    assert [read.name for read in tables_read(parse("SELECT n FROM lake.finance.rates.branch_audit"))] == [
        "finance.rates.branch_audit"
    ]
    (read,) = tables_read(parse("SELECT n FROM lake.finance.rates.files"))
    assert read.name == "finance.rates"


@pytest.mark.parametrize(
    ("partitions", "names"),
    [
        (DAYS, {"keys", "start", "end", "start_date", "end_date"}),
        (REGIONS, {"keys", "region"}),
        (BOTH, {"keys", "start", "end", "start_date", "end_date", "day", "region"}),
    ],
)
def test_each_kind_of_partitions_has_its_parameters(partitions: dg.PartitionsDefinition, names: set[str]) -> None:
    by = ["day", "region"] if partitions is BOTH else ["day"] if partitions is DAYS else ["region"]
    table = numbers(columns=ORDERS.columns, partitions=partitions, partitioned_by=by, sorted_by=(), unique=())
    for name in ("keys", "start", "end", "start_date", "end_date", "day", "region", "n"):
        query = f"SELECT * FROM lake.demo.orders WHERE day = :{name}"
        assert (problems(query, table) == []) is (name in names), name


def remarks(text: str, **options: Any) -> list[str]:
    return [*check(text, numbers(columns=ORDERS.columns, sorted_by=(), unique=(), **options)).remarks()]


def test_a_query_that_reads_all_partitions_is_remarked_on() -> None:
    everything = "SELECT * FROM lake.demo.orders"
    told = "shop/x.sql:1:15: it reads all partitions of demo.orders: nothing compares its partition column day, as"
    (remark,) = remarks(everything)
    assert remark == f"{told} day >= :start_date AND day < :end_date would"
    for filtered in (" WHERE day = :start_date", " o JOIN lake.demo.whole w ON o.day = current_date()"):
        assert remarks(everything + filtered) == []
    assert remarks(everything, deps=[dg.AssetDep(ORDERS.key, partition_mapping=dg.AllPartitionMapping())]) == []
    assert len(remarks(f"{everything} WHERE id > 1")) == 1
    assert [*check(everything, whole()).remarks()] == []  # a table without partitions reads all


def test_results_that_change_each_time_are_remarked_on() -> None:
    (remark,) = check("SELECT 1 AS n, uuid() AS text").remarks()
    assert "uuid() gives other rows each time" in remark


def test_rows_of_a_merge_may_have_the_columns_of_its_conditions() -> None:
    table = whole(write_mode=Merge(["n"], delete_when="gone OR _change_type = 'DELETE'", order_by="at"), unique=())
    assert problems("SELECT 1 AS n, '' AS text, true AS gone, now() AS at, '' AS _change_type", table) == []
    assert problems("SELECT 1 AS n, '' AS text, 2 AS other", table) != []

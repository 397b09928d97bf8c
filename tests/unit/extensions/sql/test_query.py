"""What is read of a query without Spark: that it is one, its parameters, its hash."""

from __future__ import annotations

import pytest

from lakehouse_assets.extensions.sql.query import QueryError, parse, place_in


def problem(text: str) -> tuple[str, str]:
    with pytest.raises(QueryError) as caught:
        parse(text)
    return caught.value.problem.partition(". If")[0], place_in(text, caught.value.offset)


@pytest.mark.parametrize(
    "text",
    [
        *("", " \n", "-- nothing\n", ";"),
        *("SELECT 1; SELECT 2", "SELECT 1;\n\nDROP TABLE lake.shop.orders", "SELECT 1 AS a; -- end\n; SELECT 2"),
        *("DROP TABLE t", "CREATE TABLE t AS SELECT 1", "CREATE VIEW v AS SELECT 1", "ALTER TABLE t ADD COLUMN c int"),
        *(
            "INSERT INTO t SELECT 1",
            "WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a",
            "DELETE FROM t",
            "UPDATE t SET a = 1",
        ),
        "MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE",
        *(
            "CALL lake.system.expire_snapshots('t')",
            "SET a = 1",
            "USE lake",
            "DESCRIBE t",
            "SHOW TABLES",
            "CACHE TABLE t",
        ),
        *("BEGIN SELECT 1; END", "SELECT", "SELECT a FROM", "SELECT 'open", "SELECT 1 /* open", "SELECT a b c", "(((("),
        "FROM t INSERT INTO x SELECT a",
    ],
)
def test_what_is_not_one_query_is_refused(text: str) -> None:
    problem(text)


def test_a_refusal_names_the_place() -> None:
    assert problem("SELECT 1 AS a;\n  DROP TABLE t") == (
        "here a second statement begins: write one query",
        "2:3",
    )
    assert problem("SELECT a,\n b c d FROM t")[1] == "2:6"
    assert problem("\n DELETE FROM t") == ("this is no query: write one SELECT, or WITH … SELECT", "2:2")


@pytest.mark.parametrize(
    "text",
    [
        *("SELECT 1 AS a;", "SELECT 1 AS a -- end", "/* head */ SELECT 1 AS a;;\n-- end\n", "(SELECT 1 AS a)"),
        *("WITH a AS (SELECT 1) SELECT * FROM a", "SELECT 1 UNION ALL SELECT 2"),
        *("SELECT ';' AS a", 'SELECT "a;b" AS a', "SELECT a FROM t QUALIFY row_number() OVER (ORDER BY a) = 1"),
        *("SELECT a, count(*) AS n FROM t GROUP BY ALL", "SELECT * EXCEPT (a) FROM t", "SELECT v:a.b::int AS b FROM t"),
        "SELECT * FROM t LATERAL VIEW OUTER explode(a) x AS y",
        "SELECT transform(a, x -> x + 1) AS a, m['k'], s.f.g"
        " FROM t WHERE at >= timestamp '2026-01-01 00:00:00 Europe/Berlin'",
        "SELECT * FROM t PIVOT (sum(n) FOR k IN ('a' AS a, 'b' AS b))",
    ],
)
def test_queries_are_read(text: str) -> None:
    query = parse(text)
    assert query.body in text
    assert not query.body.endswith(";")
    assert parse(query.body).canonical == query.canonical


def test_comments_and_layout_change_no_hash_and_all_else_does() -> None:
    query = parse("SELECT a, 'it''s' AS b FROM t WHERE a >= :start -- the rest")
    for same in (
        "-- head\r\nSELECT a,\r\n\t'it''s' AS b /* why */\r\nFROM t\r\nWHERE a >= :start;\r\n",
        "SELECT a,'it''s' AS b FROM t WHERE a>=:start",
    ):
        assert parse(same).canonical == query.canonical
    for other in (
        "SELECT a, 'it' 's' AS b FROM t WHERE a >= :start",
        "SELECT a, 'its' AS b FROM t WHERE a >= :start",
        "SELECT a, 'it''s' AS b FROM t WHERE a > :start",
        "SELECT a, 'it''s' AS b FROM t WHERE a >= ':start'",
        "SELECT /*+ BROADCAST(t) */ a, 'it''s' AS b FROM t WHERE a >= :start",
    ):
        assert parse(other).canonical != query.canonical


def test_parameters_are_found_where_spark_binds_them() -> None:
    text = """SELECT :start AS a, v:field, ':no', "x:no", `c:no`, -- :no
        CASE WHEN a = :end THEN :keys END AS c /* :no */ FROM t WHERE k IN (:keys) AND (k IN (1, :region)) LIMIT :n"""
    found = [(one.name, one.in_list) for one in parse(text).parameters]
    assert found == [
        *(("start", False), ("end", False), ("keys", False), ("keys", True)),
        *(("region", True), ("n", False)),
    ]
    assert all(text[one.start : one.end] == f":{one.name}" for one in parse(text).parameters)


def test_offsets_count_characters_not_bytes() -> None:
    text = "SELECT '🦆é' AS `größe`, :start AS a"
    (found,) = parse(text).parameters
    assert text[found.start : found.end] == ":start"
    assert place_in(text, found.start) == "1:25"


def test_calls_of_changes_are_found() -> None:
    text = "SELECT * FROM changes('lake.shop.orders') c JOIN CHANGES ( 'lake.shop.items' ) USING (id)"
    assert [text[call.start : call.end] for call in parse(text).changes] == [
        "changes('lake.shop.orders')",
        "CHANGES ( 'lake.shop.items' )",
    ]
    assert [call.table for call in parse(text).changes] == ["lake.shop.orders", "lake.shop.items"]

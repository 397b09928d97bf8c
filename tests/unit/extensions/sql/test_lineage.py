"""From which columns each column of a query is computed: of the shapes that queries have."""

from __future__ import annotations

import pytest

from lakehouse_assets.extensions.sql.lineage import column_lineage
from lakehouse_assets.extensions.sql.query import parse

COLUMNS = {"s.orders": ["id", "day", "amount", "customer"], "s.customers": ["id", "name", "address"]}


def lineage(text: str) -> dict[str, list[str] | None]:
    found = column_lineage(parse(text), COLUMNS)
    return {name: origins and [".".join(one).removeprefix("s.") for one in origins] for name, origins in found.items()}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT day, amount * 2 AS twice, count(*) AS n, 1 AS one FROM lake.s.orders GROUP BY ALL",
         {"day": ["orders.day"], "twice": ["orders.amount"], "n": [], "one": []}),
        ("SELECT o.*, name FROM lake.s.orders o JOIN lake.s.customers c ON c.id = o.customer",
         {**{name: [f"orders.{name}"] for name in COLUMNS["s.orders"]}, "name": ["customers.name"]}),
        ("WITH o AS (SELECT id, sum(amount) AS total FROM lake.s.orders GROUP BY id) SELECT max(total) AS most FROM o",
         {"most": ["orders.amount"]}),
        ("SELECT id AS x FROM lake.s.orders UNION ALL SELECT id FROM lake.s.customers",
         {"x": ["customers.id", "orders.id"]}),
        ("SELECT CASE WHEN day > '2026-01-01' THEN amount ELSE customer END AS x FROM lake.s.orders",
         {"x": ["orders.amount", "orders.customer", "orders.day"]}),
        ("SELECT address.city AS city FROM lake.s.customers", {"city": ["customers.address"]}),
        ("SELECT row_number() OVER (PARTITION BY customer ORDER BY day) AS r FROM lake.s.orders",
         {"r": ["orders.customer", "orders.day"]}),
        ("SELECT (SELECT max(name) FROM lake.s.customers c WHERE c.id = o.customer) AS x FROM lake.s.orders o",
         {"x": ["customers.name"]}),
        ("SELECT c.amount AS a, id AS b FROM changes('lake.s.orders') c", {"a": ["orders.amount"], "b": ["orders.id"]}),
        ("SELECT r.rate AS rate FROM lake.f.rates r", {"rate": ["f.rates.rate"]}),
        ("SELECT rate, id FROM lake.f.rates JOIN lake.s.orders ON true WHERE day > :start", {"rate": None}),
    ],
)  # fmt: skip
def test_each_column_has_its_origins(query: str, expected: dict[str, list[str] | None]) -> None:
    found = lineage(query)
    assert {name: found[name] for name in expected} == expected

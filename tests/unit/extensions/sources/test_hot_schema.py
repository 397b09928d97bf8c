"""Readers of what is hot, and workers that move it, read a source into columns of the same types."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from lakehouse_assets.declare.columns import column
from lakehouse_assets.extensions.sources.hot_and_cold import hot_schema
from lakehouse_assets.extensions.sources.kafka import KafkaTopic
from lakehouse_assets.extensions.sources.values import Avro
from tests.support.hot_tables import events_table

AT = datetime(2013, 1, 31, 6, tzinfo=UTC)
DAY = date(2013, 1, 31)
TYPES = {  # with a value as it is in JSON, and in the column
    "long": (5, 5),
    "string": ("a", "a"),
    "binary": ("a", b"a"),
    "date": ("2013-01-31", DAY),
    "timestamptz": ("2013-01-31T08:00:00+02:00", AT),
    "timestamp": ("2013-01-31T06:00:00", AT.replace(tzinfo=None)),
    "decimal(9,2)": ("1.50", Decimal("1.50")),
    "list<string>": (["a", None], ["a", None]),
    "list<date>": (["2013-01-31", None], [DAY, None]),
    "struct<day: date, tags: list<string>>": (
        {"day": "2013-01-31", "tags": ["a"], "other": 1},
        {"day": DAY, "tags": ["a"]},
    ),
    "list<struct<at: timestamptz, uuid: string>>": (
        [{"at": "2013-01-31T06:00:00Z"}, None],
        [{"at": AT, "uuid": None}, None],
    ),
    "list<list<decimal(9,2)>>": ([["1.50"], []], [[Decimal("1.50")], []]),
}


@pytest.mark.parametrize("type_", TYPES)
def test_values_are_read_by_the_schema_that_workers_have_too(type_: str) -> None:
    schema = hot_schema(table := events_table(columns=[column("c", type_)]))
    assert to_arrow_schema(from_arrow_schema(schema, prefer_timestamp_ntz=True)) == schema, "what Spark moves them as"
    written, expected = TYPES[type_]
    assert isinstance(table.source, KafkaTopic)
    values = [json.dumps({"c": written}).encode(), b'{"c": null}', b"{}"]
    found = table.source.value.parse(values, schema)
    assert found.schema == schema
    assert found["c"].to_pylist() == [expected, None, None]
    assert pl.DataFrame(pa.Table.from_batches([found]))["c"].to_list() == [expected, None, None]


def test_maps_of_avro_are_read_by_it_too() -> None:
    table = events_table(columns=[column("c", "map<string, list<long>>")], source=KafkaTopic("events", Avro()))
    schema = hot_schema(table)
    assert to_arrow_schema(from_arrow_schema(schema, prefer_timestamp_ntz=True)) == schema

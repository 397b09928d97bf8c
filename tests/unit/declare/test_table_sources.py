"""Declarations of tables with sources: what goes together, and what is refused with its reason."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.modes import Append, Merge, Overwrite
from lakehouse_assets.declare.row_source import client_environment, is_on_loopback
from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import DeclarationError
from lakehouse_assets.extensions.sources.kafka import KafkaTopic
from lakehouse_assets.extensions.sources.postgres import PostgresTable
from lakehouse_assets.extensions.sources.postgres_ddl import ddl
from lakehouse_assets.extensions.sources.values import Avro
from lakehouse_assets.step.window import MOVE
from tests.support.hot_tables import events_table, state_table

DAYS = dg.DailyPartitionsDefinition("2026-01-01")
BY_MERGE = r"needs Merge\(keys, delete_when='deleted'\)"


def test_a_table_with_a_source_needs_no_step() -> None:
    assert events_table().step == MOVE
    assert events_table(step="tests.support.change_reading_steps:followed").step != MOVE


@pytest.mark.parametrize(
    ("make", "options", "reason"),
    [
        (events_table, {"write_mode": Overwrite()}, r"needs Append\(\) .* found Overwrite"),
        (events_table, {"write_mode": Append(dedup_on=["n"])}, r"needs Append\(\)"),
        (events_table, {"partitions": DAYS}, "have Dagster partitions"),
        (events_table, {"columns": [column("at", "time")]}, "can't be read from JSON"),
        (events_table, {"source": KafkaTopic("events", Avro()), "columns": [column("at", "time")]}, "read from Avro"),
        (events_table, {"columns": [column("at", "list<time>")]}, "whose time can't be read from JSON"),
        (events_table, {"columns": [column("at", "map<string, long>")]}, "which can't be read from JSON"),
        (
            events_table,
            {"source": KafkaTopic("events", Avro()), "columns": [column("at", "struct<a: uuid>")]},
            "whose uuid can't be read from Avro: declare it string",
        ),
        (
            events_table,
            {"source": KafkaTopic("events", Avro()), "columns": [column("at", "map<int, long>")]},
            "the keys of Avro's maps are strings",
        ),
        (
            events_table,
            {"source": KafkaTopic("events", Avro(type="json"))},
            "value.type is 'json', expected one of avro",
        ),
        (events_table, {"source": KafkaTopic("events", skip=["5"])}, "of the form partition:offset@topic-id"),
        (events_table, {"source": KafkaTopic("events", floor=0)}, "source has floor=0"),
        (events_table, {"source": "kafka:events"}, "source is 'kafka:events'"),
        (state_table, {"write_mode": Append()}, BY_MERGE),
        (state_table, {"write_mode": Merge(["n"])}, BY_MERGE),
        (state_table, {"source": PostgresTable("State; DROP")}, "not of the form table or schema.table"),
        (state_table, {"source": PostgresTable("state", ignore=["text", "x"])}, r"ignore=\['text'\], which the table"),
        (state_table, {"columns": [column("n", "long"), column("pos", "long")]}, "reserves: pos"),
        (state_table, {"columns": [column("n", "long"), column("at", "uuid")]}, "can't be read from PostgreSQL"),
    ],
)
def test_what_cannot_work_is_refused(make: Any, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(DeclarationError, match=reason):
        make(**options)


def test_a_table_without_source_and_step_is_refused() -> None:
    with pytest.raises(DeclarationError, match="it has no step: name the function"):
        Table("shop.orders", [column("n", "long")])


def test_the_sql_names_columns_keys_and_types() -> None:
    columns = {"day": "date", "Amount": "decimal(9,2)", "at": "timestamptz"}
    lines = ddl(PostgresTable("shop.orders"), columns, ["day"]).splitlines()
    for line in (
        'CREATE TABLE IF NOT EXISTS "shop"."orders" (',
        '    "day" date NOT NULL,',
        '    "Amount" numeric(9,2),',
        '    PRIMARY KEY ("day")',
        'ALTER TABLE "shop"."orders" ADD COLUMN IF NOT EXISTS "at" timestamptz;',
    ):
        assert line in lines


@pytest.mark.parametrize(
    ("variables", "is_local"),
    [
        ({}, False),
        ({"PGHOST": "127.0.0.1"}, True),
        ({"PGHOST": "localhost", "KAFKA_BOOTSTRAP_SERVERS": "localhost:9092,127.0.0.1:9093"}, True),
        ({"PGHOST": "localhost", "KAFKA_BOOTSTRAP_SERVERS": "localhost:9092,kafka.example:9092"}, False),
        ({"PGHOST": "localhost", "PGHOSTADDR": "10.0.0.1"}, False),
        ({"PGHOST": "localhost", "PGSERVICE": "production"}, False),
        ({"PGHOST": "localhost", "PGSERVICEFILE": "/etc/services.conf"}, False),
    ],
)
def test_sources_are_local_if_all_that_is_named_is(
    variables: dict[str, str], is_local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in client_environment():
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_on_loopback() is is_local

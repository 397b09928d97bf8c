"""Iceberg partitions have the names of the Dagster keys that own them, and no broken key hides a table's health."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import dagster as dg
from pyiceberg.table import Table as IcebergTable
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.table import Table
from lakehouse_assets.maintenance.health.partition_health import keys_of
from tests.support.manifests import Crafted, sqlite_catalog
from tests.support.tables import DAYS, numbers


def created(folder: Path, table: Table) -> IcebergTable:
    return Crafted.create(sqlite_catalog(folder), table.schema, table.spec, table.identifier).table


def epoch_day(day: str) -> int:
    return (date.fromisoformat(day) - date(1970, 1, 1)).days


def test_a_day_has_its_key_and_days_outside_have_none(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    key_of = keys_of(numbers(), created(tmp_path, numbers()).metadata, instance)
    assert key_of(Record(epoch_day("2024-01-05"))) == "2024-01-05"
    assert key_of(Record(epoch_day("2025-01-05"))) is None
    assert key_of(Record(None)) is None


def test_several_iceberg_partitions_of_one_key(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    monthly = numbers(partitions=dg.MonthlyPartitionsDefinition("2024-01-01", end_date="2024-03-01"))
    key_of = keys_of(monthly, created(tmp_path, monthly).metadata, instance)
    assert {key_of(Record(epoch_day(day))) for day in ("2024-02-01", "2024-02-29")} == {"2024-02-01"}


def test_two_dimensions(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    kinds = dg.StaticPartitionsDefinition(["a", "b"])
    table = numbers(
        partitions=dg.MultiPartitionsDefinition({"day": DAYS, "text": kinds}), partitioned_by=["day", "text"]
    )
    key_of = keys_of(table, created(tmp_path, table).metadata, instance)
    assert key_of(Record(epoch_day("2024-01-05"), "b")) == "2024-01-05|b"
    assert key_of(Record(epoch_day("2024-01-05"), "c")) is None


def by_number(**options: object) -> Table:
    columns = [column("n", "long", required=True)]
    partitions = dg.DynamicPartitionsDefinition(name="ns")
    fixed = {"identifier": "demo.dynamic", "columns": columns, "step": "tests.support.steps:whole"}
    return Table(**{**fixed, "partitions": partitions, "partitioned_by": ["n"], **options})


def test_dynamic_keys_are_the_instances(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = created(tmp_path, by_number())
    assert keys_of(by_number(), table.metadata, instance)(Record(7)) is None
    instance.add_dynamic_partitions("ns", ["7"])
    assert keys_of(by_number(), table.metadata, instance)(Record(7)) == "7"


def test_a_dynamic_key_that_is_no_value_of_the_column_takes_only_the_names(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    instance.add_dynamic_partitions("ns", ["7", "seven"])
    assert keys_of(by_number(), created(tmp_path, by_number()).metadata, instance)(Record(7)) is None


def test_a_table_that_is_partitioned_otherwise_than_declared_has_no_keys(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    table = created(tmp_path, numbers())
    with table.update_spec() as update:
        update.remove_field("day")
        update.add_field("n", IdentityTransform(), "n")
    assert keys_of(numbers(), table.refresh().metadata, instance)(Record(epoch_day("2024-01-05"), 1)) is None


def test_a_table_without_dagster_partitions_has_none(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = numbers(partitions=None)
    assert keys_of(table, created(tmp_path, table).metadata, instance)(Record(epoch_day("2024-01-05"))) is None

"""A manifest is skipped only if it can't list a file of the partitions that are looked for.
What is done with the files that are found is in integration/test_landing.py."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, IdentityTransform, MonthTransform, TruncateTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
)

from lakehouse_assets.commit.manifests import Entries, Partitions, partition_of
from tests.support.forks import CountingIO

KINDS: list[tuple[Any, list[Any]]] = [
    (LongType(), [1, 5, -(2**40), None]),
    (StringType(), ["a", "", "a long text of more than sixteen characters", None]),
    (DateType(), [date(2024, 1, 1), date(1960, 1, 1), None]),
    (BooleanType(), [True, False, None]),
    (DecimalType(9, 2), [Decimal("1.50"), Decimal("-1.50"), None]),
    (DoubleType(), [1.5, float("inf"), -0.5, None]),
    (BinaryType(), [b"a", b"\xff\x00", None]),
]


def table_of(tmp_path: Path, kind: Any, spec: PartitionSpec) -> Table:
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("a")
    return catalog.create_table("a.b", Schema(NestedField(1, "x", kind)), partition_spec=spec)


def append_each(table: Table, values: list[Any]) -> None:
    for value in values:
        table.append(pa.Table.from_pylist([{"x": value}], schema=table.schema().as_arrow()))


def add_each(table: Table, values: list[Any]) -> None:
    """Without PyIceberg's Rust part, which its appends need for transforms."""
    for value in values:
        path = table.location_provider().new_data_location(f"{uuid4()}.parquet")
        with table.io.new_output(path).create() as stream:
            pq.write_table(pa.table({"x": pa.array([value], table.schema().as_arrow().field("x").type)}), stream)
        table.add_files([path])


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=lambda value: str(value)[:20])
def test_every_partition_is_found_in_its_manifest_and_most_are_skipped(
    tmp_path: Path, kind: Any, values: list[Any]
) -> None:
    table = table_of(tmp_path, kind, PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "x")))
    append_each(table, values)
    manifests = table.current_snapshot().manifests(table.io)
    found = Entries().read(table.io, manifests)
    assert [len(entries) for entries in found] == [1] * len(values)
    for manifest, (entry,) in zip(manifests, found, strict=True):
        wanted = Partitions(table.metadata, [partition_of(entry)])
        assert wanted.may_be_in(manifest)
        others = [other for other in manifests if other is not manifest]
        skipped = [other for other in others if not wanted.may_be_in(other)]
        assert skipped == others
    if isinstance(kind, DoubleType):
        nan = Partitions(table.metadata, [(0, Record(float("nan")))])
        assert all(map(nan.may_be_in, manifests)), "bounds say nothing of NaN"


@pytest.mark.parametrize(
    ("kind", "transform", "values"),
    [
        (LongType(), TruncateTransform(10), [1, 25, -3]),
        (StringType(), TruncateTransform(2), ["abc", "x"]),
        (TimestampType(), DayTransform(), [datetime(2024, 2, 29, 12), datetime(1969, 12, 31, 23)]),
        (DateType(), MonthTransform(), [date(2024, 2, 29), date(1969, 12, 31)]),
    ],
    ids=str,
)
def test_partitions_by_a_transform_are_found(tmp_path: Path, kind: Any, transform: Any, values: list[Any]) -> None:
    table = table_of(tmp_path, kind, PartitionSpec(PartitionField(1, 1000, transform, "part")))
    add_each(table, [*values, None])
    manifests = table.current_snapshot().manifests(table.io)
    for manifest, (entry,) in zip(manifests, Entries().read(table.io, manifests), strict=True):
        wanted = Partitions(table.metadata, [partition_of(entry)])
        assert [m for m in manifests if wanted.may_be_in(m)] == [manifest]


def test_a_manifest_of_another_spec_is_skipped(tmp_path: Path) -> None:
    table = table_of(tmp_path, TimestampType(), PartitionSpec(PartitionField(1, 1000, DayTransform(), "part")))
    add_each(table, [None])
    (manifest,) = table.current_snapshot().manifests(table.io)
    with table.update_spec() as update:
        update.add_identity("x")
    assert Partitions(table.metadata, [(0, Record(None))]).may_be_in(manifest)
    assert not Partitions(table.metadata, [(1, Record(None, None))]).may_be_in(manifest)
    assert not Partitions(table.metadata, [(0, Record(1))]).may_be_in(manifest)
    assert not Partitions(table.metadata, []).may_be_in(manifest)


def test_each_manifest_is_read_once(tmp_path: Path) -> None:
    table = table_of(tmp_path, LongType(), PartitionSpec())
    append_each(table, [1, 2, 3])
    entries, io = Entries(), CountingIO(table.io.properties)
    manifests = table.current_snapshot().manifests(io)
    CountingIO.manifests_read.clear()
    first = entries.read(io, manifests[:2])
    assert entries.read(io, manifests)[:2] == first
    assert sorted(CountingIO.manifests_read) == sorted(m.manifest_path for m in manifests)

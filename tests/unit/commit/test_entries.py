"""A manifest is skipped only if it can't list a file of the partitions that are looked for.
What is done with the files that are found is in integration/test_landing.py."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
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

from lakehouse_assets.commit.entries import Entries, Partitions, partition_of
from tests.support.forks import CountingIO

KINDS: list[tuple[Any, list[Any]]] = [
    (LongType(), [1, 5, -(2**40), None]),
    (StringType(), ["a", "", "a long text of more than sixteen characters", None]),
    (DateType(), [date(2024, 1, 1), date(1960, 1, 1), None]),
    (BooleanType(), [True, False, None]),
    (DecimalType(9, 2), [Decimal("1.50"), Decimal("-1.50"), None]),
    (DoubleType(), [1.5, float("inf"), float("nan"), None]),
    (BinaryType(), [b"a", b"\xff\x00", None]),
]


def table_of(tmp_path: Path, kind: Any, spec: PartitionSpec) -> Table:
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("a")
    return catalog.create_table("a.b", Schema(NestedField(1, "x", kind)), partition_spec=spec)


def append_each(table: Table, values: list[Any]) -> None:
    for value in values:
        table.append(pa.Table.from_pylist([{"x": value}], schema=table.schema().as_arrow()))


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
        is_nan = entry.data_file.partition[0] != entry.data_file.partition[0]
        assert len(skipped) >= (0 if is_nan else len(others) - 1), "bounds of NaN alone bound nothing"


@pytest.mark.parametrize("transform", [BucketTransform(4), TruncateTransform(2)], ids=str)
def test_partitions_by_a_transform_are_found(tmp_path: Path, transform: Any) -> None:
    table = table_of(tmp_path, LongType(), PartitionSpec(PartitionField(1, 1000, transform, "part")))
    append_each(table, [1, 2, 3, None])
    manifests = table.current_snapshot().manifests(table.io)
    for manifest, (entry,) in zip(manifests, Entries().read(table.io, manifests), strict=True):
        assert Partitions(table.metadata, [partition_of(entry)]).may_be_in(manifest)


def test_a_manifest_of_another_spec_is_skipped(tmp_path: Path) -> None:
    table = table_of(tmp_path, TimestampType(), PartitionSpec(PartitionField(1, 1000, DayTransform(), "part")))
    append_each(table, [None])
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

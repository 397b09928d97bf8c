"""Which files of an earlier partition spec a run may replace, must refuse, or has nothing to do with."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, TruncateTransform
from pyiceberg.types import IcebergType, IntegerType, LongType, NestedField

from lakehouse_assets.commit.change import FilesInRegion
from lakehouse_assets.declare.alignment import Alignment
from lakehouse_assets.errors import PublishRefused
from tests.support.manifests import Crafted, Listed, sqlite_catalog


@pytest.mark.parametrize(
    ("kind", "width", "key", "written"),
    [
        # As org.apache.iceberg.util.TruncateUtil computes it, whose int and long overflow.
        (IntegerType(), 10, -(2**31), 2**31 - 2),
        (IntegerType(), 10, -(2**31) + 7, 2**31 - 2),
        (LongType(), 10, -(2**63), 2**63 - 2),
        (LongType(), 10, -(2**31), 2**31 - 2),  # of a column that was one of ints
        (IntegerType(), 2**30 + 1, 2**30, 2**31 - 2),
        (IntegerType(), 10, 57, 50),
    ],
    ids=str,
)
def test_a_file_by_truncate_that_may_hold_a_key_is_not_passed_over_though_its_partition_overflowed(
    tmp_path: Path, kind: IcebergType, width: int, key: int, written: int
) -> None:
    schema = Schema(NestedField(1, "n", kind))
    old = PartitionSpec(PartitionField(1, 1000, TruncateTransform(width), "n_trunc"))
    made = Crafted.create(sqlite_catalog(tmp_path), schema, old)
    made.list([Listed((written,))])
    with made.table.update_spec() as update:
        update.remove_field("n_trunc")
        update.add_field("n", IdentityTransform(), "n_value")
    table = made.table.refresh()
    keys = dg.StaticPartitionsDefinition([str(key)])
    region = Alignment.of("demo.t", table.schema(), table.spec(), keys).region([str(key)])

    found = FilesInRegion(region, table, table.schema())
    (manifest,) = table.current_snapshot().manifests(table.io)
    assert found.may_be_in(manifest)
    (entry,) = manifest.fetch_manifest_entry(table.io)
    assert not found.include(entry.data_file)
    with pytest.raises(PublishRefused, match="only partly inside"):
        found.check()


def test_keys_whose_partitions_do_not_overflow_pass_over_the_files_of_others(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "n", IntegerType()))
    made = Crafted.create(
        sqlite_catalog(tmp_path), schema, PartitionSpec(PartitionField(1, 1000, TruncateTransform(10), "n_trunc"))
    )
    made.list([Listed((2**31 - 2,))])
    with made.table.update_spec() as update:
        update.remove_field("n_trunc")
        update.add_field("n", IdentityTransform(), "n_value")
    table = made.table.refresh()
    key = str(-(2**31) + 10)
    region = Alignment.of("demo.t", table.schema(), table.spec(), dg.StaticPartitionsDefinition([key])).region([key])
    found = FilesInRegion(region, table, table.schema())
    (manifest,) = table.current_snapshot().manifests(table.io)
    (entry,) = manifest.fetch_manifest_entry(table.io)
    assert not found.may_be_in(manifest)
    assert not found.include(entry.data_file)
    found.check()

"""Which keys make paths that storage does not take.
That a file system's limit is the real one for Spark: integration/test_partition_transforms.py."""

from __future__ import annotations

import dagster as dg
import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import StaticTable
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import SortOrder

from lakehouse_assets.commit.paths import check_paths
from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import PartitionRefused

PLACE = {"file": "file:///lake/demo/shops", "hdfs": "hdfs://lake/demo/shops", "s3": "s3://lake/demo/shops"}
SHOPS = dg.DynamicPartitionsDefinition(name="shops")


def check(keys: list[str], location: str, *terms: str, partitions: dg.PartitionsDefinition = SHOPS, **properties: str):
    table = Table(
        identifier="demo.shops",
        columns=[column("shop", "string"), column("city", "string"), column("n", "long")],
        step="tests.support.steps:numbers",
        partitions=partitions,
        partitioned_by=terms or ["shop"],
    )
    metadata = new_table_metadata(table.schema, table.spec, SortOrder(order_id=0), location, properties)
    check_paths(table.identifier, table.alignment.region(keys), StaticTable(("demo",), metadata, location, None, None))


@pytest.mark.parametrize(
    ("place", "longest"),
    [
        ("file", 255 - len("shop=")),
        ("hdfs", 255 - len("shop=")),
        ("s3", 1024 - 120 - len("/demo/shops" + "shop=")),
    ],
)
def test_a_key_is_as_long_as_its_place_allows(place: str, longest: int) -> None:
    check(["eu", "k" * longest], PLACE[place])
    with pytest.raises(PartitionRefused) as refused:
        check(["eu", "k" * (longest + 1)], PLACE[place])
    text = str(refused.value)
    assert "'demo.shops'" in text
    assert f"{longest + 1} characters" in text
    assert "k" * 41 not in text
    assert ("255" in text) == (place != "s3")
    assert ("1024" in text) == (place == "s3")


@pytest.mark.parametrize("key", ["ü" * 42, "~" * 84, "/" * 84])
def test_what_counts_is_the_key_as_it_is_encoded(key: str) -> None:
    check([key[:-1]], PLACE["file"])
    with pytest.raises(PartitionRefused):
        check([key], PLACE["file"])


def test_the_fields_of_a_partition_share_a_path_in_an_object_store_and_have_a_folder_each_elsewhere() -> None:
    both = dg.MultiPartitionsDefinition({"shop": SHOPS, "city": dg.DynamicPartitionsDefinition(name="cities")})
    keys = ["s" * 240 + "|" + "c" * 240]
    check(keys, PLACE["file"], "shop", "city", partitions=both)
    check(keys, PLACE["s3"], "shop", "city", partitions=both)
    with pytest.raises(PartitionRefused):
        check(["s" * 450 + "|" + "c" * 450], PLACE["s3"], "shop", "city", partitions=both)


def test_paths_without_partitions_take_any_key() -> None:
    flat = {"write.object-storage.enabled": "true", "write.object-storage.partitioned-paths": "false"}
    check(["k" * 1000], PLACE["file"], **flat)


def test_data_may_lie_elsewhere() -> None:
    check(["k" * 500], PLACE["file"], **{"write.data.path": "s3://data/shops"})
    with pytest.raises(PartitionRefused):
        check(["k" * 500], PLACE["s3"], **{"write.data.path": "file:///data/shops"})


def test_a_table_without_partitions_has_none() -> None:
    table = Table(identifier="demo.one", columns=[column("n", "long")], step="tests.support.steps:whole")
    metadata = new_table_metadata(table.schema, PartitionSpec(), SortOrder(order_id=0), PLACE["s3"], {})
    check_paths("demo.one", table.alignment.region([]), StaticTable(("demo",), metadata, PLACE["s3"], None, None))

"""A table's health is what its files are: against a plain count over the files, whatever they are.
How it is read is in test_look.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, LongType, NestedField, StringType

from lakehouse_assets.maintenance.health.health import TableHealth, size_limits, table_health
from lakehouse_assets.maintenance.health.partition_health import PartitionHealth
from lakehouse_assets.maintenance.health.summaries import LiveFile, summarize
from tests.support.manifests import DATA, EQUALITY, POSITIONS, Crafted, Listed, sqlite_catalog

SCHEMA = Schema(
    NestedField(1, "day", DateType()), NestedField(2, "carrier", StringType()), NestedField(3, "n", LongType())
)
BY_DAY = PartitionSpec(PartitionField(1, 1000, DayTransform(), "d"))
TARGET = 1024
Manifest = Sequence[LiveFile]


@pytest.fixture
def crafted(tmp_path: Path) -> Crafted:
    properties = {"write.target-file-size-bytes": str(TARGET)}
    return Crafted.create(sqlite_catalog(tmp_path), SCHEMA, BY_DAY, **properties)


def file(size: int = 1000, rows: int = 10, day: int | None = 0, content: Any = DATA, sequence: int = 1) -> LiveFile:
    return LiveFile(content, (day,), rows, size, sequence)


def health_of(
    table: Table, *manifests: Manifest, spec_id: int = 0, key_of: Callable[[Record], str | None] = lambda _: None
) -> TableHealth:
    limits = size_limits(table.metadata)
    found = [summary for files in manifests for summary in summarize(spec_id, files, limits)]
    return table_health("demo.crafted", table.metadata, 500, [], found, key_of)


def by_name(health: TableHealth) -> dict[str, PartitionHealth]:
    return {partition.name: partition for partition in health.partitions}


FILES = st.builds(
    file,
    size=st.sampled_from([0, 1, 127, 128, 129, 768, 769, 5000]),
    rows=st.integers(0, 100),
    day=st.none() | st.integers(0, 2),
    content=st.sampled_from([DATA, DATA, POSITIONS, EQUALITY]),
    sequence=st.integers(1, 9),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(manifests=st.lists(st.lists(FILES, max_size=6), max_size=4))
def test_it_is_a_count_of_the_files_however_they_are_spread_over_manifests(
    crafted: Crafted, manifests: list[list[LiveFile]]
) -> None:
    health = health_of(crafted.table, *manifests)
    files = [each for manifest in manifests for each in manifest]
    assert {partition.values for partition in health.partitions} == {each.partition for each in files}
    for partition in health.partitions:
        own = [each for each in files if each.partition == partition.values]
        data = [each for each in own if each.content is DATA]
        assert partition.files == len(data)
        assert partition.size == sum(each.size for each in data)
        assert partition.rows == sum(each.rows for each in data)
        assert partition.fragments == sum(each.size <= 128 for each in data)
        assert partition.fragment_size == sum(each.size for each in data if each.size <= 128)
        assert partition.undersized == sum(128 < each.size <= 768 for each in data)
        assert partition.undersized_size == sum(each.size for each in data if 128 < each.size <= 768)
        assert partition.delete_files == len(own) - len(data)
        assert 0 <= partition.rows_deleted_at_most <= partition.rows
    assert health.total("files") == sum(each.content is DATA for each in files)


def test_the_target_is_the_tables_own_or_icebergs_default(tmp_path: Path) -> None:
    catalog = sqlite_catalog(tmp_path)
    assert health_of(Crafted.create(catalog, SCHEMA, BY_DAY, "demo.a").table).target == 512 * 2**20
    options = {"write.target-file-size-bytes": "1000"}
    health = health_of(Crafted.create(catalog, SCHEMA, BY_DAY, "demo.b", **options).table)
    assert (health.target, *health.limits) == (1000, 125, 750)


def test_partitions_are_named_by_key_else_by_path(crafted: Crafted) -> None:
    table = crafted.table
    health = health_of(table, [file(day=0), file(day=1), file(day=None)], key_of={Record(0): "1970-01-01"}.get)
    assert sorted(by_name(health)) == ["1970-01-01", "d=1970-01-02", "d=null"]


def test_partitions_that_share_a_key_are_told_apart(tmp_path: Path) -> None:
    spec = PartitionSpec(
        PartitionField(1, 1000, DayTransform(), "d"), PartitionField(2, 1001, BucketTransform(4), "bucket")
    )
    table = Crafted.create(sqlite_catalog(tmp_path), SCHEMA, spec).table
    files = [LiveFile(DATA, (day, bucket), 1, 1, 1) for day, bucket in ((0, 1), (0, 2), (1, 3))]
    health = health_of(table, files, key_of=lambda partition: f"day {partition[0]}")
    assert sorted(by_name(health)) == [
        "day 0 (d=1970-01-01/bucket=1)",
        "day 0 (d=1970-01-01/bucket=2)",
        "day 1",
    ]


def test_a_table_without_partitions_is_one_of_them(tmp_path: Path) -> None:
    table = Crafted.create(sqlite_catalog(tmp_path), SCHEMA, PartitionSpec()).table
    (partition,) = health_of(table, [LiveFile(DATA, (), 1, 1, 1)]).partitions
    assert partition.name == "whole table"


def test_partitions_of_an_old_spec_have_their_own_path_and_never_a_key(tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "day"))
    table = Crafted.create(sqlite_catalog(tmp_path), SCHEMA, spec).table
    with table.update_spec() as update:
        update.remove_field("day")
        update.add_field("carrier", IdentityTransform(), "carrier")
    with table.update_schema(allow_incompatible_changes=True) as schema:
        schema.delete_column("day")
    table = table.refresh()
    health = health_of(table, [file(day=3)], spec_id=0, key_of=lambda _: "a key")
    assert [partition.name for partition in health.partitions] == ["day=1970-01-04"]


def test_equality_deletes_without_partition_hold_for_all_partitions(crafted: Crafted) -> None:
    table = crafted.table
    with table.update_spec() as update:
        update.remove_field("d")
    table = table.refresh()
    everywhere = summarize(1, [LiveFile(EQUALITY, (), 5, 10, 4)], size_limits(table.metadata))
    old = summarize(0, [file(day=0, rows=7, sequence=3), file(day=1, rows=8, sequence=4)], size_limits(table.metadata))
    health = table_health("demo.crafted", table.metadata, 1, [], [*everywhere, *old], lambda _: None)
    assert {p.name: p.rows_deleted_at_most for p in health.partitions if p.files} == {
        "d=1970-01-01": 7,
        "d=1970-01-02": 0,
    }


def test_equality_deletes_of_a_partition_hold_for_no_other(crafted: Crafted) -> None:
    files = [file(day=0, rows=7), file(day=1, rows=8), file(day=1, content=EQUALITY, sequence=4)]
    health = health_of(crafted.table, files)
    assert [partition.rows_deleted_at_most for partition in health.partitions] == [0, 8]


def test_what_only_spark_can_rewrite_is_known_before(crafted: Crafted) -> None:
    """An equality delete applies to older files only, one without partition to all; files keep the spec they had."""
    table = crafted.table
    new = [file(day=0, sequence=5), file(day=0, content=EQUALITY, sequence=5)]
    old = [file(day=1, sequence=4), file(day=1, content=EQUALITY, sequence=5), file(day=2, content=POSITIONS)]
    found = {p.name: p.needs_spark for p in health_of(table, new, old, [file(day=2)]).partitions}
    equality = ("equality deletes apply to its files",)
    assert found == {"d=1970-01-01": (), "d=1970-01-02": equality, "d=1970-01-03": ()}
    with table.update_spec() as update:
        update.remove_field("d")
    everywhere = summarize(1, [LiveFile(EQUALITY, (), 5, 10, 4)], size_limits(table.metadata))
    aged = summarize(0, [file(day=0, sequence=3), file(day=1, sequence=4)], size_limits(table.metadata))
    health = table_health("demo.crafted", table.refresh().metadata, 1, [], [*everywhere, *aged], lambda _: None)
    of_old_spec = "its files are of the old partition spec 0"
    assert {p.name: p.needs_spark for p in health.partitions if p.files} == {
        "d=1970-01-01": (of_old_spec, *equality),
        "d=1970-01-02": (of_old_spec,),
    }


def test_a_partition_was_written_when_its_newest_data_file_was(crafted: Crafted) -> None:
    for _ in range(2):
        table = crafted.list([Listed((0,))])
    first, second = table.metadata.snapshots
    files = [file(day=0, sequence=1), file(day=0, sequence=2), file(day=1, sequence=1), file(day=2, sequence=9)]
    found = health_of(table, files, [file(day=1, sequence=2, content=POSITIONS)])
    times = {p.name: p.written_ms for p in found.partitions}
    assert times == {"d=1970-01-01": second.timestamp_ms, "d=1970-01-02": first.timestamp_ms, "d=1970-01-03": None}


def test_partitions_have_the_keys_that_own_them(crafted: Crafted) -> None:
    keys = {0: "one", 1: "two", 2: "two", 3: None}
    found = health_of(crafted.table, [file(day=day) for day in keys], key_of=lambda partition: keys[partition[0]])
    assert {p.values[0]: p.key for p in found.partitions} == keys


def test_manifests_are_counted_by_what_they_list(crafted: Crafted) -> None:
    def manifest(n: int, content: ManifestContent, added: int = 0, existing: int = 0, deleted: int = 0) -> ManifestFile:
        counts = {"added_files_count": added, "existing_files_count": existing, "deleted_files_count": deleted}
        return ManifestFile.from_args(manifest_path=f"m{n}", manifest_length=10**n, content=content, **counts)

    data, deletes = ManifestContent.DATA, ManifestContent.DELETES
    manifests = [
        manifest(1, data, added=1),
        manifest(2, data, existing=1, deleted=3),
        manifest(3, deletes, added=1),
        manifest(4, data, deleted=2),
        manifest(5, deletes, deleted=2),
    ]
    health = table_health("demo.crafted", crafted.table.metadata, 1, manifests, [], lambda _: None)
    assert (health.data_manifests, health.delete_manifests, health.empty_manifests) == (2, 1, 2)
    assert (health.manifests, health.manifest_size) == (5, 111_110)


def test_the_last_write_is_no_rewrite(crafted: Crafted) -> None:
    assert health_of(crafted.table).last_write_ms is None
    written = crafted.list([Listed((0,))]).metadata.current_snapshot()
    assert written
    table = crafted.list([Listed((0,))], operation=Operation.OVERWRITE)
    rewritten = table.metadata.current_snapshot()
    assert rewritten
    assert rewritten.summary
    assert health_of(table).last_write_ms == rewritten.timestamp_ms
    replace = rewritten.model_copy(
        update={"summary": rewritten.summary.model_copy(update={"operation": Operation.REPLACE})}
    )
    snapshots = [s for s in table.metadata.snapshots if s.snapshot_id != replace.snapshot_id]
    metadata = table.metadata.model_copy(update={"snapshots": [*snapshots, replace]})
    found = table_health("demo.crafted", metadata, 1, [], [], lambda _: None)
    assert (found.last_write_ms, found.snapshots) == (written.timestamp_ms, 2)

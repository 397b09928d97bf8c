"""The health of tables on real catalogs and storages, and of tables that Spark wrote, against PyIceberg's own reading.
What a look reads and keeps is in unit/maintenance/test_look.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from pyiceberg.io import load_file_io
from pyiceberg.manifest import ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from lakehouse_assets.commit.manifests import live_entries
from lakehouse_assets.maintenance.health.look import look
from lakehouse_assets.maintenance.health.summaries import LiveFile, SummaryCache
from tests.support.forks import Daily, daily_rows
from tests.support.servers import SeaweedFS

DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")


@pytest.fixture
def cache(request: pytest.FixtureRequest, catalog_properties: dict[str, str], tmp_path: Path) -> SummaryCache:
    """Beside the tables: on local disk, or in the plain bucket of the REST catalog's S3."""
    prefix = (tmp_path / "health").as_uri()
    if catalog_properties["type"] == "rest":
        weed: SeaweedFS = request.getfixturevalue("weed")
        prefix = f"{weed.plain}/health-{uuid4().hex[:8]}"
    return SummaryCache(load_file_io(catalog_properties, prefix), prefix)


def listed(table: Table) -> list[tuple[ManifestFile, list[LiveFile]]]:
    """The live files of every manifest as PyIceberg reads them."""
    snapshot = table.current_snapshot()
    return [
        (manifest, [_live(entry) for entry in manifest.fetch_manifest_entry(table.io)])
        for manifest in (snapshot.manifests(table.io) if snapshot else [])
    ]


def _live(entry) -> LiveFile:
    assert entry.status is not ManifestEntryStatus.DELETED
    file = entry.data_file
    values = tuple(file.partition[at] for at in range(len(file.partition)))
    return LiveFile(file.content, values, file.record_count, file.file_size_in_bytes, entry.sequence_number)


def test_publishes_and_outsiders_commits_are_seen_at_the_next_look(daily: Daily, cache: SummaryCache) -> None:
    daily.append(daily_rows(*DAYS, each=2))
    assert look(daily.table, cache).total("files") == 3
    daily.publish("run", DAYS[:1], daily.stage("run", 0, DAYS[:1], daily_rows(DAYS[0], each=5)))
    daily.append(daily_rows(DAYS[2]))
    health = look(daily.table, cache)
    assert {partition.name: (partition.files, partition.rows) for partition in health.partitions} == {
        "day=2013-01-01": (1, 5),
        "day=2013-01-02": (1, 2),
        "day=2013-01-03": (2, 3),
    }
    tasks = list(daily.table.scan().plan_files())
    assert (health.total("files"), health.total("size")) == (4, sum(task.file.file_size_in_bytes for task in tasks))
    assert (health.snapshots, health.metadata_size) == (3, len(daily.table.io.new_input(daily.table.metadata_location)))


def test_what_is_kept_survives_and_may_be_torn_or_deleted(daily: Daily, cache: SummaryCache) -> None:
    for day in DAYS:
        daily.append(daily_rows(day))
    first, place = look(daily.table, cache), cache.location(daily.table.metadata.table_uuid)
    with cache.io.new_input(place).open() as stream:
        content = stream.read()
    assert look(daily.table, cache) == first
    with cache.io.new_output(place).create(overwrite=True) as stream:
        stream.write(content[:-5])
    assert look(daily.table, cache) == first
    cache.io.delete(place)
    assert look(daily.table, cache) == first


@pytest.mark.spark
def test_manifests_that_spark_wrote_are_read_as_pyiceberg_reads_them(
    worker: Callable[[], SparkSession], daily: Daily, cache: SummaryCache
) -> None:
    spark, name = worker(), f"lake.{daily.identifier}"
    values = ", ".join(f"(DATE'2013-01-0{n % 3 + 1}', 'C{n}', {n}L)" for n in range(300))
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    spark.sql(f"INSERT INTO {name} VALUES {values}")
    spark.sql(f"INSERT INTO {name} VALUES (DATE'2013-01-02', NULL, 1L)")
    spark.sql(f"DELETE FROM {name} WHERE flights % 10 = 3")
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD bucket(4, carrier)")
    spark.sql(f"INSERT INTO {name} VALUES {values}, (DATE'2013-01-01', NULL, 5L)")
    spark.sql(f"DELETE FROM {name} WHERE carrier = 'C7'")
    found = listed(daily.table)
    assert {manifest.partition_spec_id for manifest, _ in found} == {0, 1}
    assert {file.content.value for _, files in found for file in files} == {0, 1}
    assert any(None in file.partition for _, files in found for file in files)
    for manifest, files in found:
        assert [LiveFile.of(entry) for entry in live_entries(daily.table.io, manifest)] == files
    health = look(daily.table, cache)
    deleted = sum(file.rows for _, files in found for file in files if file.content.value == 1)
    assert 0 < health.total("rows_deleted_at_most") <= deleted
    assert health.total("rows") - health.total("rows_deleted_at_most") == daily.table.scan().to_arrow().num_rows

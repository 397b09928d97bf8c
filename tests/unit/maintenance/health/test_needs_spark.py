"""What of a table needs Spark, and what of its properties means nothing to a rewrite.
That such a table is left alone is in integration/test_compact.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.target import DEFAULTS
from lakehouse_assets.maintenance.health.needs_spark import reasons_of_table
from tests.support.forks import SCHEMA

HONOURED = {
    "write.parquet.compression-codec": "ZSTD",
    "write.parquet.compression-level": "3",
    "write.parquet.row-group-size-bytes": "1",
    "write.parquet.row-group-limit": "1",
    "write.parquet.page-size-bytes": "1",
    "write.parquet.page-row-limit": "1",
    "write.parquet.dict-size-bytes": "1",
    "write.parquet.row-group-check-min-record-count": "1",
}
HARMLESS = {
    "write.parquet.bloom-filter-enabled.column.a": "false",
    "write.parquet.bloom-filter-max-bytes": "1",
    "write.parquet.bloom-filter-fpp.column.a": "0.1",
    "write.target-file-size-bytes": "1",
    "write.data.path": "s3://b/data",
    "write.object-storage.enabled": "true",
    "write.delete.mode": "merge-on-read",
    "write.format.default": "PARQUET",
    **DEFAULTS,
}


@pytest.fixture
def metadata(tmp_path: Path) -> TableMetadata:
    catalog = load_catalog("lake", type="sql", uri="sqlite:///:memory:", warehouse=tmp_path.as_uri())
    catalog.create_namespace("a")
    return catalog.create_table("a.b", SCHEMA).metadata


def with_properties(metadata: TableMetadata, properties: dict[str, str]) -> TableMetadata:
    return metadata.model_copy(update={"properties": properties})


@pytest.mark.parametrize("properties", [{n: v} for n, v in (HONOURED | HARMLESS).items()], ids=str)
def test_what_the_writer_knows_needs_no_spark(metadata: TableMetadata, properties: dict[str, str]) -> None:
    assert not reasons_of_table(with_properties(metadata, properties))


@pytest.mark.parametrize(
    "properties",
    [
        {"write.parquet.bloom-filter-enabled.column.a": "true"},
        {"write.parquet.stats-enabled.column.a": "false"},
        {"write.parquet.anything-new": "1"},
        {"write.parquet.compression-codec": "lzo"},
        {"write.format.default": "avro"},
        {"write.object-storage.path": "s3://b/o"},
        {"encryption.key-id": "key"},
    ],
    ids=str,
)
def test_what_the_writer_does_not_know_needs_spark(metadata: TableMetadata, properties: dict[str, str]) -> None:
    (reason,) = reasons_of_table(with_properties(metadata, properties))
    assert next(iter(properties)) in reason


def test_another_format_version_needs_spark(metadata: TableMetadata) -> None:
    assert reasons_of_table(metadata.model_copy(update={"format_version": 3})) == ["its format version is 3, not 2"]

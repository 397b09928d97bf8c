"""Healths as tests want them: of a table and of partitions whose numbers are zero where the test says nothing."""

from __future__ import annotations

from typing import Any

from lakehouse_assets.maintenance.findings import MIB
from lakehouse_assets.maintenance.health import PartitionHealth, TableHealth
from lakehouse_assets.maintenance.summaries import SizeLimits

NUMBERS = ("files", "size", "rows", "fragments", "fragment_size", "undersized", "undersized_size", "delete_files")


def partition(name: str = "2013-01-01", **numbers: Any) -> PartitionHealth:
    zeros = dict.fromkeys((*NUMBERS, "rows_deleted_at_most"), 0)
    return PartitionHealth(**{"name": name, "spec_id": 0, "values": (), "sizes": {}, **zeros, **numbers})


def table(*partitions: PartitionHealth, **numbers: Any) -> TableHealth:
    counts = ("data_manifests", "delete_manifests", "empty_manifests", "manifest_size", "snapshots", "metadata_size")
    fixed = {"identifier": "demo.t", "target": 512 * MIB, "limits": SizeLimits(64 * MIB, 384 * MIB), "sizes": {}}
    return TableHealth(
        **{**fixed, **dict.fromkeys(counts, 0), "last_write_ms": None, "partitions": partitions} | numbers
    )

"""Healths as tests want them: of a table and of partitions whose numbers are zero where the test says nothing."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from lakehouse_assets.maintenance.health.health import TableHealth
from lakehouse_assets.maintenance.health.partition_health import PartitionHealth
from lakehouse_assets.maintenance.health.summaries import SizeLimits
from lakehouse_assets.maintenance.level import MIB

NUMBERS = ("files", "size", "rows", "fragments", "fragment_size", "undersized", "undersized_size", "delete_files")


def partition(name: str = "2013-01-01", **numbers: Any) -> PartitionHealth:
    zeros = dict.fromkeys((*NUMBERS, "rows_deleted_at_most"), 0)
    fixed = {"name": name, "key": name, "spec_id": 0, "values": (), "written_ms": None, "needs_spark": ()}
    return PartitionHealth(**{**fixed, **zeros, **numbers})


def table(*partitions: PartitionHealth, **numbers: Any) -> TableHealth:
    counts = ("data_manifests", "delete_manifests", "empty_manifests", "manifest_size", "snapshots", "metadata_size")
    fixed = {
        "identifier": "demo.t",
        "uuid": UUID(int=1),
        "target": 512 * MIB,
        "limits": SizeLimits(64 * MIB, 384 * MIB),
        "format_version": 2,
    }
    more = {"last_write_ms": None, "location": "file:///lake/t", "is_sorted": False, "needs_spark": ()}
    return TableHealth(**{**fixed, **dict.fromkeys(counts, 0), **more, "partitions": partitions} | numbers)

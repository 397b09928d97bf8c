"""Finds the partitions of which an input was made anew since it was read.

Reads Dagster's log alone, as trace.py does. What else differs from the declarations is in declared.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import dagster as dg
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph
from dagster._core.definitions.data_version import NULL_EVENT_POINTER, get_input_event_pointer_tag

MADE: Final = dg.DagsterEventType.ASSET_MATERIALIZATION
BATCH = 1000
Partition = str | None
"""A partition key; None for an asset without partitions."""


@dataclass(frozen=True)
class Outdated:
    """The partitions of a table that read an input before it was made anew."""

    input: str
    """The input's key, with dots."""
    partitions: tuple[Partition, ...]
    by: str
    """The run that made it anew last."""
    snapshot: str
    """What that run has published; empty for an input that is no table."""


def latest_made(
    instance: dg.DagsterInstance, graph: BaseAssetGraph[Any], key: dg.AssetKey
) -> dict[Partition, dg.AssetMaterialization]:
    """Returns the latest materialization of each of an asset's partitions."""
    if graph.get(key).is_partitioned:
        ids = sorted(instance.get_latest_storage_id_by_partition(key, MADE).values())
        batches = (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))
        filters = (dg.AssetRecordsFilter(key, storage_ids=batch) for batch in batches)
        records = [record for f in filters for record in instance.fetch_materializations(f, limit=BATCH).records]
    else:
        records = [*instance.fetch_materializations(key, limit=1).records]
    made = (record.asset_materialization for record in records)
    return {m.partition: m for m in made if m}


def outdated(
    instance: dg.DagsterInstance,
    graph: BaseAssetGraph[Any],
    key: dg.AssetKey,
    made: Mapping[Partition, dg.AssetMaterialization],
    parents: Collection[dg.AssetKey],
) -> Iterator[Outdated]:
    """Yields each input that was made anew, with the partitions that have read it before.

    key: of the asset that is looked at. made: the latest materialization of each of its partitions. parents: the inputs
    to look at. What an earlier version of this library has materialized does not say what it read, and is left out.
    """
    with dg.partition_loading_context(dynamic_partitions_store=instance):
        for parent in sorted(parents):
            newest = _newest(instance, graph, parent)
            tag = get_input_event_pointer_tag(parent)
            found: list[Partition] = []
            last = 0
            for partition, materialization in made.items():
                pointer = (materialization.tags or {}).get(tag)
                if pointer is None:
                    continue
                read = 0 if pointer == NULL_EVENT_POINTER else int(pointer)
                ids = [newest.get(one, 0) for one in partitions_read(graph, key, partition, parent)]
                if (latest := max(ids, default=0)) > read:
                    found.append(partition)
                    last = max(last, latest)
            if found:
                yield _told(instance, parent, found, last)


def _newest(instance: dg.DagsterInstance, graph: BaseAssetGraph[Any], key: dg.AssetKey) -> Mapping[Partition, int]:
    """Returns the id of the latest materialization of each partition of an asset."""
    if graph.get(key).is_partitioned:
        return dict(instance.get_latest_storage_id_by_partition(key, MADE).items())
    records = instance.fetch_materializations(key, limit=1).records
    return {None: records[0].storage_id} if records else {}


def partitions_read(
    graph: BaseAssetGraph[Any], key: dg.AssetKey, partition: Partition, parent: dg.AssetKey
) -> Sequence[Partition]:
    """Returns the partitions of a parent that a partition is made from; ``[None]`` where the parent has none."""
    if not graph.get(parent).is_partitioned:
        return [None]
    mapped = graph.get_parent_partition_keys_for_child(partition, parent, key)
    return [*mapped.partitions_subset.get_partition_keys()]


def _told(instance: dg.DagsterInstance, parent: dg.AssetKey, partitions: Sequence[Partition], last: int) -> Outdated:
    """last: the id of the event that made it anew."""
    chosen = dg.AssetRecordsFilter(parent, storage_ids=[last])
    (record,) = instance.fetch_materializations(chosen, limit=1).records
    made = record.asset_materialization
    snapshot = made.metadata.get("snapshot_id") if made else None
    return Outdated(".".join(parent.path), tuple(partitions), record.run_id, str(snapshot.value) if snapshot else "")

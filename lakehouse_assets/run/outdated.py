"""Finds partitions that read an input before it changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import dagster as dg
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph
from dagster._core.definitions.data_version import NULL_EVENT_POINTER, get_input_event_pointer_tag
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.tokens import History
from lakehouse_assets.run.jobs import PINNED

MADE: Final = dg.DagsterEventType.ASSET_MATERIALIZATION
# The most events for one query.
BATCH = 1000
Partition = str | None
"""None for an asset without partitions."""
Metadata = Callable[[dg.AssetKey], TableMetadata | None]
"""Finds an asset's table; None if the asset is no table."""


def no_metadata(_: dg.AssetKey) -> None:
    """Finds no table: then only Dagster's event log counts, and no rollback is found."""


@dataclass(frozen=True)
class Outdated:
    """Partitions that read an input before it was materialized again or rolled back."""

    input: str
    """The input's key, with dots."""
    partitions: tuple[Partition, ...]
    by: str | None
    """The run that materialized the input; empty if a person reported it without a run, None after a rollback."""
    snapshot: str
    """What that run published, or what was rolled back; empty if the input is no table."""


def latest_made(
    instance: dg.DagsterInstance, graph: BaseAssetGraph[Any], key: dg.AssetKey
) -> dict[Partition, dg.AssetMaterialization]:
    """Returns the latest materialization of each declared partition: no run can make other partitions again."""
    if (declared := graph.get(key).partitions_def) is not None:
        keys = {*declared.get_partition_keys(dynamic_partitions_store=instance)}  # asked one by one, each is a query
        latest = instance.get_latest_storage_id_by_partition(key, MADE)
        ids = sorted(storage_id for partition, storage_id in latest.items() if partition in keys)
        batches = (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))
        filters = (dg.AssetRecordsFilter(key, storage_ids=batch) for batch in batches)
        records = [record for f in filters for record in instance.fetch_materializations(f, limit=BATCH).records]
    else:
        records = [*instance.fetch_materializations(key, limit=1).records]
    made = (record.asset_materialization for record in records)
    return {m.partition: m for m in made if m}


def stale_inputs(
    instance: dg.DagsterInstance,
    graph: BaseAssetGraph[Any],
    key: dg.AssetKey,
    made: Mapping[Partition, dg.AssetMaterialization],
    parents: Collection[dg.AssetKey],
    metadata: Metadata = no_metadata,
) -> Iterator[Outdated]:
    """Yields each input that was materialized again or rolled back, with the partitions that read it before.

    made: latest_made() of ``key``. metadata: to find rollbacks. Leaves out materializations by earlier versions of this
    library, which don't say what they read.
    """
    with dg.partition_loading_context(dynamic_partitions_store=instance):
        for parent in sorted(parents):
            history = History.of(there) if (there := metadata(parent)) else None
            newest = _newest(instance, graph, parent, history)
            tag = get_input_event_pointer_tag(parent)
            found: list[Partition] = []
            # Partitions by the snapshot that they read and that was rolled back.
            gone: dict[str, list[Partition]] = {}
            # The parent's latest event that one of the partitions found has not read.
            last = 0
            for partition, materialization in made.items():
                pin = _pinned(materialization, parent)
                # What was read is not in main's history: it was rolled back, whatever was published since.
                if history and pin and history.lacks(int(pin)):
                    gone.setdefault(pin, []).append(partition)
                    continue
                pointer = (materialization.tags or {}).get(tag)
                if pointer is None:
                    continue
                read = 0 if pointer == NULL_EVENT_POINTER else int(pointer)
                ids = [newest.get(one, 0) for one in partitions_read(graph, key, partition, parent)]
                if (latest := max(ids, default=0)) > read:
                    found.append(partition)
                    last = max(last, latest)
            if found:
                yield _described(instance, parent, found, last)
            for pin, of_pin in gone.items():
                yield Outdated(".".join(parent.path), tuple(of_pin), None, pin)


def _pinned(made: dg.AssetMaterialization, parent: dg.AssetKey) -> str:
    """Returns the parent's snapshot that the run read, as digits; empty if the parent was empty or is not named."""
    pins: Any = made.metadata[PINNED].value if PINNED in made.metadata else {}
    found = str(pins.get(".".join(parent.path), ""))
    return found if found.isdecimal() else ""


def _newest(
    instance: dg.DagsterInstance, graph: BaseAssetGraph[Any], key: dg.AssetKey, history: History | None
) -> Mapping[Partition, int]:
    """Returns the storage id of each partition's latest materialization that was not rolled back."""
    ids: Mapping[Partition, int] = {}
    if graph.get(key).is_partitioned:
        ids = dict(instance.get_latest_storage_id_by_partition(key, MADE).items())
        if not (ids and history and history.has_others):  # nothing was rolled back: one query is enough
            return ids
    partitions = [one for one in ids if one is not None]
    records = latest_records(instance, key, partitions, lambda record: not is_gone(record, history))
    return {record.partition_key: record.storage_id for record in records}


def latest_records(
    instance: dg.DagsterInstance,
    key: dg.AssetKey,
    partitions: Collection[str],
    counts: Callable[[dg.EventLogRecord], bool],
    *,
    before: datetime | None = None,
    upto: int | None = None,
) -> Iterator[dg.EventLogRecord]:
    """Yields each partition's latest materialization that counts; without partitions, the asset's latest.

    counts: says whether a materialization counts. before: exclusive. upto: an event's storage id, inclusive.
    """
    # Without partitions, the first event asked for usually counts. The cursor is exclusive.
    wanted, cursor, limit = {*partitions}, None if upto is None else upto + 1, BATCH if partitions else 1
    while True:
        chosen = dg.AssetRecordsFilter(
            key,
            asset_partitions=[*wanted] or None,
            before_storage_id=cursor,
            before_timestamp=before.timestamp() if before else None,
        )
        records = instance.fetch_materializations(chosen, limit=limit).records
        for record in records:
            # Records come newest first, so a partition that is no longer wanted has had its latest.
            if (partitions and record.partition_key not in wanted) or not counts(record):
                continue
            yield record
            wanted.discard(str(record.partition_key))
            if not wanted:  # without partitions, after the first record that counts
                return
        if len(records) < limit:
            return
        cursor, limit = records[-1].storage_id, BATCH


def snapshot_of(record: dg.EventLogRecord) -> int | None:
    """Returns the snapshot that a materialization published, if it names one."""
    made = record.asset_materialization
    found = made.metadata.get("snapshot_id") if made else None
    return int(str(found.value)) if found else None


def is_gone(record: dg.EventLogRecord, history: History | None) -> bool:
    """Whether what the materialization published was certainly rolled back."""
    snapshot = snapshot_of(record)
    return history is not None and snapshot is not None and history.lacks(snapshot)


def partitions_read(
    graph: BaseAssetGraph[Any], key: dg.AssetKey, partition: Partition, parent: dg.AssetKey
) -> Sequence[Partition]:
    """Returns the parent's partitions that a partition depends on; ``[None]`` if the parent has none."""
    if not graph.get(parent).is_partitioned:
        return [None]
    mapped = graph.get_parent_partition_keys_for_child(partition, parent, key)
    return [*mapped.partitions_subset.get_partition_keys()]


def _described(
    instance: dg.DagsterInstance, parent: dg.AssetKey, partitions: Sequence[Partition], last: int
) -> Outdated:
    """Describes partitions that read the parent before its event with the storage id ``last``."""
    chosen = dg.AssetRecordsFilter(parent, storage_ids=[last])
    (record,) = instance.fetch_materializations(chosen, limit=1).records
    made = record.asset_materialization
    snapshot = made.metadata.get("snapshot_id") if made else None
    return Outdated(".".join(parent.path), tuple(partitions), record.run_id, str(snapshot.value) if snapshot else "")

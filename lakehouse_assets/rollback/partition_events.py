"""Compares what Dagster shows of a table's partitions with what they hold after a rollback.

The rollback itself is rollback.py's; what runs log of partitions, run/'s.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from pyiceberg.table.snapshots import Snapshot

from lakehouse_assets.commit.tokens import SPANS, TOKEN
from lakehouse_assets.declare.table import Table
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.rollback.rollback import time_text
from lakehouse_assets.run.outdated import BATCH, Partition, latest_made

COLUMNS = ("snapshot", "committed", "by run", "operation", "rows added", "rows removed", "partitions")
"""The columns of what snapshot_rows() yields."""
ROLLED_BACK_TO = "rolled_back_to"
"""The metadata that tells what a rollback has logged from what runs have made: main's snapshot then."""
CLOCKS_APART = 3600
"""How many seconds the clock of a commit may be ahead of Dagster's: what is logged later names its snapshot."""


def _snapshot(made: dg.AssetMaterialization) -> int:
    """Returns the snapshot that a materialization names; 0, which is no snapshot's id, if it names none."""
    named = made.metadata.get("snapshot_id")
    text = str(named.value) if named else ""
    return int(text) if text.isdecimal() else 0


def partitions_by_snapshot(
    instance: dg.DagsterInstance, table: Table, snapshots: Sequence[Snapshot]
) -> Mapping[int, Sequence[Partition]]:
    """Returns the partitions that runs have made in each of these snapshots."""
    if not snapshots:
        return {}
    since = min(snapshot.timestamp_ms for snapshot in snapshots) / 1000 - CLOCKS_APART
    ids, found = {snapshot.snapshot_id for snapshot in snapshots}, defaultdict[int, list[Partition]](list)
    for made in _materializations(instance, dg.AssetRecordsFilter(table.key, after_timestamp=since)):
        if ROLLED_BACK_TO not in made.metadata and (snapshot := _snapshot(made)) in ids:
            found[snapshot].append(made.partition)
    return found


def snapshot_rows(
    snapshots: Sequence[Snapshot], keys: Mapping[int, Sequence[Partition]], prefix: str = ""
) -> Iterator[Sequence[str]]:
    """Yields a row for each snapshot: what it did, by which run, and to which partitions."""
    for snapshot in snapshots:
        summary = snapshot.summary
        said = summary.additional_properties if summary else {}
        made = keys.get(snapshot.snapshot_id)
        yield (
            str(snapshot.snapshot_id),
            time_text(snapshot.timestamp_ms),
            said.get(TOKEN, "").partition(SPANS)[0] or "another client's",
            f"{prefix}{summary.operation.value if summary else 'unknown'}",
            said.get("added-records", "0"),
            said.get("deleted-records", "0"),
            keys_text(sorted(key or "" for key in made)) if made else "",
        )


def events_after(
    instance: dg.DagsterInstance, table: Table, changed: Collection[Partition], elsewhere: Collection[int], target: int
) -> Iterator[dg.AssetMaterialization]:
    """Yields what partitions hold after the rollback, if Dagster shows otherwise: what a run has made, else nothing.

    The tags are those of then, too: a partition counts as made of the inputs that it had, so that automation and
    `lakehouse plan` see what is outdated. To downstream assets it is a new version.

    changed: the partitions that are undone or return; others are looked at as well, since another client may have
    rolled back before. elsewhere: the snapshots that are not in main's history then.
    """
    spec = dg.AssetSpec(table.key, partitions_def=table.partitions)
    latest = latest_made(instance, dg.Definitions(assets=[spec]).resolve_asset_graph(), table.key)
    wanted = {*changed, *(key for key, made in latest.items() if _snapshot(made) in elsewhere)}
    held: dict[Partition, dg.AssetMaterialization] = {}
    of_wanted = sorted(key for key in wanted if key is not None)
    for made in _materializations(instance, dg.AssetRecordsFilter(table.key, asset_partitions=of_wanted or None)):
        if len(held) == len(wanted):
            break
        if made.partition in wanted and ROLLED_BACK_TO not in made.metadata and _snapshot(made) not in elsewhere:
            held.setdefault(made.partition, made)
    for key in sorted(wanted, key=str):
        found = held.get(key)
        if found and _snapshot(found) == _snapshot(latest[key]):
            continue
        empty: Mapping[str, Any] = {"snapshot_id": str(target), "dagster/partition_row_count": 0}
        yield dg.AssetMaterialization(
            table.key,
            partition=key,
            metadata={**(found.metadata if found else empty), ROLLED_BACK_TO: str(target)},
            tags=found.tags if found else {DATA_VERSION_TAG: f"rolled-back-to-{target}"},
        )


def _materializations(instance: dg.DagsterInstance, wanted: dg.AssetRecordsFilter) -> Iterator[dg.AssetMaterialization]:
    """Yields materializations, the newest first."""
    cursor, has_more = None, True
    while has_more:
        found = instance.fetch_materializations(wanted, limit=BATCH, cursor=cursor)
        yield from (made for record in found.records if (made := record.asset_materialization))
        cursor, has_more = found.cursor, found.has_more

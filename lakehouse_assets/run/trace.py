"""Traces what a partition was made from: the versions of its inputs, and of theirs in turn, down to the drop zone.

Read is Dagster's log alone: materializations stay where snapshots have expired. What they say, inputs.py and
reporting.py write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.data_version import CODE_VERSION_TAG, NULL_EVENT_POINTER, get_input_event_pointer_tag

from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.run.jobs import FILES, READS
from lakehouse_assets.run.outdated import partitions_read

BATCH = 1000
LEAVES = 10
"""The most files, and tables of others, that are shown below one version."""
Partitions = tuple[str, ...]
"""Partition keys; empty for an asset without partitions."""


@dataclass(frozen=True)
class Made:
    """The result of one run for an asset."""

    asset: str
    """Its key, with dots."""
    partitions: Partitions
    """Those that are asked for."""
    snapshot: str = ""
    """The Iceberg snapshot; empty for an asset that is no table."""
    run_id: str = ""
    """Empty where nothing was materialized."""
    at: datetime | None = None
    """When Dagster noted it."""
    code: str = ""
    """Table.code_version."""
    leaves: tuple[str, ...] = ()
    """Tables of others, with their versions, and files of the drop zone, a line each."""
    inputs: tuple[Made, ...] = ()
    """What it was made from."""

    def __str__(self) -> str:
        named = f"{self.asset} {keys_text(self.partitions)}" if self.partitions else self.asset
        if self.at is None:
            return f"{named}: not materialized"
        parts = [f"snapshot {self.snapshot}"] if self.snapshot else []
        parts += [f"{self.at:%Y-%m-%d %H:%M:%S} UTC", f"run {self.run_id[:8]}"]
        return f"{named}: {', '.join(parts + ([f'code {self.code}'] if self.code else []))}"


@dataclass
class Trace:
    """Reads the log of one instance about the assets of one code location."""

    instance: dg.DagsterInstance
    graph: AssetGraph
    _known: dict[tuple[dg.AssetKey, Partitions, int | None], tuple[Made, ...]] = field(default_factory=dict)

    def of(self, key: dg.AssetKey, partition: str | None = None, at: datetime | None = None) -> tuple[Made, ...]:
        """Returns what an asset, or one of its partitions, was made from, at a time or now.

        For an asset with partitions, of which none is asked for, that is the latest materialization of any.
        """
        with dg.partition_loading_context(dynamic_partitions_store=self.instance):
            return self._made(key, (partition,) if partition is not None else (), None, at)

    def _made(
        self, key: dg.AssetKey, partitions: Partitions, before: int | None, at: datetime | None = None
    ) -> tuple[Made, ...]:
        """before: Dagster's id of the first event that does not count."""
        place = (key, partitions, before)
        if place not in self._known:
            self._known[place] = tuple(self._found(key, partitions, before, at))
        return self._known[place]

    def _found(
        self, key: dg.AssetKey, partitions: Partitions, before: int | None, at: datetime | None
    ) -> Iterator[Made]:
        asset = ".".join(key.path)
        by_run: dict[str, tuple[dg.AssetMaterialization, float, list[str], set[str]]] = {}
        left = {*partitions}
        for record in self._latest(key, partitions, before, at):
            made = record.asset_materialization
            assert made
            *_, keys, leaves = by_run.setdefault(record.run_id, (made, record.timestamp, [], set()))
            leaves.update(_leaves(made))
            if made.partition is not None:
                keys.append(made.partition)
                left.discard(made.partition)
        for run_id, (made, timestamp, keys, leaves) in by_run.items():
            yield Made(
                asset,
                tuple(sorted(keys)),
                snapshot=str(_value(made, "snapshot_id") or ""),
                run_id=run_id,
                at=datetime.fromtimestamp(timestamp, UTC),
                code=(made.tags or {}).get(CODE_VERSION_TAG, "") if _value(made, "snapshot_id") else "",
                leaves=tuple(sorted(leaves)),
                inputs=tuple(self._inputs(key, tuple(keys), made)),
            )
        if left or not (by_run or partitions):
            yield Made(asset, tuple(sorted(left)))

    def _inputs(self, key: dg.AssetKey, partitions: Partitions, made: dg.AssetMaterialization) -> Iterator[Made]:
        tags, by_snapshot = made.tags or {}, _value(made, READS) or {}
        for parent in sorted(self.graph.get(key).parent_keys - {key}):
            if ".".join(parent.path) in by_snapshot:
                continue
            pointer = tags.get(get_input_event_pointer_tag(parent), NULL_EVENT_POINTER)
            if pointer == NULL_EVENT_POINTER:
                yield Made(".".join(parent.path), ())
                continue
            read = (one for own in partitions or (None,) for one in partitions_read(self.graph, key, own, parent))
            of_parent = {one for one in read if one is not None}
            yield from self._made(parent, tuple(sorted(of_parent)), int(pointer) + 1)

    def _latest(
        self, key: dg.AssetKey, partitions: Partitions, before: int | None, at: datetime | None
    ) -> Iterator[dg.EventLogRecord]:
        """Yields the latest materialization of each partition, or of the asset."""
        wanted, cursor = {*partitions}, before
        while True:
            chosen = dg.AssetRecordsFilter(
                key,
                asset_partitions=[*wanted] or None,
                before_storage_id=cursor,
                before_timestamp=at.timestamp() if at else None,
            )
            limit = BATCH if wanted else 1
            records = self.instance.fetch_materializations(chosen, limit=limit).records
            for record in records:
                made = record.asset_materialization
                if not wanted or (made and made.partition in wanted):
                    yield record
                    if not wanted:
                        return
                    wanted.discard(str(made.partition if made else ""))
                    if not wanted:
                        return
            if len(records) < limit:
                return
            cursor = records[-1].storage_id


def _value(made: dg.AssetMaterialization, name: str) -> Any:
    found = made.metadata.get(name)
    return found.value if found else None


def _leaves(made: dg.AssetMaterialization) -> Iterator[str]:
    for name, version in (_value(made, READS) or {}).items():
        yield f"{name}: snapshot {version}"
    for path, size, modified_ms in _value(made, FILES) or ():
        yield f"{path}: {size:,} bytes of {datetime.fromtimestamp(modified_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def tree_lines(made: Sequence[Made]) -> Iterator[str]:
    """Yields a line for each version, those that it was made from below it."""
    for one in made:
        yield str(one)
        yield from _below(one)


def _below(made: Made) -> Iterator[str]:
    more = len(made.leaves) - LEAVES
    below: list[Made | str] = [*made.inputs, *made.leaves[:LEAVES], *([f"and {more} more"] if more > 0 else [])]
    for number, one in enumerate(below, start=1):
        is_last = number == len(below)
        yield f"{'└─' if is_last else '├─'} {one}"
        if isinstance(one, Made):
            yield from (f"{'  ' if is_last else '│ '} {line}" for line in _below(one))

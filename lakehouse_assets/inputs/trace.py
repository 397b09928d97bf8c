"""Traces what a partition was made from, down to the drop zone, without rolled-back versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.data_version import CODE_VERSION_TAG, NULL_EVENT_POINTER, get_input_event_pointer_tag
from pyiceberg.table.snapshots import Operation

from lakehouse_assets.commit.tokens import History
from lakehouse_assets.inputs.hook import pinned_in
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.run.jobs import FILE_COLUMNS, FILES, OWN_ROWS, READS
from lakehouse_assets.run.outdated import (
    MADE,
    Metadata,
    is_gone,
    latest_records,
    no_metadata,
    partitions_read,
    snapshot_of,
)
from lakehouse_assets.time_text import shown_time

LEAVES = 10
"""The most leaves of a version that the tree shows."""
"""The fraction of a second."""
Partitions = tuple[str, ...]


@dataclass(frozen=True)
class Made:
    """A run's result for an asset."""

    asset: str
    """Its key, with dots."""
    partitions: Partitions
    snapshot: str = ""
    """Empty for an asset that is no table."""
    run_id: str = ""
    at: datetime | None = None
    code: str = ""
    leaves: tuple[str, ...] = ()
    """Others' tables and drop zone files, a line each."""
    inputs: tuple[Made, ...] = ()
    gone: str = ""
    """The later version that was rolled back, in words."""

    def __str__(self) -> str:
        named = f"{self.asset} {keys_text(self.partitions)}" if self.partitions else self.asset
        parts = [f"snapshot {self.snapshot}"] if self.snapshot else []
        if self.at is not None:
            parts += [shown_time(self.at), f"run {self.run_id[:8]}"]
        parts += [f"code {self.code}"] if self.code else []
        gone = f"; {self.gone} was rolled back" if self.gone else ""
        return f"{named}: {', '.join(parts) or 'not materialized'}{gone}"


@dataclass
class Trace:
    """Traces the assets of a code location in an instance's event log."""

    instance: dg.DagsterInstance
    graph: AssetGraph
    metadata: Metadata = no_metadata
    """Finds a table's metadata; without it, rolled-back versions count too."""
    _known: dict[tuple[dg.AssetKey, Partitions, str, str], tuple[Made, ...]] = field(default_factory=dict)
    """The results of _read(), by its arguments."""

    def of(self, key: dg.AssetKey, partition: str | None = None, at: datetime | None = None) -> tuple[Made, ...]:
        """Returns what an asset or a partition was made from, at a time (inclusive) or now.

        For a partitioned asset without a partition, takes the latest materialization of any.
        """
        with dg.partition_loading_context(dynamic_partitions_store=self.instance):
            there, partitions = self.metadata(key), (partition,) if partition is not None else ()
            history = (History.at(there, at) if at else History.of(there)) if there else None
            gone: list[str] = []

            def counts(record: dg.EventLogRecord) -> bool:
                if is_rolled_back := is_gone(record, history):
                    gone.append(f"snapshot {snapshot_of(record)} of run {record.run_id[:8]}")
                return not is_rolled_back

            # The bound is exclusive.
            before = at + timedelta(microseconds=1) if at else None
            records = latest_records(self.instance, key, partitions, counts, before=before)
            found = self._grouped(key, partitions, records)
            # Records come newest first. The generator fills gone before it yields the first result.
            return tuple(replace(one, gone=gone[0] if gone else "") for one in found)

    def _grouped(
        self, key: dg.AssetKey, partitions: Partitions, records: Iterable[dg.EventLogRecord]
    ) -> Iterator[Made]:
        """Yields the records by run, and the partitions without a record as not materialized."""
        asset = ".".join(key.path)
        by_run: dict[str, tuple[dg.AssetMaterialization, float, list[str], set[str]]] = {}
        left = {*partitions}
        for record in records:
            made = record.asset_materialization
            assert made
            # The first record that comes is the run's latest; it stands for all of the run.
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
                # Assets that are no tables may have Dagster's default, the run's id.
                code=(made.tags or {}).get(CODE_VERSION_TAG, "") if _value(made, "snapshot_id") else "",
                leaves=tuple(sorted(leaves)),
                inputs=tuple(self._inputs(key, tuple(keys), made)),
            )
        # If no partitions were asked for and there is no record, the asset as a whole is not materialized.
        if left or not (by_run or partitions):
            yield Made(asset, tuple(sorted(left)))

    def _inputs(self, key: dg.AssetKey, partitions: Partitions, made: dg.AssetMaterialization) -> Iterator[Made]:
        tags, by_snapshot = made.tags or {}, _value(made, READS) or {}
        pins = pinned_in(made, self.metadata(key))
        for parent in sorted(self.graph.get(key).parent_keys - {key}):
            name = ".".join(parent.path)
            if name in by_snapshot:  # shown as a leaf
                continue
            pointer, pin = tags.get(get_input_event_pointer_tag(parent), NULL_EVENT_POINTER), pins.get(name, "")
            # Nothing was read: the pin is no snapshot id (the input was empty), or there is neither a pin nor an event.
            if not pin.isdecimal() and (pin or pointer == NULL_EVENT_POINTER):
                yield Made(name, ())
                continue
            read = (one for own in partitions or (None,) for one in partitions_read(self.graph, key, own, parent))
            of_parent = tuple(sorted({one for one in read if one is not None}))
            place = (parent, of_parent, pointer, pin)
            if place not in self._known:
                self._known[place] = tuple(self._read(*place))
            yield from self._known[place]

    def _read(self, key: dg.AssetKey, partitions: Partitions, pointer: str, pin: str) -> Iterator[Made]:
        """Traces an input at its pinned snapshot; without one, up to the event that Dagster recorded (pointer).

        With a pin, versions in the pinned snapshot's history count; if it can't tell, the event decides.
        """
        there = self.metadata(key) if pin else None
        history = History.behind(there, int(pin)) if there else None
        known = 0 if pointer == NULL_EVENT_POINTER else int(pointer)

        def counts(record: dg.EventLogRecord) -> bool:
            snapshot = snapshot_of(record)
            if pin and snapshot == int(pin):
                return True
            if history and snapshot is not None and history.line:
                if snapshot in history.line:
                    return True
                if history.lacks(snapshot):
                    return False
            return record.storage_id <= known

        # Without partitions, or if runs also write rows of other partitions, the whole version is the input.
        if pin and not (partitions and self.graph.get(key).metadata.get(OWN_ROWS, True)):
            yield from self._version(key, int(pin), history)
            return
        # The pinned snapshot may have been logged after the recorded event: runs log after their commit.
        records = [*latest_records(self.instance, key, partitions, counts, upto=None if pin else known)]
        if records or not pin:
            yield from self._grouped(key, partitions, records)
        else:
            yield from self._version(key, int(pin), history)

    def _version(self, key: dg.AssetKey, pin: int, history: History | None) -> Iterator[Made]:
        """Yields the run that made a snapshot, with all its partitions; else the snapshot alone."""
        line = [history.snapshots[one] for one in history.line] if history else []
        # Rewrites add no rows: the run that made the version is the one before them.
        of_rows = (one for one in line if one.summary is None or one.summary.operation is not Operation.REPLACE)
        wanted = next((one.snapshot_id for one in of_rows), pin)
        found = latest_records(self.instance, key, (), lambda record: snapshot_of(record) == wanted)
        if (record := next(found, None)) is None:
            yield Made(".".join(key.path), (), snapshot=str(pin))
            return
        of_run = self.instance.get_records_for_run(record.run_id, of_type=MADE).records
        same = [one for one in of_run if one.asset_key == key and snapshot_of(one) == wanted] or [record]
        yield from self._grouped(key, (), same)


def _value(made: dg.AssetMaterialization, name: str) -> Any:
    found = made.metadata.get(name)
    return found.value if found else None


def _leaves(made: dg.AssetMaterialization) -> Iterator[str]:
    for name, version in (_value(made, READS) or {}).items():
        yield f"{name}: snapshot {version}"
    files = made.metadata.get(FILES)
    if isinstance(files, dg.TableMetadataValue):
        for record in files.records:
            yield "{}: {} bytes of {}".format(*(record.data[name] for name in FILE_COLUMNS))
        return
    # Earlier versions wrote lists.
    for path, size, modified_ms in _value(made, FILES) or ():
        yield f"{path}: {size:,} bytes of {datetime.fromtimestamp(modified_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def tree_lines(made: Sequence[Made]) -> Iterator[str]:
    """Yields a line for each version, with its inputs below it."""
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

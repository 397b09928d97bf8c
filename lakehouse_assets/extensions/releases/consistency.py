"""Decides whether tables fit together: none was made from inputs that the others lack.

The log says what was made from what, but a release pins snapshots: so the two are compared first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from lakehouse_assets.commit.tokens import RUN_ID, TOKEN
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.maintenance.collect.needed import Chain, chains
from lakehouse_assets.run.outdated import MADE, Partition, latest_made, stale_inputs

Made = Mapping[Partition, dg.AssetMaterialization]
"""An asset's latest materializations, by partition."""


@dataclass(frozen=True)
class PinnedTable:
    """A member's metadata, and its snapshot to release."""

    key: dg.AssetKey
    identifier: str
    metadata: TableMetadata
    snapshot: Snapshot
    io: FileIO
    before: int | None = None
    """Its snapshot in the newest release: older commits were checked then."""


@dataclass(frozen=True)
class Log:
    """Reads Dagster's log and asset graph."""

    instance: dg.DagsterInstance
    graph: BaseAssetGraph[Any]

    def made(self, keys: Iterable[dg.AssetKey]) -> dict[dg.AssetKey, Made]:
        """Returns the assets' latest materializations in the log."""
        return {key: latest_made(self.instance, self.graph, key) for key in keys}

    def unsettled(
        self,
        pinned: Sequence[PinnedTable],
        made: Mapping[dg.AssetKey, Made],
        reload: Callable[[str], TableMetadata],
    ) -> Iterator[str]:
        """Yields a sentence for each table whose log and pinned snapshot disagree.

        Usually they agree soon: a run has not reported its commit yet, or has committed since the pin. reload: loads
        current metadata.
        """
        for table in pinned:
            logged = _logged(made[table.key])
            history = [*ancestors_of(table.snapshot, table.metadata)]
            in_metadata = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
            if rolled_back := sorted({*logged.values()} & _rolled_back(table.metadata, history)):
                yield (
                    f"{table.identifier} was rolled back: according to Dagster's log, partitions were made in its "
                    f"snapshot {rolled_back[-1]}, which is not in the history of its snapshot "
                    f"{table.snapshot.snapshot_id}. Materialize these partitions again"
                )
            else:
                yield from self._unreported(table, history, logged)
            if expired_or_new := {*logged.values()} - in_metadata:
                now = {snapshot.snapshot_id for snapshot in reload(table.identifier).snapshots}
                if new := expired_or_new & now:
                    yield f"{table.identifier} got its snapshot {max(new)} while the release was planned"

    def _unreported(
        self, table: PinnedTable, history: Sequence[Snapshot], logged: Mapping[Partition, int]
    ) -> Iterator[str]:
        """Yields a sentence for a run's commit that the log lacks.

        The newest commit must be in the log. Of earlier ones, the log may name only later runs that made their
        partitions again.
        """
        ids = {*logged.values()}
        # The newest come first. Rewrites change no rows, so they need not be in the log.
        by_runs = [one for one in history if one.summary and one.summary[RUN_ID] and not _only_rewrites(one)]
        if by_runs and (newest := by_runs[0]).snapshot_id not in ids:
            yield _not_in_the_log(table, newest)
            return
        released = next((n for n, one in enumerate(by_runs) if one.snapshot_id == table.before), len(by_runs))
        unnamed = [one for one in by_runs[:released] if one.snapshot_id not in ids]
        # If a run publishes in parts, each part's token starts with its chain's id.
        tokens = {one.snapshot_id: str(one.summary and one.summary[TOKEN]).partition(".")[0] for one in unnamed}
        chain_of = chains(self.instance, {*tokens.values()})
        for one in unnamed:
            later = {newer.snapshot_id for newer in by_runs[: by_runs.index(one)]}
            if not self._is_settled(table.key, one, chain_of.get(tokens[one.snapshot_id]), logged, later):
                yield _not_in_the_log(table, one)
                return

    def _is_settled(
        self,
        key: dg.AssetKey,
        one: Snapshot,
        chain: Chain | None,
        logged: Mapping[Partition, int],
        later: Collection[int],
    ) -> bool:
        """Whether nothing is left to report about a commit.

        True if the commit's chain of re-executions has succeeded or is unknown, if its run has reported, or if the
        chain has ended and the log has ``later`` snapshots of all partitions that the run planned.
        """
        if chain is None or chain.succeeded or self._has_reported(key, one):
            return True
        return not chain.unfinished and all(logged.get(partition) in later for partition in self._planned(key, one))

    def _has_reported(self, key: dg.AssetKey, snapshot: Snapshot) -> bool:
        records = self.instance.get_records_for_run(_run_of(snapshot), of_type=MADE).records
        return any(record.asset_key == key for record in records)

    def _planned(self, key: dg.AssetKey, snapshot: Snapshot) -> set[Partition]:
        """Returns the partitions of the table that the snapshot's run set out to make."""
        found: set[Partition] = set()
        planned = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
        for record in self.instance.get_records_for_run(_run_of(snapshot), of_type=planned).records:
            event = record.event_log_entry.dagster_event
            if event is not None and event.asset_key == key:
                data = event.asset_materialization_planned_data
                subset = data.partitions_subset
                found |= {*subset.get_partition_keys()} if subset is not None else {data.partition}
        return found

    def stale_members(self, members: Collection[dg.AssetKey], made: Mapping[dg.AssetKey, Made]) -> Iterator[str]:
        """Yields a sentence for each table made from an outdated version of an input.

        Checks the members and the tables between them. made: the materializations that unsettled() compared with the
        pinned snapshots, as newer ones may belong to later snapshots.
        """
        # between: above a member and below one, members included
        above = _reach(members, lambda key: self.graph.get(key).parent_keys)
        below = _reach(members, lambda key: self.graph.get(key).child_keys)
        for key in sorted(above & below):
            parents = (self.graph.get(key).parent_keys & below) - {key}
            of_key = made[key] if key in made else self.made([key])[key]
            for found in stale_inputs(self.instance, self.graph, key, of_key, parents):
                keys = [one for one in found.partitions if one is not None]
                of = f" {keys_text(keys)}" if keys else ""
                snapshot = f", snapshot {found.snapshot}" if found.snapshot else ""
                yield (
                    f"{'.'.join(key.path)}{of} was made from the version of {found.input} before run "
                    f"{found.by}{snapshot}. Materialize it again"
                )


def _not_in_the_log(table: PinnedTable, snapshot: Snapshot) -> str:
    return (
        f"{table.identifier} has rows of run {_run_of(snapshot)} (snapshot {snapshot.snapshot_id}) that Dagster's log "
        "does not name: the run has not reported them yet, died before reporting them, or others have reported the "
        "same partitions since. Wait for the run, re-execute it from failure, or materialize its partitions again"
    )


def _reach(keys: Collection[dg.AssetKey], step: Callable[[dg.AssetKey], Collection[dg.AssetKey]]) -> set[dg.AssetKey]:
    """Returns the keys, and all that repeated steps lead to."""
    found, waiting = set(keys), [*keys]
    while waiting:
        new = {*step(waiting.pop())} - found
        found |= new
        waiting += new
    return found


def _run_of(snapshot: Snapshot) -> str:
    return str(snapshot.summary and snapshot.summary[RUN_ID])


def _logged(made: Made) -> dict[Partition, int]:
    """Returns the snapshot that the log names for each partition."""
    values = {partition: one.metadata.get("snapshot_id") for partition, one in made.items()}
    return {partition: int(str(value.value)) for partition, value in values.items() if value is not None}


def _only_rewrites(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE


def _rolled_back(metadata: TableMetadata, history: Sequence[Snapshot]) -> set[int]:
    """Returns the snapshots that certainly did not lead to the history's head.

    Snapshots older than the history may have: it ends where a parent has expired.
    """
    ids, oldest = {one.snapshot_id for one in history}, history[-1].sequence_number or 0
    return {s.snapshot_id for s in metadata.snapshots if (s.sequence_number or 0) >= oldest} - ids

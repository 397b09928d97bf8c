"""The change of a run that merges: what its workers did to forks of the head, if nobody changed the same part since.

Each attempt looks anew at what the head has become. Committing is in publish.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from lakehouse_assets.commit import deletes
from lakehouse_assets.commit.bounds import Within, predicate
from lakehouse_assets.commit.change import RunChange
from lakehouse_assets.commit.entries import Entries, Partitions, partition_of
from lakehouse_assets.commit.manifest_plan import ManifestPlan, arrival, live_manifests
from lakehouse_assets.commit.staged import StagedChunk
from lakehouse_assets.commit.tokens import is_rolled_back, keeps_rows_since
from lakehouse_assets.errors import HeadMoved
from lakehouse_assets.keys_text import keys_text

Identity = tuple[str, int]
"""A file's path and data sequence number: one that was removed and came back has another."""


@dataclass
class RowChanges(RunChange):
    """The change of a run that merges."""

    staged: Sequence[StagedChunk]
    operation: Operation
    only_inserts: bool = False
    """Whether nothing is in the way but new rows of the same keys, and deleted ones, for which rows may have been left
    out."""
    entries: Entries = field(default_factory=Entries)

    def plan(self, table: Table, missing: Collection[str]) -> ManifestPlan:
        """Plans the changes of all chunks.

        Raises HeadMoved where others changed what the changes could meet, PublishRefused where the changes don't fit
        the table.
        """
        self.refuse_unfit(table, missing)
        name = ".".join(table.name())
        removed = Counter(entry.data_file.file_path for chunk in self.staged for entry in chunk.removed)
        if twice := sorted(path for path, count in removed.items() if count > 1):
            raise self.refused(
                name,
                f"{len(twice)} files are rewritten by more than one worker, such as {twice[0]}; declare "
                "partitions_per_worker=None, so that one worker merges them all",
            )
        for chunk in self.staged:
            if moved := next(self._moved(table, chunk), None):
                raise HeadMoved(f"table {name}, {keys_text(chunk.receipt.keys)}: {moved}")
        return self._plan(table)

    def _moved(self, table: Table, chunk: StagedChunk) -> Iterator[str]:
        """Yields what others have changed in the part of the table that the chunk's changes could meet."""
        base_id = chunk.receipt.base_snapshot_id
        merged = chunk.receipt.merged
        if merged is None or not merged.changes or table.metadata.current_snapshot_id == base_id:
            return
        if self.only_inserts and base_id and is_rolled_back(table.metadata, base_id):
            yield f"the rows that its own were compared with, of snapshot {base_id}, were rolled back meanwhile"
        base = chunk.metadata.snapshot_by_id(base_id) if base_id else None
        then = base.manifests(chunk.io) if base else []
        now = live_manifests(table)
        # Manifests never change, so files that the same manifests list are the same.
        common = {m.manifest_path for m in then} & {m.manifest_path for m in now}
        within = Within(table.metadata, chunk.schema, predicate(merged.bounds, chunk.schema))
        before, after = (
            self._within(table, within, [m for m in side if m.manifest_path not in common]) for side in (then, now)
        )
        gone, new = before - after, after - before
        if self.only_inserts:
            base_sequence = (base.sequence_number or 0) if base else 0
            new = {(path, sequence) for path, sequence in new if sequence > base_sequence}
            if keeps_rows_since(table.metadata, base_id):
                gone = set()
        if gone:
            yield f"{len(gone)} files that its changes could meet were replaced meanwhile, such as {min(gone)[0]}"
        if new:
            yield f"{len(new)} files that its changes could meet were added meanwhile, such as {min(new)[0]}"

    def _within(self, table: Table, within: Within, manifests: Iterable[ManifestFile]) -> set[Identity]:
        read = self.entries.read(table.io, [m for m in manifests if within.may_be_in(m)])
        found = (entry for entries in read for entry in entries if within.has(entry.data_file))
        return {(entry.data_file.file_path, deletes.sequence(entry)) for entry in found}

    def _plan(self, table: Table) -> ManifestPlan:
        plan = ManifestPlan(added=list(map(arrival, self.files)))
        left = {entry.data_file.file_path: entry for chunk in self.staged for entry in chunk.removed}
        places = Partitions(table.metadata, map(partition_of, left.values()))
        for manifest in live_manifests(table):
            if not left or not places.may_be_in(manifest):
                plan.untouched.append(manifest)
                continue
            (entries,) = self.entries.read(table.io, [manifest])
            plan.split(manifest, entries, lambda entry: left.pop(entry.data_file.file_path, None) is not None)
        if left:
            raise self.refused(".".join(table.name()), f"{len(left)} files that it replaces are not on the table")
        return plan

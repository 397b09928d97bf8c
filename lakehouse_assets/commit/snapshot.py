"""The snapshot of a change, and the transaction that commits it: all that touches PyIceberg's private parts.
When and how often it is tried is publish.py's."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    TableUpdate,
    UpdatesAndRequirements,
)
from pyiceberg.table.update.snapshot import _SnapshotProducer

from lakehouse_assets.commit.manifests import ManifestPlan


class LeanTransaction(Transaction):
    """A transaction that computes its metadata once for each change, and commits once.

    PyIceberg computes it at every access, by a deep copy, 15 times in a commit: with 2,000 snapshots that takes 1.5 s
    instead of 0.4 s.
    """

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._computed: tuple[tuple[TableUpdate, ...], TableMetadata] = (self._updates, table.metadata)

    @property
    def table_metadata(self) -> TableMetadata:
        updates, metadata = self._computed
        if updates is not self._updates:
            metadata = super().table_metadata
            self._computed = (self._updates, metadata)
        return metadata

    def commit_transaction(self) -> Table:
        """Without producers PyIceberg does not retry (its retry fails on any conflict, or keeps an append to the
        replaced partitions beside the new rows), nor does it delete the manifests of a commit that was reported as
        failed and may have landed after all."""
        self._snapshot_producers.clear()
        return super().commit_transaction()


class ChangeSnapshot(_SnapshotProducer["ChangeSnapshot"]):
    """One snapshot that removes and adds the files of a plan.

    It has the change's operation also on an empty table and without files, as Iceberg's own ReplacePartitions does, so
    that readers of the table's changes see one kind. PyIceberg's _OverwriteFiles reads every matching manifest twice
    more, builds a predicate of one term for each removed partition (manifests times partitions to evaluate), and makes
    an APPEND of the first commit.
    """

    def __init__(
        self,
        operation: Operation,
        transaction: Transaction,
        io: FileIO,
        plan: ManifestPlan,
        summary: Mapping[str, str],
    ) -> None:
        super().__init__(operation, transaction, io, snapshot_properties=dict(summary))
        self._plan = plan
        self._added_data_files = plan.added
        self._deleted_data_files = {entry.data_file for entry in plan.removed}  # the summary counts these

    def delete_manifests(self) -> None:
        """Delete the manifests that this snapshot wrote. Only for one that certainly was not committed."""
        self._clean_all_uncommitted()

    def _build_delete_files_partition_predicate(self) -> None:
        """Nothing to build: the plan knows its manifests."""

    def _deleted_entries(self) -> list[ManifestEntry]:
        return [_with_status(e, ManifestEntryStatus.DELETED, self._snapshot_id) for e in self._plan.removed]

    def _existing_manifests(self) -> list[ManifestFile]:
        rewritten = []
        for spec_id, entries in self._plan.kept:
            with self.new_manifest_writer(self.spec(spec_id)) as writer:
                for entry in entries:
                    writer.add_entry(_with_status(entry, ManifestEntryStatus.EXISTING, entry.snapshot_id))
            rewritten.append(writer.to_manifest_file())
        return rewritten + self._plan.untouched

    def _commit(self) -> UpdatesAndRequirements:
        updates, requirements = super()._commit()
        metadata = self._transaction.table_metadata
        # The files were checked against this schema and this spec, and a REST catalog compares only what a commit asks
        # it to compare.
        same = (
            AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
            AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
        )
        # Iceberg's Java refuses to load a table whose snapshot log goes back by more than a minute; the commit before
        # may come from a machine whose clock is ahead.
        later = tuple(_not_before(update, metadata.last_updated_ms) for update in updates)
        return later, (*requirements, *same)


def _not_before(update: TableUpdate, earliest_ms: int) -> TableUpdate:
    if not isinstance(update, AddSnapshotUpdate):
        return update
    at = max(update.snapshot.timestamp_ms, earliest_ms)
    return AddSnapshotUpdate(snapshot=update.snapshot.model_copy(update={"timestamp_ms": at}))


def _with_status(entry: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int | None) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )

"""Forks that begin with files of the table's head, and the rewrites made in them.

A fork has only the files to rewrite, or to compare new rows with, so Spark needs no filter, and a worker can't touch
other files. Its snapshot, the base, keeps its id and sequence numbers, so that deletes apply as in the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Final

from pyiceberg.io import FileIO, OutputFile
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry, ManifestFile, write_manifest_list
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Summary

from lakehouse_assets.commit.deletes import DeleteFiles
from lakehouse_assets.commit.fork import FORMAT_VERSION, ForkBase, fork_name, identity_of, with_only, written_base
from lakehouse_assets.commit.landing import Proof, ReadSnapshot, RewriteUnit
from lakehouse_assets.commit.manifests import (
    Entries,
    Partition,
    by_kind,
    existing,
    partition_of,
    partition_paths,
    write_manifest,
)
from lakehouse_assets.errors import PublishRefused
from lakehouse_assets.wire.receipts import Receipt
from lakehouse_assets.wire.work import Digest

CODEC: Final = "deflate"
"""The compression of manifest lists."""


def write_head_fork(table: Table, base: ReadSnapshot, token: str, entries: Sequence[ManifestEntry]) -> ForkBase:
    """Writes a metadata file whose only snapshot is the base with these entries.

    entries: data files live at the base, and the delete files that may apply to them. Idempotent: the same files of the
    same base have one fork base. Raises as write_fork_base().
    """
    paths = sorted(entry.data_file.file_path for entry in entries)
    # The name follows from the base and the files, so the same fork is written only once.
    name = fork_name(table, token, (*identity_of(with_only(base.metadata, base.snapshot)), *paths))
    # In the table's metadata folder, because storage like S3 Tables allows no subfolders. "00000", as Iceberg's Java
    # catalogs log a stack trace if there is no version before the first dash; fork_name() begins with that dash.
    place = table.location_provider().new_metadata_location
    location = place(f"00000{name}.metadata.json")
    if written_base(table.io, location) is None:  # written last: if it is there, the rest is
        manifests = [
            write_manifest(
                table.io.new_output(place(f"m{n}{name}.avro")),
                base.metadata,
                kind,
                base.snapshot.snapshot_id,
                existing(listed),
            )
            for n, (kind, listed) in enumerate(by_kind(entries))
        ]
        cut = base.snapshot.model_copy(
            update={
                "parent_snapshot_id": None,
                "manifest_list": _write_list(table.io.new_output(place(f"snap{name}.avro")), base, manifests),
                "summary": _summary(entries),
                # The snapshot may have been committed with an older schema.
                "schema_id": base.metadata.current_schema_id,
            }
        )
        metadata = with_only(base.metadata, cut)
        ToOutputFile.table_metadata(metadata, table.io.new_output(location), overwrite=True)
    return ForkBase(location, base.snapshot.snapshot_id)


def _write_list(output: OutputFile, base: ReadSnapshot, manifests: list[ManifestFile]) -> str:
    with write_manifest_list(
        FORMAT_VERSION, output, base.snapshot.snapshot_id, None, base.sequence_number, CODEC
    ) as writer:
        writer.add_manifests(manifests)
    return output.location


def _summary(entries: Iterable[ManifestEntry]) -> Summary:
    """Returns totals, without which Spark's register_table fails."""
    data = [entry.data_file for entry in entries if entry.data_file.content is DataFileContent.DATA]
    totals = {"total-data-files": str(len(data)), "total-records": str(sum(file.record_count for file in data))}
    return Summary(Operation.APPEND, **totals)


NAMED = 3
"""The most partitions in a unit's name."""


def rewritten_units(io: FileIO, receipt: Receipt) -> list[RewriteUnit]:
    """Returns a worker's rewrite in units that can land separately: one for each replaced partition.

    If files moved to another spec, there is only one, because rows of an old partition may be in any new one. Raises
    PublishRefused if a fork contradicts its receipt, FileNotFoundError if a part of it is gone.
    """
    fork = _Fork.read(io, receipt)
    removed: dict[Partition, list[ManifestEntry]] = defaultdict(list)
    added: dict[Partition, list[DataFile]] = defaultdict(list)
    for entry in fork.removed:
        removed[partition_of(entry)].append(entry)
    for file in fork.added:
        added[file.spec_id, file.partition].append(file)
    if added.keys() <= removed.keys():
        return [_unit(fork, receipt, entries, added[place]) for place, entries in removed.items()]
    return [_unit(fork, receipt, fork.removed, fork.added)]


@dataclass(frozen=True)
class _Fork:
    """What a worker has rewritten in its fork."""

    base: ReadSnapshot
    """The snapshot with which the fork began."""
    removed: Sequence[ManifestEntry]
    """Data files with which the fork began; read() has checked that none is left."""
    deletes: DeleteFiles
    """Delete files with which the fork began."""
    added: Sequence[DataFile]
    """Data files that the worker wrote."""

    @classmethod
    def read(cls, io: FileIO, receipt: Receipt) -> _Fork:
        """Compares the fork with its base. Raises as rewritten_units()."""
        then, now = (
            FromInputFile.table_metadata(io.new_input(location))
            for location in (receipt.fork_base, receipt.metadata_location)
        )
        if problem := _lineage(receipt, then, now):
            raise _refused(receipt, problem)
        before, after = _live(io, then), _live(io, now)
        removed = [e for e in before.values() if e.data_file.content is DataFileContent.DATA]
        if left := [e for e in removed if e.data_file.file_path in after]:
            raise _refused(receipt, f"still has {len(left)} of the {len(removed)} files to rewrite")
        new = [entry.data_file for path, entry in after.items() if path not in before]
        if odd := [file.file_path for file in new if file.content is not DataFileContent.DATA]:
            raise _refused(receipt, f"has a new delete file, {odd[0]}, expected data files only")
        deleting = [e for e in before.values() if e.data_file.content is not DataFileContent.DATA]
        snapshot = then.current_snapshot()
        assert snapshot, "head_fork.py writes one"
        return cls(ReadSnapshot(then, snapshot), removed, DeleteFiles(deleting, then.specs()), new)


def _lineage(receipt: Receipt, then: TableMetadata, now: TableMetadata) -> str | None:
    """Returns why the fork is not its base with one rewrite, if so."""
    bases = [entry.metadata_file for entry in now.metadata_log]
    if bases != [receipt.fork_base] or now.table_uuid != then.table_uuid:
        return f"began from {bases}, expected one commit to {receipt.fork_base}"
    head = now.current_snapshot()
    if head is None or head.parent_snapshot_id != then.current_snapshot_id:
        return f"has the snapshot {head}, expected one that follows {then.current_snapshot_id}"
    if head.summary is None or head.summary.operation is not Operation.REPLACE:
        return f"has the snapshot {head}, expected a replacement of files"
    return None


def _live(io: FileIO, metadata: TableMetadata) -> dict[str, ManifestEntry]:
    snapshot = metadata.current_snapshot()
    manifests = snapshot.manifests(io) if snapshot else []
    return {e.data_file.file_path: e for read in Entries().read(io, manifests) for e in read}


def _unit(fork: _Fork, receipt: Receipt, removed: Sequence[ManifestEntry], added: Sequence[DataFile]) -> RewriteUnit:
    applied = fork.deletes.applying_to_any(removed)
    assert receipt.rewritten, "of a worker that rewrites"
    before, after = receipt.rewritten.before, receipt.rewritten.after
    proof = Proof(_digest(before, [entry.data_file for entry in removed]), _digest(after, added))
    return RewriteUnit(
        _name(fork.base.metadata, removed), fork.base, tuple(removed), tuple(applied), tuple(added), proof
    )


def _digest(sums: Mapping[str, Digest], files: Iterable[DataFile]) -> Digest:
    """Adds up the files' digests; a file without rows has none."""
    return reduce(add, (sums[file.file_path] for file in files if file.file_path in sums), Digest())


def _name(metadata: TableMetadata, removed: Iterable[ManifestEntry]) -> str:
    # By repr(), because partition tuples have no order.
    places = sorted({partition_of(entry) for entry in removed}, key=repr)
    paths = [*map(partition_paths(metadata), places)]
    more = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
    return ", ".join(paths[:NAMED]) + more


def _refused(receipt: Receipt, problem: str) -> PublishRefused:
    return PublishRefused(
        f"table {receipt.table}, chunk {receipt.chunk} of the rewrite: the fork {receipt.metadata_location} {problem}. "
        "Nothing landed; the next maintenance starts over"
    )

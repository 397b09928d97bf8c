"""Reads what a worker's rewrite did to its fork, as units that can land.

Each unit has the files that were removed and added, and its proof. The fork base is written in head_fork.py; whether a
unit still fits its table is decided in landing_rules.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from lakehouse_assets.commit.deletes import DeleteFiles
from lakehouse_assets.commit.entries import Entries, Partition, partition_of, partition_paths
from lakehouse_assets.commit.landing_rules import Base, Proof, Unit
from lakehouse_assets.errors import PublishRefused
from lakehouse_assets.wire.receipts import Receipt
from lakehouse_assets.wire.work import Digest

NAMED = 3
"""The most partitions that the name of a unit lists."""


def rewritten_units(io: FileIO, receipt: Receipt) -> list[Unit]:
    """Returns one unit for each partition whose files the rewrite replaced, or a single unit for all of them.

    It is a single one if a new file is in another partition, since files move to another spec: rows of an old partition
    may be in any of the new ones.
    io: reads the table's files. Raises PublishRefused for a fork that is not what its receipt says, FileNotFoundError
        if a part of it is gone.
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
    """The files of a worker's fork, before and after its rewrite."""

    base: Base
    """The metadata and the snapshot that the fork began with."""
    removed: Sequence[ManifestEntry]
    """The entries of the data files that the fork began with; the rewrite removed them all."""
    deletes: DeleteFiles
    """The entries of the delete files that the fork began with, to be looked up by data files."""
    added: Sequence[DataFile]
    """The data files that the rewrite added."""

    @classmethod
    def read(cls, io: FileIO, receipt: Receipt) -> _Fork:
        then, now = (
            FromInputFile.table_metadata(io.new_input(location))
            for location in (receipt.fork_base, receipt.metadata_location)
        )
        if problem := _lineage(receipt, then, now):
            raise _refused(receipt, problem)
        before, after = _live(io, then), _live(io, now)
        removed = [e for e in before.values() if e.data_file.content is DataFileContent.DATA]
        if left := [e for e in removed if e.data_file.file_path in after]:
            raise _refused(receipt, f"still has {len(left)} of {len(removed)} files that were to be rewritten")
        new = [entry.data_file for path, entry in after.items() if path not in before]
        if odd := [file.file_path for file in new if file.content is not DataFileContent.DATA]:
            raise _refused(receipt, f"has a new delete file, {odd[0]}, expected data files only")
        deleting = [e for e in before.values() if e.data_file.content is not DataFileContent.DATA]
        snapshot = then.current_snapshot()
        assert snapshot, "head_fork.py writes one"
        return cls(Base(then, snapshot), removed, DeleteFiles(deleting, then.specs()), new)


def _lineage(receipt: Receipt, then: TableMetadata, now: TableMetadata) -> str | None:
    """Returns what is wrong with where the fork came from; None if nothing is."""
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


def _unit(fork: _Fork, receipt: Receipt, removed: Sequence[ManifestEntry], added: Sequence[DataFile]) -> Unit:
    applied = fork.deletes.applying_to_any(removed)
    assert receipt.rewritten, "of a worker that rewrites"
    before, after = receipt.rewritten.before, receipt.rewritten.after
    proof = Proof(_digest(before, [entry.data_file for entry in removed]), _digest(after, added))
    return Unit(_name(fork.base.metadata, removed), fork.base, tuple(removed), tuple(applied), tuple(added), proof)


def _digest(sums: Mapping[str, Digest], files: Iterable[DataFile]) -> Digest:
    """Adds up the digest of all rows that were counted in these files.

    A file in which none was left has no sums.
    """
    return reduce(add, (sums[file.file_path] for file in files if file.file_path in sums), Digest())


def _name(metadata: TableMetadata, removed: Iterable[ManifestEntry]) -> str:
    places = sorted({partition_of(entry) for entry in removed}, key=repr)
    paths = [*map(partition_paths(metadata), places)]
    more = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
    return ", ".join(paths[:NAMED]) + more


def _refused(receipt: Receipt, problem: str) -> PublishRefused:
    return PublishRefused(
        f"table {receipt.table}, chunk {receipt.chunk} of the rewrite: the fork {receipt.metadata_location} {problem}. "
        "Nothing of it was landed; the next maintenance begins anew"
    )

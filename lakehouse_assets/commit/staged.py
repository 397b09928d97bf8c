"""Reads the forks that workers staged, each checked against its receipt.

A fork is a private copy of the metadata of a table, its target, in which one worker has staged its chunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.types import NestedField

from lakehouse_assets.commit.tokens import TOKEN
from lakehouse_assets.environment.aws import READERS
from lakehouse_assets.errors import PublishRefused
from lakehouse_assets.keys_text import keys_text, parts_of
from lakehouse_assets.storage.objects import at_once
from lakehouse_assets.wire.receipts import Receipt

if TYPE_CHECKING:
    from pyarrow import ChunkedArray

    from lakehouse_assets.declare.region import Region

REPLACEMENT = "\ufffd".encode()
"""Java's replacement for bytes that are not UTF-8."""


@dataclass(frozen=True)
class StagedChunk:
    """One chunk as its fork holds it."""

    receipt: Receipt
    files: tuple[DataFile, ...]
    """Each path once."""
    metadata: TableMetadata
    """The fork's, with the target's ids."""
    io: FileIO
    deletes: tuple[DataFile, ...] = ()
    """Delete files that a merge added."""
    removed: tuple[ManifestEntry, ...] = ()
    """Entries of files that a merge removed."""

    @property
    def schema(self) -> Schema:
        """The fork's current schema, with the target's ids."""
        return self.metadata.schema()


def read_all(io_properties: Mapping[str, str], receipts: Sequence[Receipt]) -> list[StagedChunk]:
    """Reads the forks of the receipts, in order. Raises PublishRefused if one is not what its receipt says."""
    if not receipts:
        return []
    # One FileIO for all: the forks are in the metadata folder of one table.
    io = load_file_io(dict(io_properties), receipts[0].metadata_location)
    return at_once(lambda receipt: _read(io, receipt), receipts)


def partition_stats(region: Region, chunks: Iterable[StagedChunk]) -> dict[str, tuple[int, int, int]]:
    """Returns (rows, files, bytes) for every key of the region."""
    stats = dict.fromkeys(parts_of(region.keys), (0, 0, 0))
    for file in distinct_files(chunks):
        if (key := region.key_of(file.partition)) is not None:
            rows, files, size = stats[key]
            stats[key] = (rows + file.record_count, files + 1, size + file.file_size_in_bytes)
    return stats


def repeated_chunks(chunks: Iterable[StagedChunk]) -> list[int]:
    """Returns the numbers of chunks that occur more than once."""
    counts = Counter(chunk.receipt.chunk for chunk in chunks)
    return sorted(n for n, count in counts.items() if count > 1)


def distinct_files(chunks: Iterable[StagedChunk]) -> list[DataFile]:
    """Returns the data files of all chunks: a receipt read twice must not double its rows."""
    return list({file.file_path: file for chunk in chunks for file in chunk.files}.values())


def missing_files(io: FileIO, files: Collection[DataFile]) -> list[str]:
    """Returns the paths of files that are not in storage.

    Opens each: asked whether a file exists, PyArrow lists a missing one to see if it is a folder, which S3 Tables
    forbids.
    """

    def is_there(file: DataFile) -> bool:
        try:
            io.new_input(file.file_path).open().close()
        except FileNotFoundError:
            return False
        return True

    with ThreadPoolExecutor(READERS * 2, thread_name_prefix="exists") as pool:
        present = pool.map(is_there, files)
        return [file.file_path for file, there in zip(files, present, strict=True) if not there]


def _read_column(chunk: StagedChunk, file: DataFile, column: NestedField) -> ChunkedArray:
    from pyiceberg.io.pyarrow import ArrowScan  # pyarrow: not needed to load definitions

    # As optional, because a required column may have nulls here.
    nullable = Schema(column.model_copy(update={"required": False}))
    scan = ArrowScan(chunk.metadata, chunk.io, nullable, AlwaysTrue())
    return scan.to_table([FileScanTask(file)]).column(0)


def nulls_in(chunk: StagedChunk, file: DataFile, column: NestedField) -> int:
    """Returns the nulls of a column; counts them if statistics are missing."""
    known = (file.null_value_counts or {}).get(column.field_id)
    return int(_read_column(chunk, file, column).null_count) if known is None else known


def malformed_in(chunk: StagedChunk, file: DataFile, column: NestedField) -> list[bytes]:
    """Finds a text column's values that are not UTF-8, if they may have reached the file's bounds.

    Iceberg's Java writes U+FFFD into bounds instead of their bytes, so a filter may skip the file.
    """
    bounds = [(side or {}).get(column.field_id, b"") for side in (file.lower_bounds, file.upper_bounds)]
    if not any(REPLACEMENT in bound for bound in bounds):
        return []
    from pyarrow import large_binary

    # A valid text, even one with U+FFFD, is the same after decoding and encoding; other bytes are not.
    values = _read_column(chunk, file, column).unique().cast(large_binary()).to_pylist()
    return [value for value in values if value is not None and value.decode(errors="replace").encode() != value]


def _read(io: FileIO, receipt: Receipt) -> StagedChunk:
    try:
        metadata = FromInputFile.table_metadata(io.new_input(receipt.metadata_location))
        _check_origin(receipt, metadata)
        entries = _written(io, metadata, receipt.base_snapshot_id)
    except FileNotFoundError as error:
        raise _refused(
            receipt, f"is gone, or a part of it is ({error}); it may have been removed as an orphan"
        ) from error
    added = {e.data_file.file_path: e.data_file for e in entries if e.status is not ManifestEntryStatus.DELETED}
    removed = tuple(e for e in entries if e.status is ManifestEntryStatus.DELETED)
    files = tuple(file for file in added.values() if file.content is DataFileContent.DATA)
    deletes = tuple(file for file in added.values() if file.content is not DataFileContent.DATA)
    if deletes and receipt.merged is None:
        raise _refused(receipt, f"holds a delete file, {deletes[0].file_path}; expected appends only")
    if (rows := sum(file.record_count for file in files)) != receipt.rows:
        raise _refused(receipt, f"has {rows} rows in {len(files)} files, but the receipt says {receipt.rows}")
    return StagedChunk(receipt, files, metadata, io, deletes, removed)


def _written(io: FileIO, metadata: TableMetadata, base_id: int | None) -> list[ManifestEntry]:
    """Returns the entries of files that the worker added or removed."""
    snapshot = metadata.current_snapshot()
    if snapshot is None or snapshot.snapshot_id == base_id:
        return []
    manifests = snapshot.manifests(io)
    if base_id is not None:  # the base's own manifests are in the fork, too
        manifests = [m for m in manifests if m.added_snapshot_id == snapshot.snapshot_id]
    # Not read_manifests(), which leaves out removed files.
    entries = [entry for m in manifests for entry in m.fetch_manifest_entry(io, discard_deleted=False)]
    return [entry for entry in entries if entry.status is not ManifestEntryStatus.EXISTING]


def _check_origin(receipt: Receipt, metadata: TableMetadata) -> None:
    bases = [entry.metadata_file for entry in metadata.metadata_log]
    # A merge that changes no row names the fork base itself.
    if bases != [receipt.fork_base] and receipt.metadata_location != receipt.fork_base:
        raise _refused(receipt, f"began from {bases}, expected one append to {receipt.fork_base}")
    base_id = receipt.base_snapshot_id
    if base_id is not None and metadata.snapshot_by_id(base_id) is None:
        raise _refused(receipt, f"has no snapshot {base_id}, with which it began according to its receipt")
    added = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id != base_id]
    tokens = Counter(snapshot.summary[TOKEN] if snapshot.summary else None for snapshot in added)
    # Before Iceberg 1.11 a MERGE can't name its run (apache/iceberg#14545). Its fork is known by its base, as above.
    unnamed = {None} if receipt.merged else set()
    if set(tokens) - {receipt.token} - unnamed or tokens.total() > 1:
        raise _refused(receipt, f"has snapshots of the runs {dict(tokens)}, expected one of {receipt.token}")
    branches = metadata.refs.keys() - {MAIN_BRANCH}
    if branches or any(snapshot.snapshot_id != metadata.current_snapshot_id for snapshot in added):
        raise _refused(receipt, f"has its snapshot on {', '.join(sorted(branches)) or 'no branch'}, expected main only")
    if not added and receipt.rows:
        raise _refused(receipt, f"has no snapshot of its worker, but the receipt says {receipt.rows} rows")


def _refused(receipt: Receipt, problem: str) -> PublishRefused:
    return PublishRefused(
        f"table {receipt.table}, chunk {receipt.chunk} ({keys_text(receipt.keys)}): the fork "
        f"{receipt.metadata_location} {problem}. Materialize the partitions again: a new run stages them again"
    )

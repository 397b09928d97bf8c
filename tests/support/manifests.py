"""Manifests as tests want them, written by PyIceberg's own writer: kinds of files, sequence numbers, blocks.
Also tables in a SQLite catalog whose current snapshot lists such manifests; their data files do not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV1,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _SnapshotProducer
from pyiceberg.typedef import Record

DATA, POSITIONS, EQUALITY = DataFileContent.DATA, DataFileContent.POSITION_DELETES, DataFileContent.EQUALITY_DELETES
ADDED, EXISTING, DELETED = ManifestEntryStatus.ADDED, ManifestEntryStatus.EXISTING, ManifestEntryStatus.DELETED
SNAPSHOT = 42
_numbers = count()


@dataclass(frozen=True)
class Listed:
    """One entry of a manifest. sequence: its data sequence number; None: inherited, for an added one."""

    partition: tuple[Any, ...] = ()
    size: int = 100
    rows: int = 1
    content: DataFileContent = DATA
    status: ManifestEntryStatus = EXISTING
    sequence: int | None = 1
    columns: int = 3

    def entry(self) -> ManifestEntry:
        ids = range(1, self.columns + 1)
        metrics = {i: 40 * i for i in ids}
        bounds = {i: bytes(i) for i in ids}
        file = DataFile.from_args(
            content=self.content,
            file_path=f"file:///nowhere/{next(_numbers)}.parquet",
            file_format=FileFormat.PARQUET,
            partition=Record(*self.partition),
            record_count=self.rows,
            file_size_in_bytes=self.size,
            column_sizes=metrics,
            value_counts=metrics,
            null_value_counts=metrics,
            nan_value_counts={} if self.columns % 2 else None,
            lower_bounds=bounds,
            upper_bounds=bounds,
            key_metadata=b"key" if self.columns % 2 else None,
            split_offsets=[4, 1_000_000],
            equality_ids=[1, 2] if self.content is EQUALITY else None,
            sort_order_id=0,
        )
        return ManifestEntry.from_args(
            status=self.status,
            snapshot_id=SNAPSHOT if self.sequence is None else 7,
            sequence_number=self.sequence,
            file_sequence_number=self.sequence,
            data_file=file,
        )


class _Writer:
    """Writes so many entries a block; PyIceberg writes one, Iceberg's Java hundreds."""

    per_block: int
    kind: ManifestContent

    def __enter__(self) -> Any:
        super().__enter__()
        self._block_writer, self._waiting = self._writer.write_block, []
        self._writer.write_block = self._waiting.extend
        return self

    def __exit__(self, *error: Any) -> None:
        for at in range(0, len(self._waiting), self.per_block):
            self._block_writer(self._waiting[at : at + self.per_block])
        super().__exit__(*error)

    def content(self) -> ManifestContent:
        return self.kind


class _V1(_Writer, ManifestWriterV1):
    pass


class _V2(_Writer, ManifestWriterV2):
    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "data" if self.kind is ManifestContent.DATA else "deletes"}


def write_manifest(
    path: str,
    spec: PartitionSpec,
    schema: Schema,
    listed: Iterable[Listed],
    *,
    version: int = 2,
    codec: str = "gzip",
    per_block: int = 1,
    snapshot_id: int = SNAPSHOT,
    io: FileIO | None = None,
) -> ManifestFile:
    """A manifest of these entries, all of data files or all of delete files, as no snapshot lists it yet."""
    entries = [each.entry() for each in listed]
    output = (io or PyArrowFileIO()).new_output(path)
    writer = (_V1 if version == 1 else _V2)(spec, schema, output, snapshot_id, codec)
    writer.per_block = per_block
    deletes = bool(entries) and entries[0].data_file.content is not DATA
    writer.kind = ManifestContent.DELETES if deletes else ManifestContent.DATA
    with writer:
        for entry in entries:
            writer.add_entry(entry)
    return writer.to_manifest_file()


class _Listing(_SnapshotProducer["_Listing"]):
    """A snapshot that lists just these manifests."""

    make: Callable[[int], list[ManifestFile]]

    def _deleted_entries(self) -> list[ManifestEntry]:
        return []

    def _existing_manifests(self) -> list[ManifestFile]:
        return self.make(self.snapshot_id)


@dataclass
class Crafted:
    """A table whose snapshots list what a test says."""

    table: Table
    per_block: int = 1
    _made: count = field(default_factory=count)

    @classmethod
    def create(
        cls, catalog: Catalog, schema: Schema, spec: PartitionSpec, identifier: str = "demo.crafted", **options: str
    ) -> Crafted:
        """options: the table's properties, with _ for -."""
        catalog.create_namespace_if_not_exists(identifier.partition(".")[0])
        return cls(catalog.create_table(identifier, schema, partition_spec=spec, properties=options))

    def list(self, *manifests: Sequence[Listed], keep: bool = False, operation: Operation = Operation.APPEND) -> Table:
        """Commit a snapshot of these manifests, of the default spec. keep: and of those of the current one."""
        table = self.table
        snapshot = table.current_snapshot()
        kept = snapshot.manifests(table.io) if keep and snapshot else []
        transaction = table.transaction()
        producer = _Listing(operation, transaction, table.io)
        producer.make = lambda snapshot_id: [*kept, *(self._write(listed, snapshot_id) for listed in manifests)]
        producer.commit()
        transaction.commit_transaction()
        return table.refresh()

    def _write(self, listed: Sequence[Listed], snapshot_id: int) -> ManifestFile:
        table = self.table
        path = f"{table.location()}/metadata/{next(self._made)}-{snapshot_id}.avro"
        return write_manifest(
            path,
            table.spec(),
            table.schema(),
            listed,
            per_block=self.per_block,
            snapshot_id=snapshot_id,
            io=table.io,
        )


def sqlite_catalog(folder: Path, **properties: str) -> Catalog:
    """A SQLite catalog with its warehouse in a folder."""
    (folder / "warehouse").mkdir(parents=True, exist_ok=True)
    place = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": (folder / "warehouse").as_uri()}
    return load_catalog("lake", type="sql", **place, **properties)


def entry_fields(entries: Iterable[ManifestEntry]) -> list[str]:
    """All that entries say but for their status, sorted: PyIceberg compares files by their paths alone."""
    return sorted(
        repr((e.snapshot_id, e.sequence_number, e.file_sequence_number, e.data_file.spec_id, _fields(e.data_file)))
        for e in entries
    )


def _fields(file: DataFile) -> list[Any]:
    values = [file[at] for at in range(len(file))]
    return [dict(value) if isinstance(value, Mapping) else value for value in values]

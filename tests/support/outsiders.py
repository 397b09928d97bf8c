"""What other engines do to a table, done without them: delete files, and a reader by the rules of the format.
The reader shares nothing with PyIceberg's scan, which refuses equality deletes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _SnapshotProducer
from pyiceberg.typedef import Record

from lakehouse_assets.commit.manifests import DeleteManifestWriter

PATH_ID, POS_ID = 2147483546, 2147483545
FIELD_ID = b"PARQUET:field_id"
Row = tuple[Any, ...]
MOST_KNOWN = 1000
_known: dict[tuple[str, int, int], list[ManifestEntry]] = {}


class _Deletes(_SnapshotProducer["_Deletes"]):
    """A snapshot that adds delete files, as a merge-on-read DELETE does, or data files."""

    files: Sequence[DataFile] = ()
    writer: type[ManifestWriterV2] = DeleteManifestWriter

    def _deleted_entries(self) -> list[ManifestEntry]:
        return []

    def _existing_manifests(self) -> list[ManifestFile]:
        metadata = self._transaction.table_metadata
        snapshot = metadata.current_snapshot()
        written = []
        for spec_id in {file.spec_id for file in self.files}:
            spec, output = metadata.specs()[spec_id], self.new_manifest_output()
            with self.writer(spec, self.schema(), output, self._snapshot_id, "null") as writer:
                for file in (f for f in self.files if f.spec_id == spec_id):
                    writer.add(
                        ManifestEntry.from_args(
                            status=ManifestEntryStatus.ADDED,
                            snapshot_id=self._snapshot_id,
                            sequence_number=None,
                            file_sequence_number=None,
                            data_file=file,
                        )
                    )
            written.append(writer.to_manifest_file())
        return [*snapshot.manifests(self._io), *written]


def commit_deletes(table: Table, *files: DataFile) -> None:
    """Commit delete files, at once; a conflict is raised."""
    with table.transaction() as transaction:
        producer = _Deletes(Operation.DELETE, transaction, table.io)
        producer.files = files
        producer.commit()


def commit_file(table: Table, rows: pa.Table, partition: Record) -> None:
    """Commit rows as one file of a partition, also where PyIceberg's append can't name it."""
    path = table.location_provider().new_data_location(f"{uuid4()}.parquet")
    with table.io.new_output(path).create() as stream:
        pq.write_table(rows.cast(table.schema().as_arrow()), stream)
    size = len(table.io.new_input(path))
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=rows.num_rows,
        file_size_in_bytes=size,
    )
    file.spec_id = table.spec().spec_id
    with table.transaction() as transaction:
        producer = _Deletes(Operation.APPEND, transaction, table.io)
        producer.files, producer.writer = [file], ManifestWriterV2
        producer.commit()


def position_deletes(
    table: Table, positions: Mapping[str, Sequence[int]], *, bounds: bool = True, partition: Record | None = None
) -> DataFile:
    """One file that deletes rows of data files of one partition. bounds: whether its metadata bounds the paths."""
    rows = sorted((path, at) for path, found in positions.items() for at in found)
    schema = pa.schema([_field("file_path", pa.string(), PATH_ID), _field("pos", pa.int64(), POS_ID)])
    content = pa.table({"file_path": [r[0] for r in rows], "pos": [r[1] for r in rows]}, schema=schema)
    of = {entry.data_file.file_path: entry.data_file for entry in live(table)}[rows[0][0]]
    low, high = rows[0][0].encode(), rows[-1][0].encode()
    return _delete_file(
        table,
        content,
        DataFileContent.POSITION_DELETES,
        of.partition if partition is None else partition,
        of.spec_id,
        lower_bounds={PATH_ID: low} if bounds else None,
        upper_bounds={PATH_ID: high} if bounds else None,
    )


def equality_deletes(table: Table, column: str, values: Sequence[Any], partition: Record) -> DataFile:
    """One file that deletes the older rows of a partition with one of these values."""
    field = table.schema().find_field(column)
    arrow = table.schema().as_arrow().field(column).type
    content = pa.table({column: values}, schema=pa.schema([_field(column, arrow, field.field_id)]))
    return _delete_file(
        table,
        content,
        DataFileContent.EQUALITY_DELETES,
        partition,
        table.spec().spec_id,
        equality_ids=[field.field_id],
    )


def live(table: Table, snapshot_id: int | None = None) -> list[ManifestEntry]:
    """The entries of the data files that are live in a snapshot, by default the current one."""
    return [e for m, e in _entries(table, snapshot_id) if m.content is ManifestContent.DATA]


def live_deletes(table: Table, snapshot_id: int | None = None) -> list[ManifestEntry]:
    """The entries of the delete files that are live in a snapshot, by default the current one."""
    return [e for m, e in _entries(table, snapshot_id) if m.content is ManifestContent.DELETES]


def multiset(table: Table, snapshot_id: int | None = None) -> Counter[Row]:
    """The rows of a snapshot, by default the current one, each as often as it is there, by the rules of the format
    (https://iceberg.apache.org/spec/#scan-planning): the current one with the table's columns, an older one with those
    of its time."""
    schema, entries = _schema(table, snapshot_id), _entries(table, snapshot_id, _read_once)
    deletes = [(e, _parquet(table, e.data_file)) for m, e in entries if m.content is ManifestContent.DELETES]
    data = [e for m, e in entries if m.content is ManifestContent.DATA]
    return Counter(row for entry in data for row in _rows(table, schema, entry, deletes))


def _schema(table: Table, snapshot_id: int | None) -> Schema:
    snapshot = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id else None
    known = snapshot is not None and snapshot.schema_id is not None
    return table.schemas()[snapshot.schema_id] if known else table.schema()


def _rows(
    table: Table, schema: Schema, entry: ManifestEntry, deletes: Iterable[tuple[ManifestEntry, pa.Table]]
) -> list[Row]:
    file = entry.data_file
    content = _parquet(table, file)
    gone: set[int] = set()
    for delete, found in deletes:
        same = (delete.data_file.spec_id, delete.data_file.partition) == (file.spec_id, file.partition)
        if not same and not table.specs()[delete.data_file.spec_id].is_unpartitioned():
            continue
        if delete.data_file.content is DataFileContent.POSITION_DELETES:
            if delete.sequence_number >= entry.sequence_number:
                gone |= {r["pos"] for r in found.to_pylist() if r["file_path"] == file.file_path}
        elif delete.sequence_number > entry.sequence_number:
            keys = {tuple(r.values()) for r in found.to_pylist()}
            columns = content.select(found.column_names).to_pylist()
            gone |= {n for n, row in enumerate(columns) if tuple(row.values()) in keys}
    names = _names_in(content, schema)
    return [tuple(repr(row.get(name)) for name in names) for n, row in enumerate(content.to_pylist()) if n not in gone]


def _names_in(content: pa.Table, schema: Schema) -> list[str]:
    """What a file calls the columns of a schema: a column of the same name may be another that was dropped since. Files
    that other engines add say no ids, their columns are known by name."""
    ids = {field.metadata[FIELD_ID]: field.name for field in content.schema if FIELD_ID in (field.metadata or {})}
    return [ids.get(str(f.field_id).encode(), "") if ids else f.name for f in schema.fields]


def _parquet(table: Table, file: DataFile) -> pa.Table:
    with table.io.new_input(file.file_path).open() as stream:
        return pq.read_table(stream)


def _read(io: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
    return manifest.fetch_manifest_entry(io, discard_deleted=True)


def _read_once(io: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
    """For who changes no entry: manifests never change, and to read them anew at each step of a model takes most of its
    time."""
    inherited = (manifest.manifest_path, manifest.sequence_number, manifest.added_snapshot_id)
    if inherited not in _known:
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        _known[inherited] = _read(io, manifest)
    return _known[inherited]


def _entries(
    table: Table, snapshot_id: int | None, read: Callable[[FileIO, ManifestFile], list[ManifestEntry]] = _read
) -> list[tuple[ManifestFile, ManifestEntry]]:
    snapshot = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id else table.metadata.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    return [(m, entry) for m in manifests for entry in read(table.io, m)]


def _delete_file(
    table: Table, content: pa.Table, kind: DataFileContent, partition: Record, spec_id: int, **metadata: Any
) -> DataFile:
    path = table.location_provider().new_data_location(f"{uuid4()}-deletes.parquet")
    output = table.io.new_output(path)
    with output.create() as stream:
        pq.write_table(content, stream)
    file = DataFile.from_args(
        content=kind,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=content.num_rows,
        file_size_in_bytes=len(output),
        **metadata,
    )
    file.spec_id = spec_id
    return file


def _field(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, nullable=False, metadata={FIELD_ID: str(field_id).encode()})

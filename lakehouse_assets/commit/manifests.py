"""Manifests: reading and writing them, and which ones a commit keeps, rewrites or adds."""

from __future__ import annotations

import gc
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from types import TracebackType
from typing import Any, cast

from pyiceberg.avro.codecs import AvroCompressionCodec
from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.avro.file import META_SCHEMA, SYNC_SIZE, AvroFileHeader, AvroOutputFile
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    PartitionFieldSummary,
    read_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record, TableVersion
from pyiceberg.types import IcebergType, IntegerType, ListType, NestedField, PrimitiveType, StructType, UnknownType

from lakehouse_assets.environment.aws import READERS
from lakehouse_assets.errors import UnreadableMetadata


def live_entries(io: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
    """Returns the entries of a manifest's live files. Raises as read_manifests()."""
    ((_, entries),) = read_manifests(io, [manifest])
    return entries


def read_manifests(io: FileIO, manifests: Sequence[ManifestFile]) -> Iterator[tuple[ManifestFile, list[ManifestEntry]]]:
    """Yields the manifests in order, each with the entries of its live files.

    Raises UnreadableMetadata if one is not what its manifest list says, OSError if it can't be read.
    """
    for manifest, data in zip(manifests, _read(io, [m.manifest_path for m in manifests]), strict=True):
        yield manifest, _entries(data, manifest)


def read_manifest_lists(io: FileIO, paths: Sequence[str]) -> Iterator[list[ManifestFile]]:
    """Yields the manifests of each manifest list. Raises as read_manifests().

    No length is recorded for a manifest list, so a torn one that ends with a whole block counts as complete.
    """
    for path, data in zip(paths, _read(io, paths), strict=True):
        try:
            _refuse_torn(data)
            # The compiled decoder may read past the end of a torn file, so this comes second.
            manifests = list(read_manifest_list(cast(InputFile, _InMemory(data))))
        except Exception as error:  # what PyIceberg meets in a torn or foreign file
            raise unreadable(path, repr(error)) from error
        yield manifests


def current_manifests(table: Table) -> list[ManifestFile]:
    """Returns the manifests of the current snapshot, if any. Raises as read_manifests()."""
    snapshot = table.metadata.current_snapshot()
    return next(read_manifest_lists(table.io, [snapshot.manifest_list])) if snapshot else []


def has_live_files(manifest: ManifestFile) -> bool:
    """Whether the manifest lists more than deletions of an earlier snapshot."""
    return manifest.has_added_files() or manifest.has_existing_files()


@contextmanager
def without_cycle_collector() -> Iterator[None]:
    """Turns off Python's cycle collector, which looks at all manifest entries although they are in no cycle.

    With 10,000 replaced files it took a third of a publish.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def unreadable(path: str, found: str) -> UnreadableMetadata:
    """Returns the error for a torn or foreign file."""
    return UnreadableMetadata(
        f"the manifest {path} is torn or foreign: {found}. Restore it, or roll the table back to a snapshot that does "
        "not list it"
    )


@dataclass(frozen=True)
class _InMemory:
    """FileIO and InputFile for PyIceberg's readers."""

    data: bytes

    def new_input(self, _: str) -> _InMemory:
        return self

    def open(self) -> BytesIO:
        return BytesIO(self.data)


def _read(io: FileIO, paths: Sequence[str]) -> Iterator[bytes]:
    """Reads READERS files at once, as storage answers slowly, but yields them one by one to be decoded.

    Threads that contend for the GIL take three times the CPU.
    """
    with ThreadPoolExecutor(READERS, thread_name_prefix="manifests") as pool:
        for start in range(0, len(paths), READERS):
            yield from pool.map(lambda path: _bytes(io, path), paths[start : start + READERS])


def _bytes(io: FileIO, path: str) -> bytes:
    with io.new_input(path).open() as stream:
        return stream.read()


def _entries(data: bytes, manifest: ManifestFile) -> list[ManifestEntry]:
    path = manifest.manifest_path
    if len(data) != manifest.manifest_length:
        raise unreadable(path, f"it has {len(data)} bytes, but its manifest list says {manifest.manifest_length}")
    try:
        with without_cycle_collector():
            entries = manifest.fetch_manifest_entry(cast(FileIO, _InMemory(data)))
    except Exception as error:  # what PyIceberg meets in a torn or foreign file
        raise unreadable(path, repr(error)) from error
    # After a full disk the end may be zeros, at which PyIceberg stops reading.
    listed = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
    if len(entries) < listed:
        raise unreadable(path, f"it has {len(entries)} live entries, but its manifest list says {listed}")
    for entry in entries:
        _unify_nans(entry.data_file.partition)
    return entries


def _unify_nans(partition: Record) -> None:
    """Makes every NaN the object math.nan. Python compares by identity first, so only the same NaN is one partition."""
    for at in range(len(partition)):
        if partition[at] != partition[at]:
            partition[at] = math.nan


def _refuse_torn(data: bytes) -> None:
    """Raises EOFError or ValueError if the file does not end with a whole Avro block."""
    decoder = StreamingBinaryDecoder(data)
    # As PyIceberg reads a header. A block is the number of its objects, its bytes, and the marker from the header.
    header = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(decoder)
    while decoder.tell() < len(data):
        decoder.read_int()
        decoder.read_bytes()
        if decoder.read(SYNC_SIZE) != header.sync:
            raise ValueError(f"no Avro block ends at byte {decoder.tell()}")


ENTRIES_A_BLOCK = 1000
"""100,000 entries take 2.7 MiB in such blocks, 18.7 MiB in blocks of one: each block is compressed alone."""
EQUALITY_IDS = NestedField(
    135, "equality_ids", ListType(element_id=136, element_type=IntegerType(), element_required=True), required=False
)
"""As specified (https://iceberg.apache.org/spec/#manifests). PyIceberg 0.12 writes longs, at which Java's readers fail
with a ClassCastException."""
Kind = tuple[int, ManifestContent]
"""A spec id, and data or delete files."""


def write_manifest(
    output: OutputFile, metadata: TableMetadata, kind: Kind, snapshot_id: int, entries: Iterable[ManifestEntry]
) -> ManifestFile:
    """Writes a manifest of entries of one kind. snapshot_id: of the snapshot that first lists it."""
    spec_id, content = kind
    writer_of = BlockManifestWriter if content is ManifestContent.DATA else DeleteManifestWriter
    codec = metadata.properties.get(
        TableProperties.WRITE_AVRO_COMPRESSION, TableProperties.WRITE_AVRO_COMPRESSION_DEFAULT
    )
    spec, schema = metadata.specs()[spec_id], metadata.schema()
    with writer_of(spec, schema, output, snapshot_id, cast(AvroCompressionCodec, codec)) as writer:
        for entry in entries:
            writer.add_entry(entry)
    return writer.to_manifest_file()


def by_kind(entries: Iterable[ManifestEntry]) -> list[tuple[Kind, list[ManifestEntry]]]:
    """Groups entries as manifests hold them."""
    groups: dict[Kind, list[ManifestEntry]] = defaultdict(list)
    for entry in entries:
        is_data = entry.data_file.content is DataFileContent.DATA
        groups[entry.data_file.spec_id, ManifestContent.DATA if is_data else ManifestContent.DELETES].append(entry)
    return list(groups.items())


def with_status(entry: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int | None) -> ManifestEntry:
    """Returns the entry with another status and snapshot."""
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


def existing(entries: Iterable[ManifestEntry]) -> Iterable[ManifestEntry]:
    """Yields the entries as files that earlier snapshots added."""
    return (with_status(entry, ManifestEntryStatus.EXISTING, entry.snapshot_id) for entry in entries)


class _Blocks(AvroOutputFile[ManifestEntry]):
    """Joins the blocks of one entry each that PyIceberg writes."""

    def __enter__(self) -> _Blocks:
        super().__enter__()
        self._waiting: list[ManifestEntry] = []
        return self

    def write_block(self, objects: list[ManifestEntry]) -> None:
        self._waiting += objects
        if len(self._waiting) >= ENTRIES_A_BLOCK:
            self._flush()

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        if exctype is None:
            self._flush()
        super().__exit__(exctype, excinst, exctb)

    def _flush(self) -> None:
        if self._waiting:  # readers take an empty block for the end
            super().write_block(self._waiting)
            self._waiting = []


class BlockManifestWriter(ManifestWriterV2):
    """Writes manifests of data files, up to ENTRIES_A_BLOCK entries a block."""

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        """Returns a writer of larger blocks."""
        return _Blocks(
            output_file=self._output_file,
            file_schema=self._with_partition(self.version),
            record_schema=self._with_partition(DEFAULT_READ_VERSION),
            schema_name="manifest_entry",
            metadata=self._meta,
        )


class DeleteManifestWriter(BlockManifestWriter):
    """Writes manifests of delete files."""

    def content(self) -> ManifestContent:
        """Returns DELETES."""
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}

    def _with_partition(self, format_version: TableVersion) -> Schema:
        entry = super()._with_partition(format_version)
        return Schema(*[_with_int_ids(field) if field.name == "data_file" else field for field in entry.fields])


def _with_int_ids(data_file: NestedField) -> NestedField:
    assert isinstance(data_file.field_type, StructType)
    fields = [EQUALITY_IDS if f.field_id == EQUALITY_IDS.field_id else f for f in data_file.field_type.fields]
    return NestedField(data_file.field_id, data_file.name, StructType(*fields), required=data_file.required)


Partition = tuple[int, Record]
"""A spec id and a partition tuple."""


def partition_of(entry: ManifestEntry) -> Partition:
    """Returns the partition of the entry's file."""
    return entry.data_file.spec_id, entry.data_file.partition


@dataclass
class Entries:
    """A cache of live entries, by manifest path."""

    without_metrics: bool = False
    """Whether to keep only what _slim() copies: the rest, metrics above all, takes most of the memory."""
    _known: dict[str, list[ManifestEntry]] = field(default_factory=dict)

    def read(self, io: FileIO, manifests: Sequence[ManifestFile]) -> list[list[ManifestEntry]]:
        """Returns the entries of each manifest. Raises as read_manifests()."""
        new = [manifest for manifest in manifests if manifest.manifest_path not in self._known]
        for manifest, entries in read_manifests(io, new):
            self._known[manifest.manifest_path] = [*map(_slim, entries)] if self.without_metrics else entries
        return [self._known[manifest.manifest_path] for manifest in manifests]


def _slim(entry: ManifestEntry) -> ManifestEntry:
    file = entry.data_file
    slim = DataFile.from_args(content=file.content, file_path=file.file_path, partition=file.partition)
    slim.spec_id = file.spec_id
    return ManifestEntry.from_args(
        status=entry.status, snapshot_id=entry.snapshot_id, sequence_number=entry.sequence_number, data_file=slim
    )


def values_of(record: Record) -> tuple[Any, ...]:
    """Returns the values; a Record is not iterable."""
    return tuple(record[at] for at in range(len(record)))


def partition_paths(metadata: TableMetadata) -> Callable[[Partition], str]:
    """Returns a function for a partition's path, "" without partitions."""
    specs = {spec_id: (spec, _schema_with_sources(metadata, spec)) for spec_id, spec in metadata.specs().items()}

    def path_of(partition: Partition) -> str:
        (spec, schema), values = specs[partition[0]], partition[1]
        try:
            return spec.partition_to_path(values, schema)
        except (ValueError, OverflowError):  # a date that Python's calendar lacks, such as in the year 10000
            return str(values_of(values))

    return path_of


def _schema_with_sources(metadata: TableMetadata, spec: PartitionSpec) -> Schema:
    """Returns the newest schema with the spec's columns, of which some may have been dropped since."""
    schemas = [metadata.schema(), *reversed(metadata.schemas)]
    sources = [field.source_id for field in spec.fields]
    complete = (schema for schema in schemas if all(map(schema.find_column_name, sources)))
    return next(complete, metadata.schema())


class Partitions:
    """Finds manifests that may list files of these partitions, by their summaries."""

    def __init__(self, metadata: TableMetadata, partitions: Iterable[Partition]) -> None:
        self._tuples: dict[int, list[Record]] = defaultdict(list)
        specs = metadata.specs()
        for spec_id, values in set(partitions):
            if spec_id in specs:  # no manifest is of a spec that the metadata lacks
                self._tuples[spec_id].append(values)
        self._types = {
            spec_id: [field.field_type for field in specs[spec_id].partition_type(metadata.schema()).fields]
            for spec_id in self._tuples
        }

    def may_be_in(self, manifest: ManifestFile) -> bool:
        """Whether the manifest may list such a file."""
        tuples = self._tuples.get(manifest.partition_spec_id)
        if not tuples:
            return False
        types, summaries = self._types[manifest.partition_spec_id], manifest.partitions or []
        # A manifest may lack summaries.
        if len(types) != len(summaries):
            return True
        ranges = [(s.contains_null, _bounds(s, kind)) for s, kind in zip(summaries, types, strict=True)]
        return any(all(_may_contain(*r, values[n]) for n, r in enumerate(ranges)) for values in tuples)


def _bounds(summary: PartitionFieldSummary, kind: IcebergType) -> tuple[Any, ...] | None:
    """Returns a field's lowest and highest value: None if they can't be read, () if no file has a value."""
    if not isinstance(kind, PrimitiveType) or isinstance(kind, UnknownType):
        return None
    low, high = summary.lower_bound, summary.upper_bound
    return () if low is None or high is None else (from_bytes(kind, low), from_bytes(kind, high))


def _may_contain(has_null: bool, bounds: tuple[Any, ...] | None, value: Any) -> bool:
    if value is None:
        return has_null
    if bounds is None or value != value:  # no bounds hold for NaN
        return True
    if not bounds:
        return False
    try:
        return bool(bounds[0] <= value <= bounds[1])
    except TypeError:  # the tuple holds it in another representation
        return True


@dataclass
class ManifestPlan:
    """The manifests and entries of one attempt to commit."""

    added: list[ManifestEntry] = field(default_factory=list)
    """Entries without a sequence number get the commit's."""
    removed: list[ManifestEntry] = field(default_factory=list)
    untouched: list[ManifestFile] = field(default_factory=list)
    kept: list[tuple[ManifestFile, list[ManifestEntry]]] = field(default_factory=list)
    """Manifests with removed entries, each with its other live entries: a new manifest lists these instead."""
    rewritten: list[ManifestFile] = field(default_factory=list)
    """New manifests that are already written; the ones they replace are in no field."""
    summary: dict[str, str] = field(default_factory=dict)
    """More entries for the snapshot's summary."""

    def split(
        self, manifest: ManifestFile, entries: Iterable[ManifestEntry], goes: Callable[[ManifestEntry], bool]
    ) -> None:
        """Plans which live entries of a manifest stay in the table; a manifest of which none stays is left out.

        goes: whether the commit removes an entry.
        """
        kept: list[ManifestEntry] = []
        removed: list[ManifestEntry] = []
        for entry in entries:
            (removed if goes(entry) else kept).append(entry)
        self.removed += removed
        if not removed:
            self.untouched.append(manifest)
        elif kept:
            self.kept.append((manifest, kept))


def live_manifests(table: Table) -> list[ManifestFile]:
    """Returns the current snapshot's manifests with live files.

    The next snapshot omits the others, as Iceberg's Java does.
    """
    return [manifest for manifest in current_manifests(table) if has_live_files(manifest)]


def added_entry(file: DataFile, sequence_number: int | None = None) -> ManifestEntry:
    """Returns the entry of a file to add; without a sequence number it gets the commit's."""
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED,
        snapshot_id=None,
        sequence_number=sequence_number,
        file_sequence_number=None,
        data_file=file,
    )

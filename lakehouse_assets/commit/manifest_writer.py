"""Writes manifests as Java does and can read: many entries in each Avro block, equality ids as integers.

What a manifest lists is decided in manifest_plan.py and manifest_merge.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from types import TracebackType
from typing import cast

from pyiceberg.avro.codecs import AvroCompressionCodec
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io import OutputFile
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import TableVersion
from pyiceberg.types import IntegerType, ListType, NestedField, StructType

ENTRIES_A_BLOCK = 1000
"""100,000 entries take 2.7 MiB in blocks of so many, 18.7 MiB in blocks of one: each block is compressed alone."""
EQUALITY_IDS = NestedField(
    135, "equality_ids", ListType(element_id=136, element_type=IntegerType(), element_required=True), required=False
)
"""The field as the format defines it (https://iceberg.apache.org/spec/#manifests). PyIceberg 0.12 writes longs, and
Java's readers then fail with a ClassCastException: nobody but PyIceberg could read the table."""
Kind = tuple[int, ManifestContent]
"""The id of a spec, and either data files or delete files: what all entries of a manifest share."""


def write_manifest(
    output: OutputFile, metadata: TableMetadata, kind: Kind, snapshot_id: int, entries: Iterable[ManifestEntry]
) -> ManifestFile:
    """Writes a manifest of these entries, all of one kind, for the snapshot that will list it."""
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
    """Returns the entry with another status and snapshot; its sequence numbers and its file stay."""
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
    """PyIceberg's writer of manifests of data files, with up to ENTRIES_A_BLOCK entries in a block."""

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        """Makes the writer of the Avro file, which gathers entries into blocks."""
        return _Blocks(
            output_file=self._output_file,
            file_schema=self._with_partition(self.version),
            record_schema=self._with_partition(DEFAULT_READ_VERSION),
            schema_name="manifest_entry",
            metadata=self._meta,
        )


class DeleteManifestWriter(BlockManifestWriter):
    """PyIceberg's writer, made to write manifests of delete files."""

    def content(self) -> ManifestContent:
        """Returns that the manifest lists delete files."""
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}

    def _with_partition(self, format_version: TableVersion) -> Schema:
        entry = super()._with_partition(format_version)
        return Schema(*[_with_int_ids(field) if field.name == "data_file" else field for field in entry.fields])


def _with_int_ids(data_file: NestedField) -> NestedField:
    assert isinstance(data_file.field_type, StructType)
    same = EQUALITY_IDS.field_id
    fields = [EQUALITY_IDS if field.field_id == same else field for field in data_file.field_type.fields]
    return NestedField(data_file.field_id, data_file.name, StructType(*fields), required=data_file.required)

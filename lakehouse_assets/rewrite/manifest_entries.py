"""Copies live entries of manifests, with their file as the bytes that were read: nothing of it can change or be lost.

Here they are read and written; which entries go into which manifest is decided in manifest_groups.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from io import BytesIO
from json import loads
from typing import Any, NamedTuple

from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.resolver import construct_writer
from pyiceberg.io import OutputFile
from pyiceberg.manifest import ManifestEntryStatus, ManifestFile
from pyiceberg.types import NestedField, StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from lakehouse_assets.commit.avro_blocks import ENTRIES_A_BLOCK
from lakehouse_assets.commit.avro_file import AVRO_SCHEMA, open_avro, unreadable
from lakehouse_assets.commit.avro_records import DATA_FILE, PARTITION, Read, field_reader, partition_reader, passing
from lakehouse_assets.commit.manifest_reader import RECORD_COUNT, SEQUENCE, STATUS

SNAPSHOT, FILE_SEQUENCE = 1, 4
ENTRY = [STATUS, SNAPSHOT, SEQUENCE, FILE_SEQUENCE, DATA_FILE]
"""The fields of an entry in the order in which every writer of format version 2 has them."""
DIGEST_BYTES = 16


class RawEntry(NamedTuple):
    """A live entry. Its numbers are inherited where the entry leaves them out."""

    snapshot_id: int
    sequence: int
    file_sequence: int | None
    """None where neither has it: early versions of Iceberg did not write it."""
    partition: tuple[Any, ...]
    rows: int
    """The number of rows of the file."""
    file: bytes
    """The ``data_file`` of the entry, in Avro."""

    @property
    def encoded(self) -> bytes:
        """The entry in Avro, with the status of one that an earlier snapshot added."""
        return _existing(self.snapshot_id, self.sequence, self.file_sequence) + self.file


class EntryDigest(NamedTuple):
    """A multiset of entries, by the sum of their hashes.

    Two are equal if they are of the same entries, byte by byte, each as often, in any order.
    """

    entries: int = 0
    total: int = 0

    def plus(self, other: EntryDigest) -> EntryDigest:
        """Returns the digest of the entries of both."""
        return EntryDigest(self.entries + other.entries, (self.total + other.total) % 2 ** (8 * DIGEST_BYTES))

    @classmethod
    def of(cls, encoded: bytes) -> EntryDigest:
        """Makes the digest of one entry of these bytes."""
        return cls(1, int.from_bytes(blake2b(encoded, digest_size=DIGEST_BYTES).digest(), "big"))


def is_copyable(meta: Mapping[str, str]) -> bool:
    """Tells whether entries of a manifest with this header can be copied.

    Those of format version 1 can't be: they leave out what an entry of version 2 must have.
    """
    return _layout(meta[AVRO_SCHEMA]) is not None


def raw_entries(data: bytes, manifest: ManifestFile) -> Iterator[RawEntry]:
    """Yields the live entries of a manifest that is_copyable().

    data: its file. Raises UnreadableMetadata for a torn or foreign one.
    """
    header, blocks = open_avro(data, manifest.manifest_path)
    layout = _layout(header.meta[AVRO_SCHEMA])
    assert layout, "the manifest is copyable"
    for count, block in blocks:
        decoder = new_decoder(block)
        for _ in range(count):
            if (entry := layout.read(decoder, block, manifest)) is not None:
                yield entry
        if decoder.tell() != len(block):
            raise unreadable(
                manifest.manifest_path, f"a block of {len(block)} bytes whose {count} entries end at {decoder.tell()}"
            )


def write_entries(output: OutputFile, meta: Mapping[str, str], entries: Sequence[RawEntry]) -> None:
    """Writes a manifest with these entries.

    meta: the header of the manifests that the entries are from.
    """
    header = AvroFileHeader(MAGIC, dict(meta), os.urandom(SYNC_SIZE))
    codec = header.compression_codec()
    with output.create(overwrite=True) as stream:
        encoder = BinaryEncoder(stream)
        construct_writer(META_SCHEMA).write(encoder, header)
        for start in range(0, len(entries), ENTRIES_A_BLOCK):
            block = [entry.encoded for entry in entries[start : start + ENTRIES_A_BLOCK]]
            content = b"".join(block)
            encoder.write_int(len(block))
            encoder.write_bytes(codec.compress(content)[0] if codec else content)
            encoder.write(header.sync)


@lru_cache(maxsize=4096)  # the entries of one commit share them
def _existing(*inherited: int | None) -> bytes:
    stream = BytesIO()
    encoder = BinaryEncoder(stream)
    encoder.write_int(ManifestEntryStatus.EXISTING)
    for value in inherited:
        encoder.write_int(0 if value is None else 1)  # which type of the union
        if value is not None:
            encoder.write_int(value)
    return stream.getvalue()


@dataclass(frozen=True)
class _Layout:
    """The way in which entries of one Avro schema are read."""

    head: tuple[Read, ...]
    """The readers of the fields before the file."""
    file: tuple[Read, ...]
    """The readers of the file's fields."""
    partition: int
    """The place of the partition among the fields of the file."""
    rows: int
    """The place of the number of rows among the fields of the file."""

    def read(self, decoder: BinaryDecoder, block: bytes, manifest: ManifestFile) -> RawEntry | None:
        """Reads an entry; None if it is not live.

        Its numbers are inherited as https://iceberg.apache.org/spec/#sequence-number-inheritance has it.
        """
        status, snapshot_id, sequence, file_sequence = [read(decoder) for read in self.head]
        start = decoder.tell()
        file = [read(decoder) for read in self.file]
        if status == ManifestEntryStatus.DELETED:
            return None
        if status == ManifestEntryStatus.ADDED or manifest.sequence_number == 0:
            sequence = manifest.sequence_number if sequence is None else sequence
            file_sequence = manifest.sequence_number if file_sequence is None else file_sequence
        snapshot_id = manifest.added_snapshot_id if snapshot_id is None else snapshot_id
        if snapshot_id is None or sequence is None:
            raise unreadable(manifest.manifest_path, "a live entry without a snapshot or a sequence number")
        content = block[start : decoder.tell()]
        return RawEntry(snapshot_id, sequence, file_sequence, file[self.partition], file[self.rows], content)


@lru_cache(maxsize=64)
def _layout(avro_schema: str) -> _Layout | None:
    fields = AvroSchemaConversion().avro_to_iceberg(loads(avro_schema)).fields
    inherited = [field for field in fields if field.field_id in (SNAPSHOT, SEQUENCE, FILE_SEQUENCE)]
    file = fields[-1].field_type
    if [f.field_id for f in fields] != ENTRY or any(f.required for f in inherited) or not isinstance(file, StructType):
        return None
    places = {field.field_id: at for at, field in enumerate(file.fields)}
    head = tuple(field_reader(field).read for field in fields[:-1])
    return _Layout(head, tuple(map(_of_file, file.fields)), places[PARTITION], places[RECORD_COUNT])


def _of_file(field: NestedField) -> Read:
    if field.field_id == PARTITION and isinstance(field.field_type, StructType):
        return partition_reader(field.field_type)
    return field_reader(field).read if field.field_id == RECORD_COUNT else passing(field)

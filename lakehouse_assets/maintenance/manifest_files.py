"""Manifests as Avro files: read from storage several at a time, refused if torn, taken apart into header and blocks.
What an entry says is read in manifest_reader.py, entries as bytes in manifest_entries.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.file import META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile

from lakehouse_assets.errors import UnreadableMetadata
from resources.aws import READERS

AVRO_SCHEMA = "avro.schema"


def read_manifest(io: FileIO, manifest: ManifestFile) -> bytes:
    """The manifest's file. Raises UnreadableMetadata if it is not as long as the manifest list says (PyIceberg takes a
    torn one for a shorter one), OSError where it can't be read."""
    with io.new_input(manifest.manifest_path).open() as stream:
        data = stream.read()
    if len(data) != manifest.manifest_length:
        raise unreadable(manifest, f"{len(data)} bytes, its manifest list says {manifest.manifest_length}")
    return data


def read_manifests(io: FileIO, manifests: Sequence[ManifestFile]) -> Iterator[tuple[ManifestFile, bytes]]:
    """The manifests with their files, in their order.

    Several are read at once, as a storage takes long to answer, but one after the other is decoded: threads that all
    want Python's lock take three times the CPU. So many are in memory at a time as are read at once.
    """
    with ThreadPoolExecutor(READERS, thread_name_prefix="manifests") as pool:
        for start in range(0, len(manifests), READERS):
            batch = manifests[start : start + READERS]
            yield from zip(batch, pool.map(lambda manifest: read_manifest(io, manifest), batch), strict=True)


def open_manifest(data: bytes, manifest: ManifestFile) -> tuple[AvroFileHeader, Iterator[tuple[int, bytes]]]:
    """The header of a manifest's file, and its blocks: how many entries each has, and their bytes."""
    decoder = new_decoder(data)
    header: AvroFileHeader = _header_reader().read(decoder)
    return header, _blocks(data, manifest, header, decoder)


def _blocks(
    data: bytes, manifest: ManifestFile, header: AvroFileHeader, decoder: BinaryDecoder
) -> Iterator[tuple[int, bytes]]:
    codec = header.compression_codec()
    while decoder.tell() < len(data):
        count, size, start = decoder.read_int(), decoder.read_int(), decoder.tell()
        end = start + size
        # PyIceberg's decoder reads what lies behind its buffer without an error, so sizes are checked here.
        if size < 0 or data[end : end + SYNC_SIZE] != header.sync:
            raise unreadable(manifest, f"no Avro block of {size} bytes at byte {start}")
        block = data[start:end]
        yield count, codec.decompress(block) if codec else block
        decoder.skip(size + SYNC_SIZE)


@cache
def _header_reader() -> Reader:
    return construct_reader(META_SCHEMA, {-1: AvroFileHeader})


def unreadable(manifest: ManifestFile, found: str) -> UnreadableMetadata:
    """The error for a manifest that is not what its list says."""
    return UnreadableMetadata(
        f"the manifest {manifest.manifest_path} is torn or foreign: {found}. Restore it, or roll the table back to a "
        "snapshot that does not list it"
    )

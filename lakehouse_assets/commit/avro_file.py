"""Reads manifests and manifest lists as Avro files: whole, refused if torn, taken apart into header and blocks.

What a record says is read in avro_records.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from pyiceberg.avro.decoder import StreamingBinaryDecoder, new_decoder
from pyiceberg.avro.file import META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.io import FileIO

from lakehouse_assets.errors import UnreadableMetadata

AVRO_SCHEMA = "avro.schema"


def read_avro(io: FileIO, path: str, length: int | None = None) -> bytes:
    """Reads the whole file.

    length: the file's length in bytes, where it is known: PyIceberg takes a torn manifest for a shorter one.

    Raises UnreadableMetadata for another length, OSError where the file can't be read.
    """
    with io.new_input(path).open() as stream:
        data: bytes = stream.read()
    if length is not None and len(data) != length:
        raise unreadable(path, f"{len(data)} bytes, its manifest list says {length}")
    return data


def open_avro(data: bytes, path: str) -> tuple[AvroFileHeader, Iterator[tuple[int, bytes]]]:
    """Returns the header of a file, and its blocks: how many records each has, and their bytes, uncompressed.

    path: for messages. Raises UnreadableMetadata for a torn or foreign file, for its blocks while they are iterated
        over; a file that ends with a whole block looks whole.
    """
    # The slow decoder, since the fast one may read past the end of a torn file.
    decoder = StreamingBinaryDecoder(data)
    try:
        header: AvroFileHeader = _header_reader().read(decoder)
    except (EOFError, ValueError) as error:
        raise unreadable(path, f"no Avro header in {len(data)} bytes") from error
    return header, _blocks(data, path, header, decoder.tell())


def _blocks(data: bytes, path: str, header: AvroFileHeader, start: int) -> Iterator[tuple[int, bytes]]:
    try:
        codec = header.compression_codec()
    except ValueError as error:
        raise unreadable(path, str(error)) from error
    decoder = new_decoder(data)
    decoder.skip(start)
    while decoder.tell() < len(data):
        try:
            count, size, start = decoder.read_int(), decoder.read_int(), decoder.tell()
        except EOFError as error:
            raise unreadable(path, f"it ends within the head of an Avro block, at byte {len(data)}") from error
        end = start + size
        # PyIceberg's decoder reads what lies behind its buffer without an error, so sizes are checked here.
        if size < 0 or data[end : end + SYNC_SIZE] != header.sync:
            raise unreadable(path, f"no Avro block of {size} bytes at byte {start}")
        block = data[start:end]
        try:
            block = codec.decompress(block) if codec else block
        except Exception as error:  # each codec's library has its own
            raise unreadable(path, f"the block at byte {start} can't be decompressed: {error}") from error
        yield count, block
        decoder.skip(size + SYNC_SIZE)


@cache
def _header_reader() -> Reader:
    return construct_reader(META_SCHEMA, {-1: AvroFileHeader})


def unreadable(path: str, found: str) -> UnreadableMetadata:
    """Makes the error for a torn or foreign manifest or manifest list."""
    return UnreadableMetadata(
        f"the manifest {path} is torn or foreign: {found}. Restore it, or roll the table back to a snapshot that does "
        "not list it"
    )

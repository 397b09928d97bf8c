"""Reads manifests and their lists by PyIceberg's reader, and refuses torn ones, which it takes for shorter ones.

What the files add up to is in health/summaries.py; which of them are needed, in collect/reachable.py.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import cast

from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.avro.file import META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.io import FileIO, InputFile
from pyiceberg.manifest import ManifestEntry, ManifestFile, read_manifest_list
from pyiceberg.table import Table

from lakehouse_assets.environment.aws import READERS
from lakehouse_assets.errors import UnreadableMetadata


def live_entries(io: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
    """Returns the entries of a manifest's live files. Raises as read_manifests() does."""
    ((_, entries),) = read_manifests(io, [manifest])
    return entries


def read_manifests(io: FileIO, manifests: Sequence[ManifestFile]) -> Iterator[tuple[ManifestFile, list[ManifestEntry]]]:
    """Yields the manifests in their order, each with the entries of its live files.

    Raises UnreadableMetadata for a manifest that is not what its manifest list says, OSError where it can't be read.
    """
    for manifest, data in zip(manifests, _read(io, [m.manifest_path for m in manifests]), strict=True):
        yield manifest, _entries(data, manifest)


def read_manifest_lists(io: FileIO, paths: Sequence[str]) -> Iterator[list[ManifestFile]]:
    """Yields the manifests that each of the manifest lists lists. Raises as read_manifests() does.

    Nobody knows how long a manifest list was, so one that ends with a whole block is taken for whole.
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
    """Returns the manifests of the current snapshot; none if there is none. Raises as read_manifests() does."""
    snapshot = table.metadata.current_snapshot()
    return next(read_manifest_lists(table.io, [snapshot.manifest_list])) if snapshot else []


def has_live_files(manifest: ManifestFile) -> bool:
    """Tells whether a manifest lists more than deletions of an earlier snapshot."""
    return manifest.has_added_files() or manifest.has_existing_files()


@contextmanager
def without_cycle_collector() -> Iterator[None]:
    """Turns off Python's cycle collector meanwhile.

    Each collection looks at all manifest entries, which are in no cycle: with 10,000 files replaced it took a third of
    a publish, which grew faster than the number of files, and a third of a look at 100,000.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def unreadable(path: str, found: str) -> UnreadableMetadata:
    """Makes the error for a torn or foreign manifest or manifest list."""
    return UnreadableMetadata(
        f"the manifest {path} is torn or foreign: {found}. Restore it, or roll the table back to a snapshot that does "
        "not list it"
    )


@dataclass(frozen=True)
class _InMemory:
    """A file that was read, for PyIceberg's readers: FileIO and InputFile as far as they ask."""

    data: bytes

    def new_input(self, _: str) -> _InMemory:
        return self

    def open(self) -> BytesIO:
        return BytesIO(self.data)


def _read(io: FileIO, paths: Sequence[str]) -> Iterator[bytes]:
    """Yields the files in their order.

    Several are read at once, as a storage takes long to answer, but one after the other is decoded: threads that all
    want Python's lock take three times the CPU. As many are in memory at a time as are read at once.
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
        raise unreadable(path, f"{len(data)} bytes, its manifest list says {manifest.manifest_length}")
    try:
        with without_cycle_collector():
            entries = manifest.fetch_manifest_entry(cast(FileIO, _InMemory(data)))
    except Exception as error:  # what PyIceberg meets in a torn or foreign file
        raise unreadable(path, repr(error)) from error
    # After a full disk the end may be zeros, at which PyIceberg stops reading.
    listed = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
    if len(entries) < listed:
        raise unreadable(path, f"{len(entries)} live entries, its manifest list says {listed}")
    return entries


def _refuse_torn(data: bytes) -> None:
    """Raises EOFError or ValueError where a file does not end with a whole Avro block."""
    decoder = StreamingBinaryDecoder(data)
    header = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(decoder)
    while decoder.tell() < len(data):
        decoder.read_int()
        decoder.read_bytes()
        if decoder.read(SYNC_SIZE) != header.sync:
            raise ValueError(f"no Avro block ends at byte {decoder.tell()}")

"""Reads manifests and their lists, without column metrics and summaries: several times as fast as PyIceberg's reader.

What the files add up to is in health/summaries.py; which of them are needed, in collect/reachable.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestEntryStatus, ManifestFile

from lakehouse_assets.commit.avro_file import read_avro, unreadable
from lakehouse_assets.commit.avro_records import PARTITION, Wanted, records
from resources.aws import READERS

# Field ids: https://iceberg.apache.org/spec/#manifests
STATUS, SEQUENCE, CONTENT, FILE_PATH, RECORD_COUNT, FILE_SIZE = 0, 3, 134, 100, 103, 104
MANIFEST_PATH, MANIFEST_LENGTH = 500, 501
NUMBERS: Wanted = (STATUS, SEQUENCE, CONTENT, PARTITION, RECORD_COUNT, FILE_SIZE)
PATHS: Wanted = (STATUS, FILE_PATH)
MANIFESTS: Wanted = (MANIFEST_PATH, MANIFEST_LENGTH)


class LiveFile(NamedTuple):
    """A file that a manifest lists as added or existing."""

    content: DataFileContent
    partition: tuple[Any, ...]
    rows: int
    size: int
    """The size in bytes."""
    sequence: int
    """The data sequence number; the manifest's where the entry inherits it."""


def read_manifest(io: FileIO, manifest: ManifestFile) -> bytes:
    """Reads the manifest's file.

    Raises UnreadableMetadata if it is not as long as the manifest list says, OSError where it can't be read.
    """
    return read_avro(io, manifest.manifest_path, manifest.manifest_length)


def read_manifests(io: FileIO, manifests: Sequence[ManifestFile]) -> Iterator[tuple[ManifestFile, bytes]]:
    """Yields the manifests with their files, in their order. Raises as read_manifest() does.

    Several are read at once, as a storage takes long to answer, but one after the other is decoded: threads that all
    want Python's lock take three times the CPU. As many are in memory at a time as are read at once.
    """
    with ThreadPoolExecutor(READERS, thread_name_prefix="manifests") as pool:
        for start in range(0, len(manifests), READERS):
            batch = manifests[start : start + READERS]
            yield from zip(batch, pool.map(lambda manifest: read_manifest(io, manifest), batch), strict=True)


def live_files(data: bytes, manifest: ManifestFile) -> Iterator[LiveFile]:
    """Yields what ``manifest.fetch_manifest_entry(io, discard_deleted=True)`` finds, in its order.

    data: the manifest's file. Raises UnreadableMetadata for a torn or foreign manifest.
    """
    for status, sequence, content, partition, rows, size, _ in records(data, manifest.manifest_path, NUMBERS):
        if status != ManifestEntryStatus.DELETED:
            inherited = manifest.sequence_number if sequence is None else sequence
            yield LiveFile(_CONTENTS[content or 0], partition, rows, size, inherited)


def live_paths(data: bytes, path: str) -> Iterator[str]:
    """Yields the paths of the files that the manifest at ``path`` lists as added or existing.

    Raises as live_files() does.
    """
    for status, file_path, _ in records(data, path, PATHS):
        if status != ManifestEntryStatus.DELETED:
            yield _present(file_path, path)


def listed_manifests(data: bytes, path: str) -> Iterator[tuple[str, int]]:
    """Yields path and length of each manifest that the manifest list at ``path`` lists.

    Raises as live_files() does. Nobody knows how long a manifest list was, so one that ends with a whole block is taken
    for whole.
    """
    for manifest_path, length, _ in records(data, path, MANIFESTS):
        yield _present(manifest_path, path), length


def _present(found: str | None, path: str) -> str:
    if found is None:
        raise unreadable(path, "an entry without a path")
    return found


_CONTENTS = tuple(DataFileContent)  # by number: calling the enum for each entry takes four times as long

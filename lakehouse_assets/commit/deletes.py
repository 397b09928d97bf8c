"""Tells which delete files may delete rows of which data files, by metadata alone.

Pure functions of manifest entries; what follows from it for a rewrite is decided in compaction.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.partitioning import PartitionSpec

PATH_ID = 2147483546
"""The field id of the column file_path in files of position deletes
(https://iceberg.apache.org/spec/#position-delete-files)."""


def is_position(delete: ManifestEntry) -> bool:
    """Tells whether the delete file names positions in data files; otherwise its rows are compared with theirs."""
    return delete.data_file.content is DataFileContent.POSITION_DELETES


def may_apply(delete: ManifestEntry, data: ManifestEntry, specs: Mapping[int, PartitionSpec]) -> bool:
    """Tells whether a reader of the data file must look into the delete file.

    The rules are those of https://iceberg.apache.org/spec/#scan-planning.
    """
    if is_position(delete):
        return sequence(delete) >= sequence(data) and _may_name(delete.data_file, data.data_file)
    return sequence(delete) > sequence(data) and (
        is_global(delete, specs) or _same_partition(delete.data_file, data.data_file)
    )


def is_global(delete: ManifestEntry, specs: Mapping[int, PartitionSpec]) -> bool:
    """Tells whether an equality delete file applies to every partition: its spec has no partition fields."""
    return not is_position(delete) and specs[delete.data_file.spec_id].is_unpartitioned()


def names_one_file(delete: DataFile) -> str | None:
    """Returns the path of the only data file that the position deletes name, if their bounds say so."""
    lower, upper = path_bounds(delete)
    return lower.decode() if lower is not None and lower == upper else None


def path_bounds(delete: DataFile) -> tuple[bytes | None, bytes | None]:
    """Returns the bounds of the paths that position deletes name, in UTF-8.

    A writer may truncate bounds; they are below and above the path all the same.
    """
    return (delete.lower_bounds or {}).get(PATH_ID), (delete.upper_bounds or {}).get(PATH_ID)


def sequence(entry: ManifestEntry) -> int:
    """Returns the data sequence number; 0 in files of format version 1."""
    return entry.sequence_number or 0


def _may_name(delete: DataFile, data: DataFile) -> bool:
    if (only := names_one_file(delete)) is not None:
        return only == data.file_path
    lower, upper = path_bounds(delete)
    path = data.file_path.encode()
    within = (lower is None or lower <= path) and (upper is None or path <= upper)
    return within and _same_partition(delete, data)


def _same_partition(one: DataFile, other: DataFile) -> bool:
    return one.spec_id == other.spec_id and one.partition == other.partition

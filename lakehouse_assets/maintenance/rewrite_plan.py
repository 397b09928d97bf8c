"""Which files of which partitions a rewrite takes together, from the entries of one snapshot.
Reading, writing and proving is in rewrite.py; whether a partition is worth it is the policy's question."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestEntry
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.utils.bin_packing import ListPacker

from lakehouse_assets.commit import deletes
from lakehouse_assets.commit.entries import Entries, Partition, partition_of
from lakehouse_assets.commit.unit import Base
from lakehouse_assets.maintenance.health import UNDERSIZED, target_size
from lakehouse_assets.maintenance.needs_spark import reasons_of_partition

MIN_INPUT_FILES = 5
"""So many undersized files are rewritten although they don't make a full one (Spark's min-input-files)."""

GROUP_BYTES = 128 * 2**20
"""So much is rewritten together even where the target is smaller, so that the new files are of like size and sorted
with regard to each other."""


@dataclass(frozen=True)
class RewriteTask:
    """What is rewritten of one partition. name: its path, "" for a whole table.

    groups: entries of data files, those together that become one file or few. deletes: of all delete files that may
    apply to them. needs_spark: why it can't be done without; empty if it can.
    """

    name: str
    partition: Partition
    groups: tuple[tuple[ManifestEntry, ...], ...]
    deletes: tuple[ManifestEntry, ...]
    needs_spark: tuple[str, ...]

    @property
    def entries(self) -> list[ManifestEntry]:
        return [entry for group in self.groups for entry in group]


def plan_rewrites(
    base: Base,
    io: FileIO,
    entries: Entries,
    partitions: Collection[str] | None = None,
    *,
    min_input_files: int = MIN_INPUT_FILES,
) -> list[RewriteTask]:
    """The rewrites of the partitions with these paths, of all without, in the order of paths; none for a partition
    that would not gain.

    min_input_files: how many undersized files of a partition are worth a rewrite, 2 or more.
    """
    metadata = base.metadata
    data, deleting = live_entries(base, io, entries)
    found = []
    for partition, files in data.items():
        spec = metadata.specs()[partition[0]]
        name = spec.partition_to_path(partition[1], metadata.schema())
        if partitions is None or name in partitions:
            found.append(_task(name, partition, files, deleting, metadata, min_input_files))
    return sorted((task for task in found if task.groups), key=lambda task: task.name)


def live_entries(
    base: Base, io: FileIO, entries: Entries
) -> tuple[dict[Partition, list[ManifestEntry]], list[ManifestEntry]]:
    """The live data files of the base by partition, and its delete files."""
    manifests = base.snapshot.manifests(io)
    data: dict[Partition, list[ManifestEntry]] = defaultdict(list)
    deleting: list[ManifestEntry] = []
    for manifest, read in zip(manifests, entries.read(io, manifests), strict=True):
        if manifest.content is ManifestContent.DELETES:
            deleting += read
            continue
        for entry in read:
            data[partition_of(entry)].append(entry)
    return data, deleting


def _task(
    name: str,
    partition: Partition,
    files: Iterable[ManifestEntry],
    deleting: Collection[ManifestEntry],
    metadata: TableMetadata,
    min_input_files: int,
) -> RewriteTask:
    specs, target = metadata.specs(), target_size(metadata)
    applied = {e.data_file.file_path: [d for d in deleting if deletes.may_apply(d, e, specs)] for e in files}
    chosen = [e for e in files if _size(e) < UNDERSIZED * target or applied[e.data_file.file_path]]
    # In the order in which their rows came, which is that of an unsorted table.
    chosen.sort(key=lambda e: (deletes.sequence(e), e.data_file.file_path))
    packer = ListPacker[ManifestEntry](max(target, GROUP_BYTES), len(chosen), largest_bin_first=False)
    groups = packer.pack(chosen, _size)
    gaining = [
        tuple(group)
        for group in groups
        if any(applied[e.data_file.file_path] for e in group)
        or len(group) >= min_input_files
        or (len(group) > 1 and sum(map(_size, group)) >= UNDERSIZED * target)
    ]
    taken = [entry for group in gaining for entry in group]
    by_path = {d.data_file.file_path: d for e in taken for d in applied[e.data_file.file_path]}
    reasons = reasons_of_partition(metadata, taken, by_path.values())
    return RewriteTask(name, partition, tuple(gaining), tuple(by_path.values()), tuple(reasons))


def _size(entry: ManifestEntry) -> int:
    return entry.data_file.file_size_in_bytes

"""Plans rewrites: groups of files, and chunks of these for Spark workers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestEntry
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.utils.bin_packing import ListPacker

from lakehouse_assets.commit import deletes
from lakehouse_assets.commit.deletes import DeleteFiles
from lakehouse_assets.commit.landing import ReadSnapshot
from lakehouse_assets.commit.manifests import Entries, Partition, Partitions, partition_of, partition_paths
from lakehouse_assets.maintenance.health.health import size_limits, target_size
from lakehouse_assets.maintenance.health.needs_spark import reasons_of_partition
from lakehouse_assets.maintenance.level import fewer_files
from lakehouse_assets.wire.work import Durable

MIN_INPUT_FILES, LEAST_INPUT_FILES = 5, 2
"""How many small files are worth a rewrite although they don't fill one (Spark's min-input-files): by default, and if
forced."""

GROUP_BYTES = 128 * 2**20
"""The least limit of a group, in bytes. Files that a rewrite makes of one group have like sizes, and their rows are
sorted together."""


@dataclass(frozen=True)
class RewriteTask:
    """The part of one partition to rewrite."""

    name: str
    """Empty for a whole table."""
    partition: Partition
    groups: tuple[tuple[ManifestEntry, ...], ...]
    """Each becomes one file or few."""
    deletes: tuple[ManifestEntry, ...]
    """All delete files that may apply to them."""
    needs_spark: tuple[str, ...]

    @property
    def entries(self) -> list[ManifestEntry]:
        """The entries of all groups."""
        return [entry for group in self.groups for entry in group]


def plan_rewrites(
    base: ReadSnapshot,
    io: FileIO,
    entries: Entries,
    partitions: Collection[Partition] | None = None,
    *,
    everything: bool = False,
    min_input_files: int = MIN_INPUT_FILES,
) -> list[RewriteTask]:
    """Plans the rewrites of these partitions (None for all), by name; none without a gain.

    everything: Spark rewrites all files, even without a gain. min_input_files: at least 2.
    """
    metadata = base.metadata
    data, deleting = live_entries(base, io, entries, partitions)
    applying, path_of = DeleteFiles(deleting, metadata.specs()), partition_paths(metadata)
    found = []
    for (spec_id, values), files in data.items():
        name = path_of((spec_id, values))
        if everything:
            applied = tuple(applying.applying_to_any(files))
            found.append(RewriteTask(name, (spec_id, values), (tuple(files),), applied, ()))
        else:
            found.append(_task(name, (spec_id, values), files, applying, metadata, min_input_files))
    return sorted((task for task in found if task.groups), key=lambda task: task.name)


def live_entries(
    base: ReadSnapshot, io: FileIO, entries: Entries, partitions: Collection[Partition] | None
) -> tuple[dict[Partition, list[ManifestEntry]], list[ManifestEntry]]:
    """Returns live data files of these partitions, and all delete files: some apply to other partitions than theirs."""
    manifests = base.snapshot.manifests(io)
    if partitions is not None:
        wanted = Partitions(base.metadata, partitions)
        manifests = [m for m in manifests if m.content is ManifestContent.DELETES or wanted.may_be_in(m)]
    data: dict[Partition, list[ManifestEntry]] = defaultdict(list)
    deleting: list[ManifestEntry] = []
    for manifest, read in zip(manifests, entries.read(io, manifests), strict=True):
        if manifest.content is ManifestContent.DELETES:
            deleting += read
            continue
        for entry in read:
            if partitions is None or partition_of(entry) in partitions:
                data[partition_of(entry)].append(entry)
    return data, deleting


def _task(
    name: str,
    partition: Partition,
    files: Iterable[ManifestEntry],
    applying: DeleteFiles,
    metadata: TableMetadata,
    min_input_files: int,
) -> RewriteTask:
    target, limit = target_size(metadata), size_limits(metadata).undersized
    deleted = {e.data_file.file_path for e in files if any(applying.applying_to(e))}
    chosen = [e for e in files if _size(e) <= limit or e.data_file.file_path in deleted]
    # By age: that is the order of rows in an unsorted table.
    chosen.sort(key=lambda e: (deletes.sequence(e), e.data_file.file_path))
    # A small file has at most three quarters of the target: four fit into a group, and become at most three. So a full
    # group always gains, and some group gains wherever the partition as a whole does, by which the levels decide.
    packer = ListPacker[ManifestEntry](max(3 * target, GROUP_BYTES), len(chosen), largest_bin_first=False)
    sizes = [(group, sum(map(_size, group))) for group in packer.pack(chosen, _size)]
    # Fewer than min_input_files are worth it only if they make a file that is no longer undersized.
    gaining = [
        tuple(group)
        for group, size in sizes
        if any(e.data_file.file_path in deleted for e in group)
        or len(group) >= min_input_files
        or (size >= limit and fewer_files(len(group), size, target))
    ]
    taken = [entry for group in gaining for entry in group]
    applied = applying.applying_to_any(taken)
    reasons = reasons_of_partition(metadata, taken, applied)
    return RewriteTask(name, partition, tuple(gaining), tuple(applied), tuple(reasons))


def _size(entry: ManifestEntry) -> int:
    return entry.data_file.file_size_in_bytes


WORKER_BYTES = 4 * 2**30
"""The most that one worker rewrites, unless one partition has more: minutes of work, the cost of a lost worker."""


@dataclass(frozen=True)
class PlannedPartition:
    """A partition of a chunk, in numbers."""

    name: str
    files: int
    size: int


@dataclass(frozen=True)
class PlannedChunk:
    """One worker's partitions."""

    fork_base: str
    """The metadata file that lists the files to rewrite."""
    partitions: tuple[PlannedPartition, ...]


@dataclass(frozen=True)
class RewritePlan(Durable):
    """What one token's workers rewrite; durable, so that a resumed run rewrites the same files."""

    sorts: bool
    zorder: tuple[str, ...]
    """This and ``sorts`` are as in RewriteAssignment."""
    chunks: tuple[PlannedChunk, ...]


def cut(tasks: Sequence[RewriteTask], metadata: TableMetadata, worker_bytes: int) -> list[list[RewriteTask]]:
    """Cuts the tasks into chunks of at most so many bytes, or of one task.

    Separates files of old specs: all that a fork moves to another spec lands together or not at all.
    """
    current = [task for task in tasks if task.partition[0] == metadata.default_spec_id]
    old = [task for task in tasks if task.partition[0] != metadata.default_spec_id]
    return [*_packed(current, worker_bytes), *_packed(old, worker_bytes)]


def _packed(tasks: Iterable[RewriteTask], limit: int) -> Iterator[list[RewriteTask]]:
    chunk: list[RewriteTask] = []
    room = limit
    for task in tasks:
        size = planned(task).size
        if chunk and size > room:
            yield chunk
            chunk, room = [], limit
        chunk.append(task)
        room -= size
    if chunk:
        yield chunk


def planned(task: RewriteTask) -> PlannedPartition:
    """Returns the task in numbers."""
    size = sum(entry.data_file.file_size_in_bytes for entry in task.entries)
    return PlannedPartition(task.name, len(task.entries), size)


def listed(tasks: Iterable[RewriteTask]) -> list[ManifestEntry]:
    """Returns the entries of a chunk, including delete files: each once, as one may apply to several tasks."""
    found = (entry for task in tasks for entry in (*task.entries, *task.deletes))
    return list({entry.data_file.file_path: entry for entry in found}.values())

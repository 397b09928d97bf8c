"""Cuts a rewrite by Spark into chunks, one for each worker, and keeps the plan that a resumed run takes over.

Which partitions are worth it is the policy's question; workers are started by spark_rewrite.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyiceberg.manifest import ManifestEntry
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.rewrite.rewrite_plan import RewriteTask
from lakehouse_assets.wire.work import Durable

WORKER_BYTES = 4 * 2**30
"""The most bytes that one worker rewrites, unless a single partition has more: minutes of work, which a lost worker
costs."""


@dataclass(frozen=True)
class PlannedPartition:
    """A partition of a chunk, in numbers."""

    name: str
    """The partition's path."""
    files: int
    """The number of data files to be rewritten."""
    size: int
    """The bytes of these files."""


@dataclass(frozen=True)
class PlannedChunk:
    """The partitions that one worker rewrites."""

    fork_base: str
    """The location of the metadata file that the worker rewrites."""
    partitions: tuple[PlannedPartition, ...]


@dataclass(frozen=True)
class RewritePlan(Durable):
    """The plan of what the workers of one token rewrite, and how.

    It is durable: a resumed run rewrites the same files, although the table has changed meanwhile, so that it can take
    what is done.
    """

    sorts: bool
    zorder: tuple[str, ...]
    """This and ``sorts`` are as in RewriteAssignment."""
    chunks: tuple[PlannedChunk, ...]


def cut(tasks: Sequence[RewriteTask], metadata: TableMetadata, worker_bytes: int) -> list[list[RewriteTask]]:
    """Cuts the tasks into chunks of at most so many bytes each, or of one task.

    Files of old specs are in chunks of their own: all that a fork moves to another spec lands together or not at all.
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
    """Returns the entries of all files of a chunk, delete files too, each once."""
    found = (entry for task in tasks for entry in (*task.entries, *task.deletes))
    return list({entry.data_file.file_path: entry for entry in found}.values())

"""Looks at a table: reads its metadata and the manifests that no earlier look has read, and gives its health.

What the numbers mean is in health.py. No data file is opened, and nothing under the table is written.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table as IcebergTable
from pyiceberg.typedef import Record

from lakehouse_assets.commit.manifest_reader import current_manifests, has_live_files, read_manifests
from lakehouse_assets.health.health import TableHealth, size_limits, table_health
from lakehouse_assets.health.partition_names import KeyOf
from lakehouse_assets.health.summaries import LiveFile, SizeLimits, Summary, summarize
from lakehouse_assets.health.summary_cache import Lines, SummaryCache, line, summaries_in


class TimeIsUp(Exception):
    """A look ended before it had read all manifests. What it read is kept, the next look goes on from there."""


def no_keys(_: Record) -> None:
    """Returns None: for callers that want no partition named by its Dagster key."""


def look(
    table: IcebergTable, cache: SummaryCache, key_of: KeyOf = no_keys, deadline: float | None = None
) -> TableHealth:
    """Returns the health of a table as it was loaded.

    deadline: on the monotonic clock; None for no deadline. Raises TimeIsUp if manifests are left to be read at the
    deadline, UnreadableMetadata for a manifest or manifest list that is torn, and OSError where the storage can't be
    read.
    """
    from lakehouse_assets.health.needs_spark import reasons_of_table  # imports PyArrow

    metadata, limits = table.metadata, size_limits(table.metadata)
    manifests = current_manifests(table)
    kept = cache.read(metadata.table_uuid, limits)
    lines = _known(kept, manifests)
    new = [manifest for manifest in manifests if has_live_files(manifest) and _key(manifest) not in lines]
    try:
        _read_into(lines, table.io, new, limits, deadline)
    finally:
        if lines.keys() != kept.keys():
            cache.write(metadata.table_uuid, limits, lines.values())
    return table_health(
        ".".join(table.name()),
        metadata,
        len(table.io.new_input(table.metadata_location)),
        manifests,
        _summaries(lines),
        key_of,
        reasons_of_table(metadata),
    )


def _known(kept: Lines, manifests: Iterable[ManifestFile]) -> Lines:
    """Returns the lines of the current manifests that have live files; all others are dropped."""
    current = {_key(manifest) for manifest in manifests if has_live_files(manifest)}
    return {key: text for key, text in kept.items() if key in current}


def _key(manifest: ManifestFile) -> tuple[str, int]:
    return manifest.manifest_path, manifest.manifest_length


def _read_into(
    lines: Lines, io: FileIO, manifests: Sequence[ManifestFile], limits: SizeLimits, deadline: float | None
) -> None:
    """Reads manifests and adds their lines. Raises TimeIsUp if some are left at the deadline."""
    for at, (manifest, entries) in enumerate(read_manifests(io, manifests), start=1):
        found = summarize(manifest.partition_spec_id, map(LiveFile.of, entries), limits)
        lines[_key(manifest)] = line(manifest, found)
        if deadline is not None and at < len(manifests) and time.monotonic() > deadline:
            raise TimeIsUp(f"time was up when {at} of {len(manifests)} new manifests were read")


def _summaries(lines: Lines) -> Iterator[Summary]:
    return chain.from_iterable(map(summaries_in, lines.values()))

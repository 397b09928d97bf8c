"""Writes the manifests of a group anew and proves that they list the same entries as those that they replace.

Nothing here commits: no snapshot lists them yet, and a rewrite that dies leaves them to the collector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from uuid import uuid4

from pyiceberg.manifest import UNASSIGNED_SEQ, ManifestFile, construct_partition_summaries
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from lakehouse_assets.commit.manifest_reader import read_manifests
from lakehouse_assets.commit.manifest_rewrite import ManifestGroup
from lakehouse_assets.errors import MaintenanceRefused
from lakehouse_assets.rewrite.manifest_entries import EntryDigest, RawEntry, raw_entries, write_entries
from lakehouse_assets.rewrite.manifest_groups import Cluster, Group, Partition

MEMORY = 64 * 2**20
"""Bytes of entries that are in memory at a time: about 120,000 entries with metrics of three columns."""
OVERHEAD = 300
"""The bytes that Python takes for an entry besides the entry's own."""


def write_group(table: Table, group: Group) -> ManifestGroup:
    """Writes the manifests of a group. Each source is read as often as its partitions need rounds."""
    written: list[ManifestFile] = []
    for clusters in _rounds(group):
        found: dict[Partition, list[RawEntry]] = {p: [] for cluster in clusters for p in cluster.partitions}
        sources = [source.manifest for source in group.sources if not found.keys().isdisjoint(source.entries)]
        for manifest, data in read_manifests(table.io, sources):
            for entry in raw_entries(data, manifest):
                if entry.partition in found:
                    found[entry.partition].append(entry)
        for cluster in clusters:
            entries = [entry for partition in cluster.partitions for entry in found.pop(partition)]
            each = ceil(len(entries) / cluster.manifests)
            written += [_new(table, group, entries[at : at + each]) for at in range(0, len(entries), each)]
    return ManifestGroup(tuple(source.manifest for source in group.sources), tuple(written), group.entries)


def _rounds(group: Group) -> Iterator[list[Cluster]]:
    """Yields the clusters of a group, so many at a time as fit into memory."""
    each = group.size / group.entries + OVERHEAD
    together: list[Cluster] = []
    for cluster in group.clusters:
        if together and each * sum(c.entries for c in (*together, cluster)) > MEMORY:
            yield together
            together = []
        together.append(cluster)
    yield together


def _new(table: Table, group: Group, entries: Sequence[RawEntry]) -> ManifestFile:
    """Writes one new manifest; no snapshot lists it yet."""
    spec = table.specs()[group.kind.spec_id]
    path = table.location_provider().new_metadata_location(f"{uuid4()}-m0.avro")  # as Iceberg's writers name them
    output = table.io.new_output(path)
    write_entries(output, group.meta, entries)
    partitions = [Record(*partition) for partition in {entry.partition for entry in entries}]
    return ManifestFile.from_args(
        manifest_path=path,
        manifest_length=len(output),
        partition_spec_id=spec.spec_id,
        content=group.kind.content,
        sequence_number=UNASSIGNED_SEQ,
        min_sequence_number=min(entry.sequence for entry in entries),
        added_snapshot_id=None,
        added_files_count=0,
        existing_files_count=len(entries),
        deleted_files_count=0,
        added_rows_count=0,
        existing_rows_count=sum(entry.rows for entry in entries),
        deleted_rows_count=0,
        partitions=construct_partition_summaries(spec, table.schema(), partitions),
        key_metadata=None,
    )


def prove(table: Table, group: Group, ready: ManifestGroup) -> None:
    """Reads back what was written, and compares it with what was read before.

    Raises MaintenanceRefused where they differ.
    """
    found = EntryDigest()
    for manifest, data in read_manifests(table.io, ready.written):
        for entry in raw_entries(data, manifest):
            found = found.plus(EntryDigest.of(entry.encoded))
    if found != group.digest:
        raise MaintenanceRefused(
            f"table {'.'.join(table.name())}: expected the {group.entries} live entries of {len(group.sources)} "
            f"manifests, read {found.entries} other ones back from {len(ready.written)} new manifests, such as "
            f"{ready.written[0].manifest_path}. Nothing was committed; the table is as it was. Report this"
        )

"""Reads the manifests of a table for a rewrite: what each lists, by partition, and whether it can be copied.

Entries are added up and dropped; they are read again when they are written (manifest_writing.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.types import PrimitiveType, UnknownType

from lakehouse_assets.commit.avro_file import AVRO_SCHEMA, open_avro, unreadable
from lakehouse_assets.commit.manifest_reader import read_manifests
from lakehouse_assets.rewrite.manifest_entries import EntryDigest, is_copyable, raw_entries
from lakehouse_assets.rewrite.manifest_groups import ManifestKind, Partition, Source


def read_sources(table: Table, manifests: Sequence[ManifestFile]) -> Iterator[Source]:
    """Reads those of the manifests whose entries can be copied.

    Left out are manifests of format version 1, and of specs with a column that was dropped, for whose partitions no
    bounds can be written. Raises as read_manifests() and raw_entries() do.
    """
    metas: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}  # most are alike, and each takes kilobytes
    partitions: dict[Partition, Partition] = {}
    known = {spec_id for spec_id in table.specs() if _has_known_types(table, spec_id)}
    candidates = [m for m in manifests if m.partition_spec_id in known]
    for manifest, data in read_manifests(table.io, candidates):
        header, _ = open_avro(data, manifest.manifest_path)
        meta = metas.setdefault(tuple(sorted(header.meta.items())), header.meta)
        if is_copyable(meta):
            yield _source(manifest, data, meta, partitions)


def _has_known_types(table: Table, spec_id: int) -> bool:
    types = [field.field_type for field in table.specs()[spec_id].partition_type(table.schema()).fields]
    return all(isinstance(kind, PrimitiveType) and not isinstance(kind, UnknownType) for kind in types)


def _source(
    manifest: ManifestFile, data: bytes, meta: Mapping[str, str], partitions: dict[Partition, Partition]
) -> Source:
    counts: dict[Partition, int] = {}
    digest, size, rows = EntryDigest(), 0, 0
    for entry in raw_entries(data, manifest):
        partition = partitions.setdefault(entry.partition, entry.partition)
        counts[partition] = counts.get(partition, 0) + 1
        digest = digest.plus(EntryDigest.of(entry.encoded))
        size += len(entry.file)
        rows += entry.rows
    _compare(manifest, digest.entries, rows)
    kind = ManifestKind(manifest.partition_spec_id, manifest.content, meta[AVRO_SCHEMA])
    return Source(manifest, kind, meta, counts, size, digest)


def _compare(manifest: ManifestFile, entries: int, rows: int) -> None:
    """Compares what was read with what the manifest's writer counted. Raises UnreadableMetadata where they differ."""
    counts = (manifest.added_files_count, manifest.existing_files_count)
    sums = (manifest.added_rows_count, manifest.existing_rows_count)
    for what, found, told in (("live entries", entries, counts), ("rows in them", rows, sums)):
        known = [count for count in told if count is not None]
        if len(known) == len(told) and sum(known) != found:
            raise unreadable(manifest.manifest_path, f"{found} {what}, its manifest list says {sum(known)}")

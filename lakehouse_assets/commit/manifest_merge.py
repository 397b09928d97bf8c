"""Merges small manifests into few, each of few partitions: which go together, and what is written in their place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any
from uuid import uuid4

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import UNASSIGNED_SEQ, ManifestFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.types import DoubleType, PrimitiveType, StructType, UnknownType
from pyiceberg.utils.bin_packing import ListPacker
from pyiceberg.utils.properties import property_as_bool, property_as_int

from lakehouse_assets.commit.manifests import Kind, ManifestPlan, existing, read_manifests, values_of, write_manifest

MOST_ENTRIES = 2000
"""The most entries of a manifest that merging makes. A publish that replaces files reads one manifest at least (25 µs
an entry) and writes the rest of its entries anew: larger ones cost later commits more."""
TOGETHER = 5 * MOST_ENTRIES
"""The most entries that are sorted together, so that they fit into memory and a publish that merges takes a second or
two longer."""


@dataclass(frozen=True)
class MergedManifests:
    """Small manifests, and those that list the same live files in their place."""

    sources: tuple[ManifestFile, ...]
    written: tuple[ManifestFile, ...]
    """The manifests in their place; they are in storage, and no snapshot lists them yet."""
    entries: int
    """The number of live entries."""


@dataclass
class ManifestMerge:
    """The merge of manifests that one commit makes.

    What goes together is decided and written at the first attempt to commit. Each later attempt takes of it what still
    fits the table: manifests that other commits replaced keep the others from nothing, and are not read again.
    """

    least: int | None = None
    """How many small manifests of one kind are merged; None for as many as the table's properties say, and then only
    those that go together best, since a publish is to take little longer."""
    merged: list[MergedManifests] | None = None
    """What the first attempt wrote; None before it."""
    landed: list[MergedManifests] = field(default_factory=list)
    """The part of it that fits the table, as the latest attempt found it."""

    def apply(self, table: Table, plan: ManifestPlan) -> None:
        """Puts merged manifests in the place of small ones that the plan leaves untouched.

        Raises as read_manifests() does; the plan is as it was then, and a second call merges nothing.
        """
        if self.merged is None:
            self.merged = []
            self.merged = list(self._written(table, plan.untouched))
        there = {manifest.manifest_path for manifest in plan.untouched}
        self.landed = [each for each in self.merged if there.issuperset(m.manifest_path for m in each.sources)]
        if not self.landed:
            return
        going = {manifest.manifest_path for each in self.landed for manifest in each.sources}
        plan.untouched = [manifest for manifest in plan.untouched if manifest.manifest_path not in going]
        plan.rewritten += [manifest for each in self.landed for manifest in each.written]
        # As Iceberg's Java names them (SnapshotSummary).
        plan.summary |= {
            "manifests-created": str(len(plan.rewritten)),
            "manifests-replaced": str(len(going)),
            "manifests-kept": str(len(plan.untouched)),
            "entries-processed": str(sum(each.entries for each in self.landed)),
        }

    def _written(self, table: Table, manifests: Sequence[ManifestFile]) -> Iterator[MergedManifests]:
        properties = table.properties
        enabled = property_as_bool(properties, TableProperties.MANIFEST_MERGE_ENABLED, default=True)  # as Java's is
        if self.least is None and not enabled:
            return
        size = property_as_int(
            properties, TableProperties.MANIFEST_TARGET_SIZE_BYTES, TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT
        )
        least = self.least or property_as_int(
            properties, TableProperties.MANIFEST_MIN_MERGE_COUNT, TableProperties.MANIFEST_MIN_MERGE_COUNT_DEFAULT
        )
        weight_of = partial(_weight, target_size=size or 1)
        for kind, small in _small(table, manifests, weight_of).items():
            if len(small) < (least or 0):
                continue
            neighbours = ListPacker[ManifestFile](TOGETHER, 1, largest_bin_first=False).pack(small, weight_of)
            bins = sorted((found for found in neighbours if len(found) > 1), key=len, reverse=True)
            for sources in bins if self.least else bins[:1]:
                yield _merge(table, kind, sources, ceil(sum(map(weight_of, sources)) / MOST_ENTRIES))


def _weight(manifest: ManifestFile, target_size: int) -> int:
    """Returns the entries of a manifest, or how many its bytes stand for where MOST_ENTRIES have the target size."""
    entries = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
    return max(entries, manifest.manifest_length * MOST_ENTRIES // target_size)


def _small(
    table: Table, manifests: Sequence[ManifestFile], weight_of: Callable[[ManifestFile], int]
) -> Mapping[Kind, list[ManifestFile]]:
    """Returns the manifests that are at most half full, in the order of their partitions.

    Those of format version 1, whose sequence number is 0, are left alone: their entries have no numbers of their own.
    """
    types = {n: _exact_types(spec.partition_type(table.schema())) for n, spec in table.specs().items()}
    small: dict[Kind, list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        is_small = manifest.sequence_number > 0 and 2 * weight_of(manifest) <= MOST_ENTRIES
        if is_small and types.get(manifest.partition_spec_id) is not None:
            small[manifest.partition_spec_id, manifest.content].append(manifest)
    for (spec_id, _), found in small.items():
        found.sort(key=partial(_first, types=types[spec_id] or []))
    return small


def _exact_types(partition: StructType) -> list[PrimitiveType] | None:
    """Returns the types of partition values; None where these can't be written as they were read.

    PyIceberg's compiled decoder rounds doubles to floats, and the type of a column that was dropped is not known.
    """
    types = [field.field_type for field in partition.fields]
    exact = [t for t in types if isinstance(t, PrimitiveType) and not isinstance(t, DoubleType | UnknownType)]
    return exact if len(exact) == len(types) else None


def _first(manifest: ManifestFile, types: Iterable[PrimitiveType]) -> tuple[Any, ...]:
    """Returns a key by the least partition values of a manifest."""
    lowest = zip((summary.lower_bound for summary in manifest.partitions or ()), types, strict=False)
    return _sort_key([None if low is None else from_bytes(kind, low) for low, kind in lowest])


def _sort_key(values: Iterable[Any]) -> tuple[Any, ...]:
    """Returns a key that orders partitions of one spec: nulls first, NaN last."""
    return tuple((value is not None, value != value, value) for value in values)


def _merge(table: Table, kind: Kind, sources: Sequence[ManifestFile], parts: int) -> MergedManifests:
    """Writes the live entries of manifests into so many others, sorted by partition."""
    entries = [entry for _, found in read_manifests(table.io, sources) for entry in found]
    entries.sort(key=lambda entry: _sort_key(values_of(entry.data_file.partition)))
    each = ceil(len(entries) / parts) or 1
    place = table.location_provider().new_metadata_location
    written = [
        # Named as Iceberg's writers do. The snapshot that lists it gives it its id and sequence number.
        write_manifest(
            table.io.new_output(place(f"{uuid4()}-m0.avro")),
            table.metadata,
            kind,
            UNASSIGNED_SEQ,
            existing(entries[at : at + each]),
        )
        for at in range(0, len(entries), each)
    ]
    return MergedManifests(tuple(sources), tuple(written), len(entries))

"""Merging of small manifests into fewer ones, each with few partitions."""

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
"""The most entries of a merged manifest. A publish that replaces files reads at least one (25 µs an entry) and rewrites
it."""
TOGETHER = 5 * MOST_ENTRIES
"""The most entries sorted together; costs a publish a second or two."""


@dataclass(frozen=True)
class MergedManifests:
    """Small manifests, and their replacements."""

    sources: tuple[ManifestFile, ...]
    written: tuple[ManifestFile, ...]
    """In storage, but in no snapshot yet."""
    entries: int
    """How many the written manifests list."""


@dataclass
class ManifestMerge:
    """The merge of manifests in one commit, of a run or of maintenance.

    The first attempt to commit decides and writes. Later attempts use what still fits the table and read nothing again.
    """

    least: int | None = None
    """The fewest small manifests to merge; None for the table's property, and then only the best group, so that a
    publish takes little longer."""
    merged: list[MergedManifests] | None = None
    """None before the first attempt."""
    landed: list[MergedManifests] = field(default_factory=list)
    """What fits the table at the latest attempt."""

    def apply(self, table: Table, plan: ManifestPlan) -> None:
        """Replaces small manifests that the plan leaves untouched.

        Raises as read_manifests(); then the plan is unchanged, and a second call merges nothing.
        """
        if self.merged is None:
            # Stays empty if the next line raises.
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
        enabled = property_as_bool(properties, TableProperties.MANIFEST_MERGE_ENABLED, default=True)  # as in Java
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
            # A lookback of 1 keeps the order of partitions. The best group has the most manifests.
            neighbours = ListPacker[ManifestFile](TOGETHER, 1, largest_bin_first=False).pack(small, weight_of)
            bins = sorted((found for found in neighbours if len(found) > 1), key=len, reverse=True)
            for sources in bins if self.least else bins[:1]:
                yield _merge(table, kind, sources, ceil(sum(map(weight_of, sources)) / MOST_ENTRIES))


def _weight(manifest: ManifestFile, target_size: int) -> int:
    """Returns the number of its entries, or of those that would fill its bytes if that is more.

    MOST_ENTRIES entries fill the target size.
    """
    entries = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
    return max(entries, manifest.manifest_length * MOST_ENTRIES // target_size)


def _small(
    table: Table, manifests: Sequence[ManifestFile], weight_of: Callable[[ManifestFile], int]
) -> Mapping[Kind, list[ManifestFile]]:
    """Returns manifests at most half full, ordered by their lowest partition.

    Skips those of format version 1 (sequence number 0), whose entries have no sequence numbers.
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
    """Returns the types of the partition fields; None if values of one can't be written back exactly.

    PyIceberg's compiled decoder rounds doubles to floats, and the type of a dropped column is unknown.
    """
    types = [field.field_type for field in partition.fields]
    exact = [t for t in types if isinstance(t, PrimitiveType) and not isinstance(t, DoubleType | UnknownType)]
    return exact if len(exact) == len(types) else None


def _first(manifest: ManifestFile, types: Iterable[PrimitiveType]) -> tuple[Any, ...]:
    """Returns the sort key of the manifest's lowest partition."""
    # Not strict: a manifest may lack summaries.
    lowest = zip((summary.lower_bound for summary in manifest.partitions or ()), types, strict=False)
    return _sort_key([None if low is None else from_bytes(kind, low) for low, kind in lowest])


def _sort_key(values: Iterable[Any]) -> tuple[Any, ...]:
    """Returns a key that sorts nulls first and NaN last: only NaN differs from itself."""
    return tuple((value is not None, value != value, value) for value in values)


def _merge(table: Table, kind: Kind, sources: Sequence[ManifestFile], parts: int) -> MergedManifests:
    """Writes the entries of the sources into this many manifests, sorted by partition."""
    entries = [entry for _, found in read_manifests(table.io, sources) for entry in found]
    entries.sort(key=lambda entry: _sort_key(values_of(entry.data_file.partition)))
    each = ceil(len(entries) / parts) or 1
    place = table.location_provider().new_metadata_location
    written = [
        # Named as by Iceberg's writers. The snapshot that lists it gives it its id and sequence number.
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

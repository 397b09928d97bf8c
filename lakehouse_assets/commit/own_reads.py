"""Refuses to publish what a step made from the table itself if others have changed those rows since.

Their update would be lost. What a merge's changes meet in the table is row_changes.py's. Only metadata is read here.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.manifest import ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, ancestors_of

from lakehouse_assets.commit import deletes
from lakehouse_assets.commit.change import FilesInRegion
from lakehouse_assets.commit.entries import Entries
from lakehouse_assets.commit.manifest_plan import live_manifests
from lakehouse_assets.declare.region import Region
from lakehouse_assets.errors import HeadMoved
from lakehouse_assets.keys_text import keys_text


def refuse_outdated_reads(table: Table, read: int | None, region: Region, schema: Schema) -> None:
    """Raises HeadMoved where rows of a region differ from those of the snapshot that the run's step has read.

    table: as it is now. read: the snapshot; None where the table had none. region: the part of the table that the run
    owns; what it has read of other parts is a version as that of any other input. schema: has the region's names.
    """
    if table.metadata.current_snapshot_id == read or _only_rewritten_since(table, read):
        return
    name = f"table {'.'.join(table.name())}, {keys_text(region.keys)}"
    then = table.metadata.snapshot_by_id(read) if read is not None else None
    if read is not None and then is None:
        raise HeadMoved(f"{name}: its step has read the table as of snapshot {read}, which has expired meanwhile")
    before, now = then.manifests(table.io) if then else [], live_manifests(table)
    # Manifests never change, so files that the same manifests list are the same.
    common = {manifest.manifest_path for manifest in before} & {manifest.manifest_path for manifest in now}
    place = FilesInRegion(region, table, schema)
    sides = (_files(table, place, [m for m in side if m.manifest_path not in common]) for side in (before, now))
    if changed := set.symmetric_difference(*sides):
        raise HeadMoved(
            f"{name}: its step has read the table as of snapshot {read or 'none'}, and others have changed its rows "
            f"meanwhile, in {len(changed)} files such as {min(changed)[0]}"
        )


def _only_rewritten_since(table: Table, read: int | None) -> bool:
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        if snapshot.snapshot_id == read:
            return True
        if snapshot.summary is None or snapshot.summary.operation is not Operation.REPLACE:
            return False
        if snapshot.parent_snapshot_id == read:
            return True
    return False


def _files(table: Table, place: FilesInRegion, manifests: Iterable[ManifestFile]) -> set[tuple[str, int]]:
    """Returns the data and delete files that may have rows of the region: the path and sequence number of each."""
    read = Entries().read(table.io, [m for m in manifests if place.may_be_in(m)])
    found = (entry for entries in read for entry in entries if place.touches(entry.data_file))
    return {(entry.data_file.file_path, deletes.sequence(entry)) for entry in found}

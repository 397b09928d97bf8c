"""What a change does to the manifests of the snapshot it starts from: the plan of one attempt to publish.
removals.py chooses the files to remove; snapshot.py writes the manifests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table

from lakehouse_assets.commit.removals import Removals


@dataclass
class ManifestPlan:
    """added: files to add that are not on the table yet. removed: entries of the files to remove.
    untouched: manifests that stay as they are.
    kept: by spec id, live entries that share a manifest with a removed one and move to a new manifest.
    """

    added: list[DataFile] = field(default_factory=list)
    removed: list[ManifestEntry] = field(default_factory=list)
    untouched: list[ManifestFile] = field(default_factory=list)
    kept: list[tuple[int, list[ManifestEntry]]] = field(default_factory=list)


def plan_manifests(table: Table, files: Sequence[DataFile], removals: Removals) -> ManifestPlan:
    """Add these files to the current snapshot and remove those that ``removals`` includes.

    Each manifest is read once, and only if it may list a file to remove. A file that is on the table already, because
    it was published with a part of its run, stays as it is: if a snapshot removed it and added it again, expiring that
    snapshot would delete it. Raises PublishRefused as ``removals.check()`` does.
    """
    plan = ManifestPlan()
    arriving = {file.file_path for file in files}
    snapshot = table.metadata.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        if not (manifest.has_added_files() or manifest.has_existing_files()):
            continue  # lists deletions of an earlier snapshot only: the next one leaves it out, as Iceberg's Java does
        if manifest.content is not ManifestContent.DATA or not removals.may_be_in(manifest):
            plan.untouched.append(manifest)
            continue
        removed: list[ManifestEntry] = []
        kept: list[ManifestEntry] = []
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            path = entry.data_file.file_path
            stays = path in arriving or not removals.include(entry.data_file)
            arriving.discard(path)
            (kept if stays else removed).append(entry)
        plan.removed += removed
        if not removed:
            plan.untouched.append(manifest)
        elif kept:
            plan.kept.append((manifest.partition_spec_id, kept))
    removals.check()
    plan.added = [file for file in files if file.file_path in arriving]
    return plan

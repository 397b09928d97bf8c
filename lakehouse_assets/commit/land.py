"""Lands rewritten units on their table in one commit, and tells of each whether it landed or why not.

The rules are in landing_rules.py; the loop that commits is in persistence.py, which publish.py calls.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table

from lakehouse_assets.commit.compaction import Compaction, NothingLeft
from lakehouse_assets.commit.entries import Entries
from lakehouse_assets.commit.persistence import ATTEMPTS
from lakehouse_assets.commit.publish import Published, publish
from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.commit.unit import Dropped, LandingRule, Unit

logger = logging.getLogger(__name__)

EARLIER = Dropped(
    LandingRule.CHANGED, "the snapshot that an earlier call with the same token committed does not replace it"
)


@dataclass(frozen=True)
class Landing:
    """The result of land()."""

    published: Published | None
    """The commit; None if nothing was left to land."""
    units: tuple[tuple[Unit, Dropped | None], ...]
    """The units in their order, each with the reason why it did not land; None if it did."""

    @property
    def landed(self) -> list[Unit]:
        """The units that landed, in their order."""
        return [unit for unit, dropped in self.units if dropped is None]

    @property
    def unproved(self) -> list[Unit]:
        """The units whose rewrite changed rows: a fault of the rewrite, which must be shown in red."""
        return [unit for unit, dropped in self.units if dropped and dropped.rule is LandingRule.UNPROVED]


def land(
    catalog: Catalog,
    identifier: str,
    units: Sequence[Unit],
    token: RunToken,
    summary: Mapping[str, str],
    *,
    entries: Entries | None = None,
    attempts: int = ATTEMPTS,
) -> Landing:
    """Commits the units that still fit the table, as one REPLACE snapshot; no rows change, no file is deleted.

    token: as for publish(); a second call with it changes nothing, and tells what the first one landed.
    entries: what was read of the table's manifests before, which need not be read again.
    If another attempt than the last may have landed, the snapshot tells what landed. If that can't be read, the result
    is what the last attempt found: the commit is made, and an error would say that it is not.
    Raises as publish() does; PublishRefused also if two units claim the same file.
    """
    compaction = Compaction(units, entries or Entries())
    try:
        published = publish(catalog, identifier, compaction, token, summary, attempts=attempts)
    except NothingLeft:
        published = None
    removed = None
    if published and (published.repeated or published.attempts > 1):
        # The snapshot itself tells: an attempt that was thought to have failed may be the one that landed.
        removed = _removed(catalog, identifier, published.snapshot_id)
    reasons = [_reason(unit, compaction.dropped.get(n), removed) for n, unit in enumerate(units)]
    return Landing(published, tuple(zip(units, reasons, strict=True)))


def _reason(unit: Unit, found: Dropped | None, removed: set[str] | None) -> Dropped | None:
    """Returns why a unit did not land; None if it did.

    found: what the latest attempt decided. removed: paths of what the landed snapshot removed, if it was asked.
    """
    if removed is None:
        return found
    return None if unit.removed[0].data_file.file_path in removed else found or EARLIER


def _removed(catalog: Catalog, identifier: str, snapshot_id: int) -> set[str] | None:
    """Returns the paths of the files that a snapshot removed; None if it has expired, or can't be read now."""
    try:
        return _removed_from(catalog.load_table(identifier), snapshot_id)
    except Exception as error:  # catalogs and storages have errors of their own
        logger.warning("%s: what landed with snapshot %s can't be read: %r", identifier, snapshot_id, error)
        return None


def _removed_from(table: Table, snapshot_id: int) -> set[str] | None:
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        return None
    own = [m for m in snapshot.manifests(table.io) if m.added_snapshot_id == snapshot_id and m.deleted_files_count]
    entries = [entry for m in own for entry in m.fetch_manifest_entry(table.io, discard_deleted=False)]
    return {
        entry.data_file.file_path
        for entry in entries
        if entry.status is ManifestEntryStatus.DELETED and entry.snapshot_id == snapshot_id
    }

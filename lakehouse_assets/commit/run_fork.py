"""Chooses the fork base of a run's workers by the write mode: without rows, with the table's, or with its recent ones.

How these are written is in fork.py and head_fork.py.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from pyiceberg.manifest import ManifestEntry
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import ancestors_of

from lakehouse_assets.commit import deletes
from lakehouse_assets.commit.entries import Entries
from lakehouse_assets.commit.fork import ForkBase, write_fork_base
from lakehouse_assets.commit.head_fork import write_head_fork
from lakehouse_assets.commit.manifest_plan import live_manifests
from lakehouse_assets.commit.unit import Base

if TYPE_CHECKING:
    from lakehouse_assets.declare.modes import WriteMode


def write_run_fork(mode: WriteMode, table: Table, token: str, now_ms: int) -> ForkBase:
    """Writes the fork base that the write mode asks for. Raises as write_fork_base() does.

    now_ms: the present in epoch ms, from which the mode's ``reads`` goes back.
    """
    head = table.metadata.current_snapshot()
    if mode.merge is None or head is None:
        return write_fork_base(table, token)
    if mode.reads is None:
        return write_fork_base(table, token, from_head=True, properties=mode.properties)
    since = first_sequence(table.metadata, now_ms - mode.reads // timedelta(milliseconds=1))
    return write_head_fork(table, Base(table.metadata, head), token, recent(table, since))


def first_sequence(metadata: TableMetadata, since_ms: int) -> int:
    """Returns the sequence number of the first snapshot on main that was committed since then.

    It is one above the head's if there is none, and 0 if earlier snapshots have expired, as they may have been
    committed since then as well. Files of later rewrites have the sequence numbers of the snapshots that they read, and
    are not older by them than their rows.
    """
    head = metadata.current_snapshot()
    found = (head.sequence_number or 0) + 1 if head else 0
    for snapshot in ancestors_of(head, metadata):
        if snapshot.timestamp_ms < since_ms:
            return found
        found = snapshot.sequence_number or 0
        if snapshot.parent_snapshot_id is None:
            return found
    return 0  # earlier ones have expired: they may have been committed since then as well


def recent(table: Table, first: int) -> list[ManifestEntry]:
    """Returns the entries of live data and delete files that were added with that sequence number or a later one."""
    manifests = [m for m in live_manifests(table) if m.sequence_number >= first]
    found = (entry for read in Entries().read(table.io, manifests) for entry in read)
    return [entry for entry in found if deletes.sequence(entry) >= first]

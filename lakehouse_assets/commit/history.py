"""Tells which snapshots led to a table's head, and which certainly did not: they were rolled back, or are of a branch.

What is made of that is tokens.py's (runs), and run/'s (traces, plans).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot


@dataclass(frozen=True)
class History:
    """The history of a snapshot, mostly main's head, as far back as a table's snapshots tell it."""

    snapshots: dict[int, Snapshot]
    """The table's snapshots by id."""
    line: dict[int, int]
    """The sequence numbers of the snapshot and its ancestors by their ids, the newest first."""
    is_empty: bool
    """Whether there is no such snapshot: the table is empty, and nothing led to it."""

    @classmethod
    def of(cls, metadata: TableMetadata) -> History:
        """Returns the history of main's head."""
        return cls.behind(metadata, metadata.current_snapshot_id)

    @classmethod
    def behind(cls, metadata: TableMetadata, head: int | None) -> History:
        """Returns the history of a snapshot, None for an empty table; of one that has expired nothing is known."""
        snapshots = {s.snapshot_id: s for s in metadata.snapshots}
        line: dict[int, int] = {}
        here = snapshots.get(head or 0)
        while here is not None:
            line[here.snapshot_id] = here.sequence_number or 0
            here = snapshots.get(here.parent_snapshot_id or 0)
        return cls(snapshots, line, is_empty=head is None)

    @classmethod
    def at(cls, metadata: TableMetadata, time: datetime) -> History | None:
        """Returns the history of what was main's head at a time; None where the table's log does not tell."""
        heads = [one.snapshot_id for one in metadata.snapshot_log if one.timestamp_ms <= time.timestamp() * 1000]
        return cls.behind(metadata, heads[-1]) if heads else None

    @cached_property
    def _oldest(self) -> int:
        return min(self.line.values())

    def lacks(self, snapshot_id: int) -> bool:
        """Tells whether it is proven that a snapshot is not in this history.

        It is proven if the table is empty, or if neither the snapshot nor the history back to its time has expired.
        Sequence numbers fall towards the root, so a snapshot that is not older than the last known ancestor would be
        among them.
        """
        wanted = self.snapshots.get(snapshot_id)
        if wanted is None or snapshot_id in self.line:
            return False
        return self.is_empty or (bool(self.line) and self._oldest <= (wanted.sequence_number or 0))

    @property
    def has_others(self) -> bool:
        """Tells whether the table has snapshots that are proven not to be in this history."""
        return any(self.lacks(one) for one in self.snapshots)

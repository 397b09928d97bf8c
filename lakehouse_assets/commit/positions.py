"""Positions: how far a table has read the changes of its inputs, kept in the snapshots that hold the rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from lakehouse_assets.commit.commit_part import CommitPart
from lakehouse_assets.errors import HeadMoved
from lakehouse_assets.wire.work import ReadOn

POSITIONS = "lakehouse.positions"
"""The entry of a snapshot's summary that says how far each input was read, as JSON of ``{"nyc.flights": "<snapshot
id>@<table uuid>"}``. That of the nearest ancestor of main's head counts: so a rollback goes back in the inputs, too."""
TRACKED_INPUTS = "lakehouse.reads-changes-of"
"""The table property that names these inputs. It only proves that there were positions: properties don't roll back."""
READER = "lakehouse.reader."
"""The prefix of a tag by which a reader of changes says how far it has read: an input keeps what follows."""
CHERRY_PICKED = "source-snapshot-id"
"""Iceberg's own entry in the summary of a snapshot that was made from another one's files."""


def read_on(metadata: TableMetadata) -> ReadOn:
    """Returns how far a table has read its inputs, and of which inputs that can't be known any more."""
    witnessed = metadata.properties.get(TRACKED_INPUTS, "")
    if not witnessed:  # most tables: their history need not be walked
        return ReadOn()
    positions, picked = _nearest(metadata)
    if picked is not None:
        why = (
            f"snapshot {picked.snapshot_id} was cherry-picked from a run's, or from one that has expired and may have "
            "been a run's: its rows came without their position"
        )
        return ReadOn(unknown=dict.fromkeys(witnessed.split(","), why))
    why = "none of main's snapshots says how far it was read: the one that did has expired, or was rolled back"
    return ReadOn(positions, {name: why for name in witnessed.split(",") if name not in positions})


def carriers(metadata: TableMetadata) -> list[int]:
    """Returns the snapshots that must not expire, or nobody knows how far inputs were read.

    One says it. Those that others have committed since lead to it: each is known by its child only. Where these were
    cherry-picked, what they were made from tells that it was no run's.
    """
    if TRACKED_INPUTS not in metadata.properties:
        return []
    found = []
    for snapshot in _main(metadata):
        found.append(snapshot.snapshot_id)
        if _entry(snapshot, POSITIONS):
            return found
        if (source := metadata.snapshot_by_id(_picked_from(snapshot))) is not None:
            found.append(source.snapshot_id)
    return []


def settled(metadata: TableMetadata, name: str, before_ms: int) -> str | None:
    """Returns the position in an input that main has had since then, as text; None where it had none, or none is known.

    before_ms: in epoch ms, by the clock of whoever committed.
    """
    if name not in read_on(metadata).positions:
        return None
    old = (snapshot for snapshot in _main(metadata) if snapshot.timestamp_ms <= before_ms)
    text = next((text for snapshot in old if (text := _entry(snapshot, POSITIONS))), None)
    found: Mapping[str, str] = json.loads(text) if text else {}
    return found.get(name)


@dataclass(frozen=True)
class PositionUpdate(CommitPart):
    """The positions in a commit: a run moves those that it has read on from, and every commit copies all others."""

    to: Mapping[str, str] = field(default_factory=dict)
    """How far the run has read, by input."""
    since: ReadOn = field(default_factory=ReadOn)
    """How far inputs were read when it was staged."""

    def refuse(self, now: Table) -> None:
        """Raises HeadMoved if another run has read on from the same position.

        The position that it has read to may be unknown by now: then nobody knows whether the rows are there already.
        """
        if not self.to:
            return
        positions = read_on(now.metadata)
        for name in self.to:
            if (found := positions.text(name)) != (since := self.since.text(name)):
                table = ".".join(now.name())
                raise HeadMoved(f"table {table}: another run has read on in {name}, from {since} to {found}")

    def summary(self, now: TableMetadata) -> Mapping[str, str]:
        """Returns the entry of the positions; none if there are none."""
        positions = {**read_on(now).positions, **self.to}
        return {POSITIONS: json.dumps(positions, separators=(",", ":"), sort_keys=True)} if positions else {}

    def properties(self, now: TableMetadata) -> Mapping[str, str]:
        """Returns the property that names the inputs; none if it is set already."""
        before = now.properties.get(TRACKED_INPUTS, "")
        named = ",".join(sorted({*self.to, *filter(None, before.split(","))}))
        return {TRACKED_INPUTS: named} if named != before else {}


def _nearest(metadata: TableMetadata) -> tuple[Mapping[str, str], Snapshot | None]:
    """Returns the positions of main's head; and a cherry-picked snapshot that has made them wrong, if there is one."""
    for snapshot in _main(metadata):
        if text := _entry(snapshot, POSITIONS):
            return json.loads(text), None
        if picked_from := _picked_from(snapshot):
            source = metadata.snapshot_by_id(picked_from)
            if source is None or _entry(source, POSITIONS):
                return {}, snapshot
    return {}, None


def _picked_from(snapshot: Snapshot) -> int:
    """Returns the snapshot whose files a cherry-picked one has; 0, which is no snapshot's id, for another."""
    return int(_entry(snapshot, CHERRY_PICKED) or 0)


def _main(metadata: TableMetadata) -> Iterable[Snapshot]:
    """Returns main's snapshots, newest first, as far back as they are kept."""
    return ancestors_of(metadata.current_snapshot(), metadata)


def _entry(snapshot: Snapshot, name: str) -> str | None:
    return snapshot.summary[name] if snapshot.summary else None

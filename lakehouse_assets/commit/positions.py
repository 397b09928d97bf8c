"""Positions: how far a table has read its inputs' changes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from lakehouse_assets.commit.commit_part import CommitPart
from lakehouse_assets.errors import StageAgain
from lakehouse_assets.wire.work import ReadOn

POSITIONS = "lakehouse.positions"
"""The summary entry of the positions: JSON ``{"nyc.flights": "<snapshot id>@<table uuid>"}``. The nearest one in main's
history counts, so a rollback also goes back in the inputs."""
TRACKED_INPUTS = "lakehouse.reads-changes-of"
"""The table property that names these inputs. It proves only that there were positions: properties don't roll back."""
READER = "lakehouse.reader."
"""Prefix of a reader's tag on its input, at the snapshot up to which it has read: expiry keeps later ones."""
CHERRY_PICKED = "source-snapshot-id"
"""Iceberg's summary entry of a cherry-picked snapshot."""


def positions_of(metadata: TableMetadata) -> ReadOn:
    """Returns the positions of a table's inputs, and the inputs whose position is unknown."""
    witnessed = metadata.properties.get(TRACKED_INPUTS, "")
    if not witnessed:  # most tables: their history need not be walked
        return ReadOn()
    positions, picked = _nearest(metadata)
    if picked is not None:
        why = (
            f"snapshot {picked.snapshot_id} was cherry-picked from a run's snapshot, or from an expired one that may "
            "have been a run's: its rows came without their position"
        )
        return ReadOn(unknown=dict.fromkeys(witnessed.split(","), why))
    why = "no snapshot of main records how far it was read: the one that did has expired or was rolled back"
    return ReadOn(positions, {name: why for name in witnessed.split(",") if name not in positions})


def carriers(metadata: TableMetadata) -> list[int]:
    """Returns the snapshots without which positions would be unknown.

    History leads from child to parent, so all from the head to the one with the positions are needed. The source of a
    cherry-pick shows that what was picked was no run's.
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
    # No snapshot records positions, so none is needed to know them.
    return []


def settled(metadata: TableMetadata, name: str, before_ms: int) -> str | None:
    """Returns main's position in an input at ``before_ms`` (by the committers' clocks), if any.

    None also if today's position is unknown.
    """
    if name not in positions_of(metadata).positions:
        return None
    old = (snapshot for snapshot in _main(metadata) if snapshot.timestamp_ms <= before_ms)
    text = next((text for snapshot in old if (text := _entry(snapshot, POSITIONS))), None)
    found: Mapping[str, str] = json.loads(text) if text else {}
    return found.get(name)


@dataclass(frozen=True)
class PositionUpdate(CommitPart):
    """Updates the positions that a run has read past; copies all others, so that older snapshots may expire."""

    to: Mapping[str, str] = field(default_factory=dict)
    """How far the run has read, by input; empty for a rewrite."""
    since: ReadOn = field(default_factory=ReadOn)
    """The positions when the run was staged."""

    @property
    def may_stage_again(self) -> bool:
        """Whether the run has read on."""
        return bool(self.to)

    def refuse(self, now: Table) -> None:
        """Raises StageAgain if a position differs from that at staging: another run has read on, or it is unknown."""
        if not self.to:
            return
        positions = positions_of(now.metadata)
        for name in self.to:
            if (found := positions.text(name)) != (since := self.since.text(name)):
                table = ".".join(now.name())
                raise StageAgain(f"table {table}: another run has read further in {name}, from {since} to {found}")

    def summary(self, now: TableMetadata) -> Mapping[str, str]:
        """Returns the entry of the positions, if any."""
        positions = {**positions_of(now).positions, **self.to}
        return {POSITIONS: json.dumps(positions, separators=(",", ":"), sort_keys=True)} if positions else {}

    def properties(self, now: TableMetadata) -> Mapping[str, str]:
        """Returns the property of the inputs, if new."""
        before = now.properties.get(TRACKED_INPUTS, "")
        named = ",".join(sorted({*self.to, *filter(None, before.split(","))}))
        return {TRACKED_INPUTS: named} if named != before else {}


def _nearest(metadata: TableMetadata) -> tuple[Mapping[str, str], Snapshot | None]:
    """Returns the head's positions, or a cherry-picked snapshot that made them wrong."""
    for snapshot in _main(metadata):
        if text := _entry(snapshot, POSITIONS):
            return json.loads(text), None
        if picked_from := _picked_from(snapshot):
            source = metadata.snapshot_by_id(picked_from)
            if source is None or _entry(source, POSITIONS):
                return {}, snapshot
    return {}, None


def _picked_from(snapshot: Snapshot) -> int:
    """Returns the snapshot from which this one was cherry-picked; 0, which is no snapshot's id, if it was not."""
    return int(_entry(snapshot, CHERRY_PICKED) or 0)


def _main(metadata: TableMetadata) -> Iterable[Snapshot]:
    return ancestors_of(metadata.current_snapshot(), metadata)


def _entry(snapshot: Snapshot, name: str) -> str | None:
    return snapshot.summary[name] if snapshot.summary else None

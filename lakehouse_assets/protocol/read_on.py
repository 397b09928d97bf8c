"""How far a table has read the changes of its inputs, as a run tells its workers.

Plain data. Where it is kept is commit/positions.py's; what is read from there on, worker/input_changes.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from lakehouse_assets.sources.offsets import Offsets

EMPTY = 0
"""Stands for the snapshot of an input that had none: no snapshot has this id."""


class Position(NamedTuple):
    """A version of one input: up to it, its changes were read."""

    snapshot_id: int
    """EMPTY where the input had no snapshot."""
    uuid: UUID
    """The input's uuid: snapshot ids of a table that was created again mean nothing."""

    def __str__(self) -> str:
        return f"{self.snapshot_id}@{self.uuid}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Reads what str() gives. Raises ValueError for another text."""
        snapshot_id, _, uuid = text.partition("@")
        return cls(int(snapshot_id), UUID(uuid))


@dataclass(frozen=True)
class ReadOn:
    """How far each input was read by the runs whose rows are in the table."""

    positions: Mapping[str, str] = field(default_factory=dict)
    """A Position as text for each input whose changes were read; one that is missing is read from its beginning."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Why the position of an input can't be known, in a clause, by input."""

    def text(self, name: str) -> str:
        """Returns how far an input was read, for people and to be compared."""
        return "where nobody knows" if name in self.unknown else self.positions.get(name, "the beginning")

    def offsets(self, source: str) -> Offsets | None:
        """Returns how far a source was read; None where it was not, or that can't be known. source: its name."""
        text = self.positions.get(source)
        return Offsets.parse(text) if text else None

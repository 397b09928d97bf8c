"""Decides whose a metadata file is that the catalog does not name: the table's past, a fork, another catalog. Pure.

What is known of a file is read in unnamed_metadata.py; what follows from it is decided in seen.py and judge.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from lakehouse_assets.collect.links import all_meanings
from lakehouse_assets.collect.reachable import PlaceSet


class Standing(StrEnum):
    """Says what a metadata file is that the catalog does not name."""

    OTHER_TABLE = "of another table"
    FORK = "of a run's fork"
    PAST = "of the table's past"
    SIDE = "of one commit beside the table's own"
    """The commit failed, is just being made, or is the first of another catalog: all leave the same file."""
    TAKEN = "of another catalog, for which the table went on"


class Earlier(NamedTuple):
    """An entry of a metadata log."""

    location: str
    updated_ms: int
    """The time when the file was written, by its writer's clock."""


@dataclass(frozen=True)
class LineageFacts:
    """Holds what a metadata file says of its place in a table's history."""

    uuid: UUID
    updated_ms: int
    """The time when it was written, by its writer's clock."""
    log: tuple[Earlier, ...] = ()
    """The metadata files before it, the oldest first, as far as it remembers them."""
    is_fork: bool = False
    """Whether the file is a fork's."""


@dataclass
class Lineage:
    """The commits that led to the metadata file that the catalog names."""

    uuid: UUID
    oldest_ms: int
    """The time when the first of them that is known was written."""
    _files: PlaceSet = field(default_factory=PlaceSet)

    def add(self, location: str, updated_ms: int) -> None:
        """Adds a metadata file to the line. Raises UnknownStorage."""
        self._files.add(location)
        self.oldest_ms = min(self.oldest_ms, updated_ms)

    def has(self, location: str) -> bool:
        """Tells whether the file is known to be on the line. Raises UnknownStorage."""
        return any(place in self._files for place in all_meanings(location))


def standing(line: Lineage, facts: LineageFacts, *, is_settled: bool) -> Standing:
    """Decides what a metadata file is that is not on the line itself. Raises UnknownStorage.

    is_settled: whether a person has decided since it was written that no other catalog has the table.

    Whoever commits twice on top of what the line lacks has the table in another catalog. A file that is older than all
    that is known of the line may be of the table's past: its successors, which would tell, are gone.
    """
    if facts.uuid != line.uuid:
        return Standing.OTHER_TABLE
    if facts.is_fork:
        return Standing.FORK
    if is_settled:
        return Standing.PAST
    if facts.log and line.has(facts.log[-1].location):
        return Standing.SIDE
    return Standing.PAST if facts.updated_ms <= line.oldest_ms else Standing.TAKEN

"""A unit of a rewrite: the part of a table that lands whole or not at all, and how it fared.

Whether it can land is decided in landing_rules.py; how its files were written is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pyiceberg.manifest import DataFile, ManifestEntry
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from lakehouse_assets.commit.entries import Partition, partition_of
from lakehouse_assets.commit.proof import Proof


@dataclass(frozen=True)
class Base:
    """The snapshot of a table that a rewrite read, and the table's metadata at that time."""

    metadata: TableMetadata
    snapshot: Snapshot

    @property
    def sequence_number(self) -> int:
        """The data sequence number of the files that the rewrite adds.

        They take part in every delete that comes later, and in none that was applied.
        """
        return self.snapshot.sequence_number or 0


@dataclass(frozen=True)
class Unit:
    """One partition whose files are all of one spec; or more partitions, where files move to another spec."""

    name: str
    """The partition's path, for people; empty for a whole table."""
    base: Base
    removed: tuple[ManifestEntry, ...]
    """The entries, at the base, of the data files that are replaced."""
    deletes: tuple[ManifestEntry, ...]
    """The entries, at the base, of all delete files that might apply to one of them."""
    added: tuple[DataFile, ...]
    """The files in their place; none if all rows were deleted."""
    proof: Proof

    def __post_init__(self) -> None:
        assert self.removed, "a rewrite replaces something"

    @property
    def partitions(self) -> set[Partition]:
        """The partitions in which its files are and will be."""
        return {partition_of(e) for e in self.removed} | {(f.spec_id, f.partition) for f in self.added}

    @property
    def files(self) -> list[DataFile]:
        """All its data files, removed and added."""
        return [*(entry.data_file for entry in self.removed), *self.added]


class LandingRule(StrEnum):
    """The reasons for which a unit does not land."""

    UNPROVED = "unproved"
    """Its rows are not those that it read."""
    EVOLVED = "evolved"
    """The table is another one, or its columns or specs no longer fit."""
    MISSING = "missing"
    """A file that it removes or adds is not in storage."""
    LANDED = "landed"
    """A file that it adds is on the table already."""
    CHANGED = "changed"
    """A file that it removes is no longer on the table, or came back as new."""
    DELETED = "deleted"
    """Rows of a file that it removes were deleted since, or deletes would reach rows that it moves."""
    RESTORED = "restored"
    """Deletes that it applied are no longer on the table."""


@dataclass(frozen=True)
class Dropped:
    """The reason for which a unit did not land, as a rule and in words."""

    rule: LandingRule
    reason: str

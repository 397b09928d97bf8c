"""Write modes: how staged rows come to their table. Code asks a mode what to do, never which mode it is.
The audit and the publish, which act on the answers, are in commit/."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from pyiceberg.table.snapshots import Operation

from lakehouse_assets.declare.region import Region


class Rule(StrEnum):
    """A rule of the audit."""

    PARTITIONS = "partitions"
    """A chunk's rows lie in the chunk's partitions."""
    REQUIRED = "required"
    """Required columns hold no nulls."""
    UNIQUE = "unique"
    """The columns declared ``unique`` are unique within each Iceberg partition."""
    EMPTY = "empty"
    """Each partition has rows, unless the table is declared with ``allow_empty``."""


@runtime_checkable
class WriteMode(Protocol):
    """How a run changes its table. Modes are frozen dataclasses, whose repr is a part of Table.code_version: a receipt
    staged for one mode is not published in another."""

    @property
    def rules(self) -> Collection[Rule]:
        """What the audit checks."""

    @property
    def needs_alignment(self) -> bool:
        """Whether each Dagster partition must be a whole number of Iceberg partitions."""

    @property
    def operation(self) -> Operation:
        """The operation of a publish's snapshot."""

    def replaced(self, region: Region) -> Region:
        """The region whose files a publish removes as it adds those staged for ``region``."""


@dataclass(frozen=True)
class Overwrite:
    """A run replaces exactly its partitions."""

    rules = frozenset(Rule)
    needs_alignment = True
    operation = Operation.OVERWRITE

    def replaced(self, region: Region) -> Region:
        return region

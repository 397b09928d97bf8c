"""A pin: the one version of an Iceberg table that all workers of a run read, whatever is committed to it meanwhile.

Plain data, for both sides of the process border. Pins are made in commit/pins.py, read in worker/pinned_lake.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

MAIN = "main"
"""Iceberg's main branch; its own constant is in a module that takes half a second to import."""


@dataclass(frozen=True)
class Pin:
    """One version of a table that a run reads, decided when the run is planned."""

    table: str
    """Its Iceberg identifier in the catalog ``lake``."""
    uuid: UUID
    """The table's uuid: a table that was created again is another one."""
    snapshot_id: int | None
    """The snapshot; None for a table that has none yet, and is read as empty."""
    schema_id: int
    """The schema that its columns are read by."""
    metadata: str
    """The location of the run's own copy of the table's metadata, in which no commit can be made."""
    committed_at: datetime | None = None
    """When the snapshot was committed, by the clock of whoever did it."""
    run_id: str | None = None
    """The Dagster run that committed the snapshot; None where it was none of ours."""
    ref: str = MAIN
    """The branch or tag that named the snapshot."""

    @property
    def version(self) -> tuple[str, str, int | None, int]:
        """What of it decides the rows that a step reads."""
        return self.table, str(self.uuid), self.snapshot_id, self.schema_id

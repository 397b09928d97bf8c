"""A pin: the one version of an Iceberg table that all workers of a run read, whatever is committed to it meanwhile.

Plain data, for both sides of the process border. Pins are made in commit/pins.py, read in worker/pinned_lake.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

MAIN = "main"
"""Iceberg's main branch; its own constant is in a module that takes half a second to import."""


REF = re.compile(r"(\w+(?:\.\w+)+?)\.(?:branch|tag)_(.+)")
"""A table's identifier, and behind it a branch or tag as Spark names it, which may have dots
(https://iceberg.apache.org/docs/latest/spark-queries/#time-travel)."""


def table_and_ref(name: str) -> tuple[str, str]:
    """Returns the identifier of a table, and the branch or tag that its name ends with; MAIN where there is none."""
    found = REF.fullmatch(name)
    return (found[1], found[2]) if found else (name, MAIN)


@dataclass(frozen=True)
class Pin:
    """One version of a table that a run reads, decided when the run is planned."""

    name: str
    """The name by which Spark reads it from the catalog ``lake``: the table's identifier, and a branch or tag of it."""
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

    @property
    def table(self) -> str:
        """The table's Iceberg identifier."""
        return table_and_ref(self.name)[0]

    @property
    def ref(self) -> str:
        """The branch or tag that named the snapshot."""
        return table_and_ref(self.name)[1]

    @property
    def version(self) -> tuple[str, str, int | None, int]:
        """The parts of it that decide which rows a step reads."""
        return self.name, str(self.uuid), self.snapshot_id, self.schema_id

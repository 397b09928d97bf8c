"""The range of a source that a run moves, decided when the run is planned.

Plain data, for both sides of the process border. Ranges are decided in run/moving.py, read in
worker/source_rows.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse_assets.sources.kafka import KafkaTopic
from lakehouse_assets.sources.offsets import Offsets
from lakehouse_assets.sources.postgres import PostgresTable


@dataclass(frozen=True)
class SourceRange:
    """The rows of a source that a run moves: those from ``begin`` up to ``to``, itself outside."""

    source: KafkaTopic | PostgresTable
    begin: Offsets
    """The table's position when the run was planned; the first row that was there where it had none."""
    to: Offsets

    @property
    def version(self) -> tuple[str, ...]:
        """The parts of it that decide which rows it has."""
        skipped = self.source.skip if isinstance(self.source, KafkaTopic) else ()
        return self.source.name, str(self.begin), str(self.to), *skipped

    def left(self, position: Offsets | None) -> Offsets:
        """Returns where to begin now: another run may have moved on since, and nothing is moved twice."""
        return position or self.begin

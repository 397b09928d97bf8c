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
    lost_from: Offsets | None = None
    """The table's position where the source has lost rows behind it that the run gives up: those up to ``begin``."""

    @property
    def given_up(self) -> str:
        """Says which offsets the run gives up; empty for none."""
        if self.lost_from is None:
            return ""
        spans = self.lost_from.spans(self.begin).items()
        where = ", ".join(f"{begin} to {end - 1} of partition {number}" for number, (begin, end) in spans)
        return f"{self.lost_from.before(self.begin)} offsets that {self.source.name} has lost: {where}"

    @property
    def version(self) -> tuple[str, ...]:
        """The parts of it that decide which rows it has."""
        skipped = self.source.skip if isinstance(self.source, KafkaTopic) else ()
        return self.source.name, str(self.begin), str(self.to), *skipped

    def left(self, position: Offsets | None) -> Offsets:
        """Returns where to begin now: another run may have moved on since, and nothing is moved twice.

        Rows that are given up are passed over, and no others.
        """
        if position is None or self.lost_from is None or position.source != self.begin.source:
            return position or self.begin
        count = len(self.begin.by_partition)
        places = (one.widened(count).by_partition for one in (self.lost_from, position, self.begin))
        at = tuple(end if lost <= now < end else now for lost, now, end in zip(*places, strict=True))
        passes_over = at != position.widened(count).by_partition
        return Offsets(self.begin.identity if passes_over else position.identity, at)

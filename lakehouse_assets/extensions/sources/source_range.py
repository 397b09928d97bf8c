"""The source rows that a run moves, for its plan and its workers."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse_assets.declare.row_source import Offsets
from lakehouse_assets.extensions.sources.kafka import KafkaTopic
from lakehouse_assets.extensions.sources.postgres import PostgresTable
from lakehouse_assets.wire.work import ReadOn


def offsets(known: ReadOn, source: str) -> Offsets | None:
    """Returns a source's position, if it is known."""
    text = known.positions.get(source)
    return Offsets.parse(text) if text else None


@dataclass(frozen=True)
class SourceRange:
    """The source rows from ``begin`` up to ``to``, exclusive."""

    source: KafkaTopic | PostgresTable
    begin: Offsets
    """The table's position at planning, else the source's first row."""
    to: Offsets
    lost_from: Offsets | None = None
    """The table's position at planning if the source has lost the rows that follow: the run gives up the
    rows before ``begin``."""

    @property
    def given_up(self) -> str:
        """The given-up offsets, as text."""
        if self.lost_from is None:
            return ""
        spans = self.lost_from.spans(self.begin).items()
        where = ", ".join(f"{begin} to {end - 1} of partition {number}" for number, (begin, end) in spans)
        return f"{self.lost_from.before(self.begin)} offsets that {self.source.name} has lost: {where}"

    def left(self, position: Offsets | None) -> Offsets:
        """Returns where to begin now: at ``position``, or at ``begin`` if that is None.

        position: the table's now, which may be beyond ``begin`` because another run has moved rows since the plan. In
        partitions where it lies in the gap from ``lost_from`` to ``begin``, returns ``begin``.
        """
        # A position in another source is returned as it is: prove() refuses it.
        if position is None or self.lost_from is None or position.source != self.begin.source:
            return position or self.begin
        count = len(self.begin.by_partition)
        places = (one.widened(count).by_partition for one in (self.lost_from, position, self.begin))
        at = tuple(begin if lost <= now < begin else now for lost, now, begin in zip(*places, strict=True))
        # A position's identity may end in a mark, by which the source knows it again (see row_source.py). A purge has
        # dropped the mark of a position in the gap, so prove() would refuse it: begin's identity counts instead.
        skips_gap = at != position.widened(count).by_partition
        return Offsets(self.begin.identity if skips_gap else position.identity, at)

"""How far a source was read: an offset for each of its partitions, and which source they are of.

Plain data, which a table's commits hold as text. What an offset counts is kafka.py's and postgres.py's.
"""

from __future__ import annotations

from typing import NamedTuple


class Offsets(NamedTuple):
    """A position in a source: all rows with smaller offsets were read, no others.

    Example:
        >>> str(Offsets("Zk3X", (12, 0)))
        '12,0@Zk3X'
    """

    identity: str
    """Which source the offsets are of; those of one that was created again, or restored elsewhere, mean nothing.
    A mark may follow, which the source keeps: one that was set back to an earlier time does not know it."""
    by_partition: tuple[int, ...]
    """The first offset that was not read, by the number of its partition."""

    def __str__(self) -> str:
        return f"{','.join(map(str, self.by_partition))}@{self.identity}"

    @staticmethod
    def marked(source: str, mark: str) -> str:
        """Returns the identity of a source with a mark; without one where that is empty."""
        return f"{source}~{mark}" if mark else source

    @property
    def source(self) -> str:
        """The identity without its mark."""
        return self.identity.partition("~")[0]

    @property
    def mark(self) -> str:
        """The mark; empty where there is none, as in the position of a move before there were marks."""
        return self.identity.partition("~")[2]

    @classmethod
    def parse(cls, text: str) -> Offsets:
        """Reads what str() gives. Raises ValueError for another text."""
        offsets, _, identity = text.partition("@")
        return cls(identity, tuple(int(offset) for offset in offsets.split(",")))

    def widened(self, partitions: int) -> Offsets:
        """Returns the same position in a source that has this many partitions by now: a new one begins at 0."""
        return Offsets(self.identity, self.by_partition + (0,) * (partitions - len(self.by_partition)))

    def spans(self, to: Offsets) -> dict[int, tuple[int, int]]:
        """Returns the half-open range from here ``to`` there of each partition that has one, by the partition."""
        pairs = zip(self.widened(len(to.by_partition)).by_partition, to.by_partition, strict=False)
        return {number: (begin, end) for number, (begin, end) in enumerate(pairs) if begin < end}

    def before(self, to: Offsets) -> int:
        """Returns how many offsets lie from here ``to`` there."""
        return sum(end - begin for begin, end in self.spans(to).values())

"""The proof of a rewrite: what identifies the rows of both sides as a multiset, and whether they are the same.

How rows are hashed is in rewrite/digest.py; only a rewrite whose proof holds can land (landing_rules.py).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Digest:
    """A multiset of rows, by the 64-bit hashes of its rows. Digests of parts add up to that of the whole.

    The xor alone is blind to pairs of equal rows; a count and a sum are blind to few changes that make up for each
    other.
    """

    rows: int = 0
    """The number of rows."""
    low: int = 0
    """The sum of the lower 32 bits of the hashes."""
    high: int = 0
    """The sum of the upper 32 bits of the hashes."""
    xor: int = 0
    """The xor of the hashes."""

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.rows + other.rows, self.low + other.low, self.high + other.high, self.xor ^ other.xor)


@dataclass(frozen=True)
class Proof:
    """The rows that a rewrite read, and those that were read back of what it wrote."""

    before: Digest
    after: Digest

    @property
    def holds(self) -> bool:
        """Whether the rows are the same before and after, as far as their digests tell."""
        return self.before == self.after

    def __str__(self) -> str:
        if self.holds:
            return f"{self.before.rows} rows, the same before and after"
        if self.before.rows == self.after.rows:
            return f"{self.before.rows} rows before and after, but not the same rows"
        return f"{self.before.rows} rows before, {self.after.rows} after"

"""The work of a merge, the bounds of the rows concerned, and what was counted: plain data.

No Dagster, no Spark, no I/O: both sides of the process border import this module.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST = -(2**31)
"""The least int. A column of longs may have been one of ints, and keeps partitions that were computed of these."""
WIDEST = 2**30
"""The greatest width that Iceberg's truncate of ints can add to the rest of a division by it without an overflow
(org.apache.iceberg.util.TruncateUtil)."""


@dataclass(frozen=True)
class MergeWork:
    """The options by which the rows that a step returns, the changes, are merged into the table."""

    keys: tuple[str, ...]
    """The columns that identify a row."""
    delete_when: str = ""
    """A condition in SQL over the changes' columns. A change that it is true of deletes its row; "": none does."""
    order_by: str = ""
    """The column of the changes by which the latest of several with one key is taken; "": two such changes are an
    error."""
    only_inserts: bool = False
    """Whether rows whose key is there, or comes twice, are left out, and nothing else changes."""


@dataclass(frozen=True)
class Bound:
    """The values that the changes have in one column.

    Values are text that Iceberg reads as the column's type; times are microseconds since 1970.
    """

    column: str
    values: tuple[str, ...] = ()
    """All values; empty where they are many."""
    low: str = ""
    """Where ``values`` is empty, the least value, included."""
    high: str = ""
    """Where ``values`` is empty, the greatest value, included."""


@dataclass(frozen=True)
class Merged:
    """The numbers of what one worker's merge did, in rows, and the bounds within which it did it."""

    bounds: tuple[Bound, ...] = ()
    """Rows of the table that any change could have met are within all of them, and Iceberg finds all files that hold
    such rows."""
    changes: int = 0
    """Rows that the step returned."""
    left_out: int = 0
    """Changes that were repeated, or followed by a later one of their key."""
    matched: int = 0
    """The other changes whose key was there; some may change nothing."""
    inserted: int = 0
    """Rows of the table, as are the next two."""
    updated: int = 0
    deleted: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether the merge leaves the table's rows as they are."""
        return not (self.inserted or self.updated or self.deleted)


def truncates_in_order(width: int, number: int) -> bool:
    """Tells whether Iceberg gives a number, and all greater ones, the partition that PyIceberg computes too.

    PyIceberg knows no overflow; where Iceberg's ints overflow, the partition may be any.
    width: of the truncate. number: of a column of ints or longs.
    """
    return width <= WIDEST and LEAST + width <= number

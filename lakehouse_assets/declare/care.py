"""Declares how a table's owner wants it maintained.

The defaults maintain it: nobody has to opt in. What is done when, and whether it is worth its cost, is maintenance/'s.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class Level(StrEnum):
    """The kinds of maintenance, by the names that jobs take.

    Example:
        >>> from lakehouse_assets import Level, Maintenance
        >>> Maintenance(without=[Level.EXPIRE]).without
        [<Level.EXPIRE: 'expire'>]
    """

    FRAGMENTS = "fragments"
    """Files of at most an eighth of the target size are put together."""
    UNDERSIZED = "undersized"
    """Files of at most three quarters of it are."""
    SORT = "sort"
    """Files are laid out by the sort order, or by ``zorder``."""
    DELETES = "deletes"
    """Delete files are applied to the rows that they name."""
    MANIFESTS = "manifests"
    """Small manifests are merged."""
    EXPIRE = "expire"
    """Snapshots that are past their time are forgotten."""
    COLLECT = "collect"
    """Files that nobody needs go to the trash."""


class RowProof(StrEnum):
    """The way in which a rewrite shows that its rows are the same before and after."""

    ROWS = "rows"
    """By a digest of all rows, read back from storage."""
    COUNTS = "counts"
    """By their number: a second reading is spared."""


MANAGED_LEVELS = frozenset(Level) - {Level.MANIFESTS}
"""The levels that S3 Tables runs on every table by itself, and Glue where it is switched on:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-tables-maintenance.html,
https://docs.aws.amazon.com/glue/latest/dg/table-optimizers.html"""


@dataclass(frozen=True)
class Maintenance:
    """The maintenance that a table is declared with.

    Example:
        >>> from lakehouse_assets import Maintenance
        >>> Maintenance(zorder=("origin", "dest"), weight=2).weight
        2
    """

    weight: float = 1.0
    """How much the table counts where the budget does not suffice for all tables, against 1 of the others."""
    quiet_period: timedelta = timedelta(minutes=15)
    """A partition that was written more recently than this is not rewritten yet."""
    without: Collection[Level] = ()
    """Levels that are left out."""
    managed: bool = False
    """Whether the catalog's own optimizer (Glue) looks after the table, so that MANAGED_LEVELS are left to it. For
    tables in S3 Tables it need not be set: they are known to be managed."""
    proof: RowProof = RowProof.ROWS
    """How each rewrite is proved before it lands."""
    zorder: Sequence[str] = ()
    """Columns by which the level ``sort`` lays rows out, in place of the table's sort order."""


def care_problem(care: Maintenance) -> str | None:
    """Says why a table can't be maintained like that; None if it can."""
    if not (math.isfinite(care.weight) and care.weight > 0):
        return f"maintenance has weight={care.weight!r}, it must be a number above 0"
    if care.quiet_period < timedelta(0):
        return f"maintenance has quiet_period={care.quiet_period}, it must be a timedelta of 0 or more"
    return None

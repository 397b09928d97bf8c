"""How a table's owner wants it maintained: part of its declaration. The defaults maintain it, nobody has to opt in.
What is done when, and whether it is worth its cost, is maintenance/'s."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class Level(StrEnum):
    """The kinds of maintenance, by the names that jobs take."""

    FRAGMENTS = "fragments"
    UNDERSIZED = "undersized"
    SORT = "sort"
    DELETES = "deletes"
    MANIFESTS = "manifests"
    EXPIRE = "expire"
    COLLECT = "collect"


MANAGED_LEVELS = frozenset(Level) - {Level.MANIFESTS}
"""What S3 Tables does to every table by itself, and Glue where it is switched on:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-tables-maintenance.html,
https://docs.aws.amazon.com/glue/latest/dg/table-optimizers.html"""


@dataclass(frozen=True)
class Maintenance:
    """weight: how much the table counts where the budget does not suffice for all tables, against 1 of the others.
    quiet_period: a partition that was written more recently is not rewritten yet. without: levels that are left out.
    zorder: columns by which the level ``sort`` lays rows out, in place of the table's sort order.
    managed: whether the catalog's own optimizer (Glue) looks after the table, so that MANAGED_LEVELS are left to it; of
    tables in S3 Tables that is known without.
    """

    weight: float = 1.0
    quiet_period: timedelta = timedelta(minutes=15)
    without: Collection[Level] = ()
    managed: bool = False
    zorder: Sequence[str] = ()


def care_problem(care: Maintenance) -> str | None:
    """Why a table can't be maintained like that; None if it can."""
    if not isinstance(care, Maintenance):
        return f"maintenance is {care!r}, it must be a Maintenance such as Maintenance(weight=2)"
    if not (isinstance(care.weight, int | float) and math.isfinite(care.weight) and care.weight > 0):
        return f"maintenance has weight={care.weight!r}, it must be a number above 0"
    if not isinstance(care.quiet_period, timedelta) or care.quiet_period < timedelta(0):
        return f"maintenance has quiet_period={care.quiet_period!r}, it must be a timedelta of 0 or more"
    if isinstance(care.without, str) or set(care.without) - set(Level):
        return f"maintenance has without={care.without!r}, it must be a list of {', '.join(Level)}"
    return None

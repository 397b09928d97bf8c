"""Declares which objects' arrivals ask for a table's partitions: a pattern of keys, part of a table's declaration.

How it is told that an object arrived, and what is done then, is the queue's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property

FIELD = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class Pace:
    """The pace of a table's runs: how soon and how often its partitions are run as messages come.

    Example:
        >>> from datetime import timedelta
        >>> from lakehouse_assets import Arrivals, Pace
        >>> Arrivals("orders/{day}.csv.gz", Pace(floor=10, latency=timedelta(minutes=5))).pace.floor
        10
    """

    floor: int = 1
    """The number of partitions that are worth a run at once; fewer wait until the oldest has waited for ``latency``."""
    latency: timedelta = timedelta(seconds=60)
    """How long the oldest of fewer waits at most."""
    ceiling: int = 400
    """The most partitions of one run."""
    runs: int = 1
    """The most runs at once."""
    tries: int = 4
    """The number of failed runs after which a partition is left to a person."""
    backoff: timedelta = timedelta(seconds=60)
    """How long a partition waits after the first failure, then twice as long each time, an hour at most."""


@dataclass(frozen=True)
class Arrivals:
    """The objects of which a table's partitions are made.

    Example:
        >>> from lakehouse_assets import Arrivals
        >>> Arrivals("orders/{day}.csv.gz").pattern
        'orders/{day}.csv.gz'
    """

    pattern: str
    """A pattern of keys within the domain's part of the drop zone, such as ``flights/{flight_date}.csv.gz``. Each field
    in braces is one of the table's partition dimensions, named as its column, and stands for its part of the partition
    key. ``*`` stands for anything but a slash. A table without partitions has a pattern without fields."""
    pace: Pace = field(default_factory=Pace)
    """How soon and how often the table's partitions are run."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the pattern's fields, in its order."""
        return tuple(FIELD.findall(self.pattern))

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        literals = FIELD.split(self.pattern)[::2]  # every other one is a field's name
        parts = [re.escape(literal).replace(r"\*", "[^/]*") for literal in literals]
        groups = ["([^/]+)"] * len(self.fields)
        return re.compile("".join(part + group for part, group in zip(parts, [*groups, ""], strict=True)), re.DOTALL)

    def partition_key(self, key: str, dimensions: Sequence[str]) -> str | None:
        """Returns the Dagster partition key that an object's key stands for; None if it does not match the pattern.

        The key is "" for a table without partitions. Whether there is such a partition is not known here.

        dimensions: the names of the table's dimensions, in the order of a multi-partition key.
        """
        found = self._regex.fullmatch(key)
        if found is None:
            return None
        of_field = dict(zip(self.fields, found.groups(), strict=True))
        return "|".join(of_field[name] for name in dimensions)


def arrivals_problem(arrivals: Arrivals, dimensions: Sequence[str]) -> str | None:
    """Says why no partition key can come of the pattern, or nothing be run at the pace; None if all is well.

    dimensions: the same as for partition_key().
    """
    pattern, fields = arrivals.pattern, arrivals.fields
    if not pattern or pattern.startswith("/") or "{" in FIELD.sub("", pattern) or "}" in FIELD.sub("", pattern):
        return f"arrivals has the pattern {pattern!r}, it must be a key without a leading slash, with fields in braces"
    if len(set(fields)) != len(fields) or set(fields) != set(dimensions):
        expected = ", ".join(f"{{{name}}}" for name in dimensions) or "no field"
        found = ", ".join(f"{{{name}}}" for name in fields) or "none"
        return (
            f"arrivals has the pattern {pattern!r}, which yields no partition key: expected {expected}, found {found}"
        )
    if "}{" in pattern:
        return f"arrivals has the pattern {pattern!r}: nothing tells where one field ends and the next begins"
    return _pace_problem(arrivals.pace)


def _pace_problem(pace: Pace) -> str | None:
    """Says why nothing could be run at such a pace; None if it can."""
    for option in ("floor", "ceiling", "runs", "tries"):
        if (number := getattr(pace, option)) < 1:
            return f"arrivals.pace has {option}={number}, it must be a whole number of 1 or more"
    if pace.latency < timedelta(0):
        return f"arrivals.pace has latency={pace.latency}, it must be a timedelta of 0 or more"
    if pace.backoff <= timedelta(0):
        return f"arrivals.pace has backoff={pace.backoff}, it must be a timedelta above 0"
    return None

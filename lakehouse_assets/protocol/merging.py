"""What a worker merges, how it found the rows concerned, and what it counted: plain data, to JSON and back.
No Dagster, no Spark, no I/O: both sides of the process border import this module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MergeWork:
    """How the rows that a step returns, the changes, are merged into the table.

    keys: the columns that identify a row. delete_when: a condition in SQL over the changes' columns; a change that it
    is true of deletes its row, "" where none does. order_by: the column of the changes by which the latest of several
    with one key is taken; "" where two such changes are an error. only_inserts: rows whose key is there, or comes
    twice, are left out, and nothing else changes.
    """

    keys: tuple[str, ...]
    delete_when: str = ""
    order_by: str = ""
    only_inserts: bool = False

    @classmethod
    def from_json(cls, fields: Mapping[str, Any] | None) -> MergeWork | None:
        return cls(**{**fields, "keys": tuple(fields["keys"])}) if fields else None


@dataclass(frozen=True)
class Bound:
    """Which values of one column the changes have. values: all of them, as text that Iceberg reads as the column's type
    (times: microseconds since 1970); empty where they are many, and between low and high, both included."""

    column: str
    values: tuple[str, ...] = ()
    low: str = ""
    high: str = ""


@dataclass(frozen=True)
class Merged:
    """What one worker's merge did. bounds: rows of the table that any change could have met are within all of them,
    and Iceberg finds all files that hold such rows.

    changes: rows that the step returned. left_out: those of them that were repeated, or followed by a later one of
    their key. matched: the others whose key was there; some may change nothing. inserted, updated, deleted: rows of the
    table.
    """

    bounds: tuple[Bound, ...] = ()
    changes: int = 0
    left_out: int = 0
    matched: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether the table's rows stay as they are."""
        return not (self.inserted or self.updated or self.deleted)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any] | None) -> Merged | None:
        """Raises TypeError or KeyError for foreign fields."""
        if fields is None:
            return None
        bounds = (Bound(**{**bound, "values": tuple(bound["values"])}) for bound in fields["bounds"])
        return cls(**{**fields, "bounds": tuple(bounds)})

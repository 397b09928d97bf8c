"""The window: what part of its table a step computes in one call.
Plain data for the author of a step; how partition keys become a window is in declare/windows.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime


@dataclass(frozen=True)
class Window:
    """The part of a table that one call of a step computes.

    keys: the chunk's Dagster partition keys, in order; empty for a table without partitions.
    start, end: the half-open time window [start, end) that the keys cover together, timezone-aware; None without a time
    dimension.
    dimensions: the keys of each static, dynamic or multi dimension, by its name.
    landing: the domain's part of the drop zone (a path or a URL such as ``s3://…``), no trailing slash.
    """

    keys: tuple[str, ...] = ()
    start: datetime | None = None
    end: datetime | None = None
    dimensions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    landing: str = ""

    @property
    def start_date(self) -> date:
        """The first day of the window. Raises ValueError where there is no time dimension."""
        return _bound(self.start).date()

    @property
    def end_date(self) -> date:
        """The day after the window's last. Raises ValueError where there is no time dimension."""
        return _bound(self.end).date()


def _bound(bound: datetime | None) -> datetime:
    if bound is None:
        raise ValueError("this table's partitions have no time dimension: use window.keys or window.dimensions")
    return bound

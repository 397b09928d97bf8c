"""What the author of a step gets: the window of partitions, and the files that the step has opened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHANGE_TYPE = "_change_type"
"""Iceberg's name of the column that tells whether a changed row was inserted or deleted."""


@dataclass(frozen=True)
class Window:
    """The part of a table that one call of a step computes.

    Examples:
        >>> from datetime import UTC, datetime
        >>> from lakehouse_assets import Window
        >>> day = Window(("2026-01-31",), datetime(2026, 1, 31, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC))
        >>> day.end_date.isoformat()
        '2026-02-01'
    """

    keys: tuple[str, ...] = ()
    """The chunk's Dagster partition keys, in order; empty for a table without partitions."""
    start: datetime | None = None
    """The start of the half-open time window [start, end) that the keys cover together, timezone-aware; None without a
    time dimension."""
    end: datetime | None = None
    """The exclusive end of that time window; None without a time dimension."""
    dimensions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The keys of each static, dynamic or multi dimension, by the dimension's name."""
    landing: str = ""
    """The domain's part of the drop zone, a path or a URL such as ``s3://…``, without a trailing slash."""

    @property
    def start_date(self) -> date:
        """The first day of the window. Raises ValueError if there is no time dimension."""
        return _bound(self.start).date()

    @property
    def end_date(self) -> date:
        """The day after the window's last. Raises ValueError if there is no time dimension."""
        end = _bound(self.end)
        # A window that ends at midnight does not reach into the day that begins then.
        return end.date() if end.time() == time.min else end.date() + timedelta(days=1)

    def changes(self, table: str) -> DataFrame:
        """Returns the rows of an input that have changed since the version that the table's own last commit has read.

        table: the input's name in Spark, such as ``lake.nyc.flights``. Each row has the input's columns, and in
        ``_change_type`` INSERT, or DELETE for a row that is gone. Changes are net: a row that came and went again is
        left out, and an updated row comes twice, as a DELETE with the old values and an INSERT with the new ones. The
        first time, and with the run tag ``lakehouse/read_all: true``, all rows are returned.

        The new position is part of the commit of the step's rows, so a run that fails reads the same changes again.
        Only tables that are declared Append or Merge, without Dagster partitions, can read changes.

        Raises LookupError for a table that is no input, RuntimeError if the changes are unknown, and
        NotImplementedError outside a worker.
        """
        raise NotImplementedError("changes are read in a step that a worker runs, from the position of its table")

    def source_rows(self) -> DataFrame:
        """Returns the rows of the table's source that this run moves, with the table's columns.

        Rows of a PostgresTable also have ``deleted``. If a table's step does anything but return these rows,
        hot_and_cold() can't read the table. Raises LookupError for a table without a source, NotImplementedError
        outside a worker.
        """
        raise NotImplementedError("a source is read in a step that a worker runs, from the position of its table")


def _bound(bound: datetime | None) -> datetime:
    if bound is None:
        raise ValueError("this table's partitions have no time dimension: use window.keys or window.dimensions")
    return bound


class BadPartitions(ValueError):
    """A step can't compute some partitions of its window.

    partitions: keys of the window whose input is missing or can't be read.

    Examples:
        >>> from lakehouse_assets import BadPartitions
        >>> raise BadPartitions("the shop was closed", ["2026-01-01"])
        Traceback (most recent call last):
        lakehouse_assets.step.window.BadPartitions: the shop was closed
    """

    def __init__(self, message: str, partitions: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.partitions = tuple(partitions)


@dataclass(frozen=True)
class OpenedFile:
    """A file of the drop zone as it was when a step opened it."""

    path: str
    size: int
    """In bytes."""
    modified_ms: int
    """Modification time by the storage's clock, in epoch milliseconds."""


# The files by their paths. A process stages one chunk at a time.
_opened: dict[str, OpenedFile] = {}


def note_opened(files: Iterable[OpenedFile]) -> None:
    """Records files that the step of this process has opened; the last state of a file counts."""
    _opened.update({file.path: file for file in files})


def take_opened() -> tuple[OpenedFile, ...]:
    """Returns the files noted since the last call, sorted by path; the receipt lists them."""
    found = tuple(_opened[path] for path in sorted(_opened))
    _opened.clear()
    return found


MOVE = "lakehouse_assets.step.window:move"
"""The name of move(), the step of tables that have a source and declare no step."""


def move(spark: SparkSession, window: Window) -> DataFrame:
    """Returns the rows of the source that this run moves."""
    return window.source_rows()

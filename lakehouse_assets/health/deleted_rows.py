"""Estimates the most rows that the delete files of a partition may delete, by kinds and ages alone. Pure.

No delete file is read: which rows they really delete only a scan knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFileContent

from lakehouse_assets.health.summaries import Summary


@dataclass
class Deletes:
    """The delete files of one partition."""

    positions: list[tuple[int, int]] = field(default_factory=list)
    """The (greatest data sequence number, rows) of each summary of position delete files."""
    newest_equality: int = -1
    """The greatest data sequence number of the equality delete files; -1 without any."""

    def add(self, summary: Summary) -> None:
        """Adds a summary of delete files."""
        if summary.content == DataFileContent.POSITION_DELETES:
            self.positions.append((summary.newest, summary.rows))
        else:
            self.newest_equality = max(self.newest_equality, summary.newest)


def rows_deleted_at_most(data: Mapping[int, int], deletes: Deletes, newest_equality: int) -> int:
    """Returns an upper bound of the deleted rows of a partition, never more than its rows.

    A row of a position delete file deletes at most one row, of a data file that is not newer. A row of an equality
    delete file deletes any number, of data files that are older, so all their rows count. Newer data files were written
    after the delete (https://iceberg.apache.org/spec/#scan-planning).

    data: rows of data files by their least data sequence number. newest_equality: the greatest data sequence number of
    the equality deletes that hold for all partitions; -1 without any.
    """
    equality = max(deletes.newest_equality, newest_equality)
    if not data or (equality < 0 and not deletes.positions):
        return 0
    oldest = min(data)
    positions = sum(rows for newest, rows in deletes.positions if newest >= oldest)
    return min(sum(data.values()), positions + sum(rows for age, rows in data.items() if age < equality))

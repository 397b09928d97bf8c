"""What a commit carries besides its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata


class CommitPart:
    """One thing that a commit carries besides its rows.

    Each attempt of publish() asks the parts in order. now: the table as it is before the commit.
    """

    @property
    def may_stage_again(self) -> bool:
        """Whether change() or refuse() may raise StageAgain: other commits can disturb what is staged."""
        return False

    def change(self, transaction: Transaction) -> None:
        """Changes the table before rows are planned. Raises PublishRefused or StageAgain."""

    def refuse(self, now: Table) -> None:
        """Raises PublishRefused or StageAgain if the table must not get the commit."""

    def summary(self, now: TableMetadata) -> Mapping[str, str]:
        """Returns entries for the snapshot's summary."""
        return {}

    def properties(self, now: TableMetadata) -> Mapping[str, str]:
        """Returns table properties to set."""
        return {}


@dataclass(frozen=True)
class SummaryEntries(CommitPart):
    """Fixed entries of the summary."""

    entries: Mapping[str, str]

    def summary(self, now: TableMetadata) -> Mapping[str, str]:
        """Returns the entries."""
        return self.entries

"""The seam of a commit: what it carries beside its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata


class CommitPart:
    """One thing that a commit carries beside its rows.

    publish() asks each part at each attempt, of the table as it is then, in the order in which it was given them.
    """

    def change(self, transaction: Transaction) -> None:
        """Changes the table in the transaction, before rows are planned. Raises PublishRefused or HeadMoved."""

    def refuse(self, now: Table) -> None:
        """Raises PublishRefused or HeadMoved if the commit must not be made on this table."""

    def summary(self, now: TableMetadata) -> Mapping[str, str]:
        """Returns entries of the summary of the snapshot."""
        return {}

    def properties(self, now: TableMetadata) -> Mapping[str, str]:
        """Returns table properties to set."""
        return {}


@dataclass(frozen=True)
class SummaryEntries(CommitPart):
    """Entries of the summary that are the same whatever the table is."""

    entries: Mapping[str, str]

    def summary(self, now: TableMetadata) -> Mapping[str, str]:
        """Returns the entries."""
        return self.entries

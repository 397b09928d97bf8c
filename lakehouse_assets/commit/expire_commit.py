"""Expires snapshots of a table in one commit, whatever else is committed meanwhile, and checks afterwards what it did.

Metadata only: no file is deleted here. What may expire: maintenance/expiry.py; what goes with it: expiry_update.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.audit import AuditFinding
from lakehouse_assets.commit.expiry_check import Committed, committed_by, faults
from lakehouse_assets.commit.expiry_update import Expiry, unchanged
from lakehouse_assets.commit.persistence import ATTEMPTS, commit_persistently
from lakehouse_assets.errors import MaintenanceContended, MaintenanceRefused


@dataclass(frozen=True)
class HistorySize:
    """The amount of history that every commit to the table has to read and write."""

    snapshots: int
    log_entries: int
    metadata_bytes: int
    """The length of the metadata as uncompressed JSON, in characters; it is the number of bytes where all are ASCII."""

    @classmethod
    def of(cls, metadata: TableMetadata) -> HistorySize:
        """Measures the history in the metadata of a table."""
        return cls(len(metadata.snapshots), len(metadata.snapshot_log), len(metadata.model_dump_json()))


@dataclass(frozen=True)
class Expired:
    """The result of an expiry. Nothing was committed where ``expiry.is_empty``."""

    expiry: Expiry
    before: HistorySize
    after: HistorySize
    base: str
    """The metadata file before the commit. The collector finds what nobody needs by its difference from ``result``."""
    result: str
    """The metadata file after the commit."""
    findings: tuple[AuditFinding, ...]
    """The faults of the catalog, to be shown red."""
    attempts: int
    """The number of commits tried in this call."""
    seconds: float
    """The duration of this call."""


def expire(
    catalog: Catalog, identifier: str, plan: Callable[[TableMetadata], Expiry], *, attempts: int = ATTEMPTS
) -> Expired:
    """Expires the snapshots that ``plan`` chooses from the table's metadata; it is asked anew at each attempt.

    The commit requires every branch and tag to be where the plan saw it. It can't require anything of one that is new:
    where the client writes the metadata, the commit conflicts; a REST catalog may remove the new one with its snapshot,
    which makes a finding ``refs``. Its files are still there, until the collector's grace ends.

    After a call that died around its commit, the next one finds nothing left to do. Raises what ``plan`` raises,
    MaintenanceRefused where there is no table, MaintenanceContended when the attempts ran out or the catalog stayed out
    of reach.
    """
    return _Expiration(catalog, identifier, plan).run(attempts)


@dataclass
class _Expiration:
    """One call of expire()."""

    catalog: Catalog
    identifier: str
    plan: Callable[[TableMetadata], Expiry]
    started: float = field(default_factory=time.monotonic)
    attempts: int = 0
    tried: tuple[Table, Expiry] | None = None
    """The table and the plan of the last commit whose answer may be lost."""

    def run(self, attempts: int) -> Expired:
        verb = "expire snapshots"
        return commit_persistently(
            self.identifier, verb, self._attempt, lambda: self._landed(self._load()), self._contended, attempts
        )

    def _attempt(self) -> Expired:
        # Loaded right before the commit: a tag that is set in between is lost on some REST catalogs.
        table = self._load()
        if landed := self._landed(table):
            return landed
        expiry = self.plan(table.metadata)
        if expiry.is_empty:
            same = (table.metadata_location, table.metadata)
            return self._expired(expiry, Committed(same, same))
        self.tried = (table, expiry)
        self.attempts += 1
        # A transaction is not used: it deletes old metadata files where the table's properties ask for it.
        response = self.catalog.commit_table(table, unchanged(table.metadata), expiry.updates())
        result = (response.metadata_location, response.metadata)
        return self._expired(expiry, committed_by(expiry, table, result))

    def _landed(self, table: Table) -> Expired | None:
        """Returns what the last commit that was tried did; None if it is not on the table."""
        if self.tried is None:
            return None
        base, expiry = self.tried
        if table.metadata.table_uuid != base.metadata.table_uuid or not expiry.is_done(table.metadata):
            return None
        return self._expired(expiry, committed_by(expiry, base, (table.metadata_location, table.metadata)))

    def _load(self) -> Table:
        try:
            return self.catalog.load_table(self.identifier)
        except NoSuchTableError as error:
            raise MaintenanceRefused(
                f"table {self.identifier}: expected in the catalog to expire its snapshots, but it is not there. If it "
                "was dropped on purpose, nothing is left to do"
            ) from error

    def _expired(self, expiry: Expiry, committed: Committed) -> Expired:
        (base, before), (result, after) = committed.base, committed.result
        return Expired(
            expiry=expiry,
            before=HistorySize.of(before),
            after=HistorySize.of(after),
            base=base,
            result=result,
            findings=tuple(faults(self.identifier, expiry, committed)),
            attempts=self.attempts,
            seconds=time.monotonic() - self.started,
        )

    def _contended(self, problem: str, failure: Exception) -> MaintenanceContended:
        seconds = time.monotonic() - self.started
        return MaintenanceContended(
            f"table {self.identifier}: expiring snapshots was {problem}, tried for {seconds:.0f} s, the last error was "
            f"{failure!r}. No rows and no files are concerned; the next maintenance finds out what is left to expire"
        )

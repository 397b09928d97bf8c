"""Publishes a change to its table once, in one commit, despite concurrent commits."""

from __future__ import annotations

import errno
import logging
import random
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
from pyiceberg.table import Table

from lakehouse_assets.commit import tokens
from lakehouse_assets.commit.change import Publishable
from lakehouse_assets.commit.commit_part import CommitPart
from lakehouse_assets.commit.manifest_merge import ManifestMerge
from lakehouse_assets.commit.manifests import ManifestPlan, without_cycle_collector
from lakehouse_assets.commit.snapshot import ChangeSnapshot, LeanTransaction
from lakehouse_assets.commit.staged import missing_files
from lakehouse_assets.commit.tokens import TOKEN, RunToken
from lakehouse_assets.environment.aws import is_transient
from lakehouse_assets.environment.catalog import CatalogUnavailable, with_retries
from lakehouse_assets.errors import LakehouseError, PublishContended, UnreadableMetadata

logger = logging.getLogger(__name__)
T = TypeVar("T")

ATTEMPTS = 20
# Full jitter from 100 ms (Iceberg's commit.retry.min-wait-ms) to 5 s: 20 attempts wait 35 s on average, which
# outlasts a lock of 10 s on the catalog.
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
# After these errors, another attempt may succeed. requests' errors and timeouts are OSErrors.
TRANSIENT = (
    CommitFailedException,
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    OSError,
)
# Except these: a full or forbidden storage stays so.
LASTING = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}


def commit_persistently(
    identifier: str,
    verb: str,
    attempt: Callable[[], T],
    landed: Callable[[], T | None],
    contended: Callable[[str, Exception], LakehouseError],
) -> T:
    """Returns the result of the first attempt that succeeds.

    verb: for the log. attempt: its LakehouseError ends the loop. landed: called once after the last error; returns the
    result if the commit is there. contended: makes an error from the problem and the last error, if the attempts ran
    out or the catalog stayed out of reach.
    """
    for number in range(1, ATTEMPTS + 1):
        if number > 1:
            time.sleep(random.uniform(0, min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (number - 2))))
        try:
            return attempt()
        except LakehouseError:
            raise
        except Exception as error:
            failure = error
            # CatalogUnavailable: with_retries() has waited for the outage. Next, check whether the commit landed.
            if isinstance(error, CatalogUnavailable) or not _transient(error):
                break
            _log(f"{number} of {ATTEMPTS} to {verb}", identifier, error)
    try:
        found = landed()
    except LakehouseError:
        raise
    except Exception as error:
        raise contended(f"the catalog can't tell whether the commit landed ({error!r})", failure) from error
    if found is not None:
        return found
    if not _transient(failure):
        raise failure
    raise contended(f"not committed in {number} attempts", failure) from failure


def _log(attempt: str, identifier: str, error: Exception) -> None:
    if isinstance(error, CommitFailedException):  # expected where several runs write a table
        text = "%s: another commit came first at attempt %s; trying again on the current table"
        logger.info(text, identifier, attempt)
    else:
        logger.warning("%s: attempt %s failed: %r", identifier, attempt, error)


def _transient(error: Exception) -> bool:
    from sqlalchemy.exc import OperationalError  # takes half a second; definitions load without it

    if "botocore" in sys.modules and is_transient(error):  # PyIceberg imports it with Glue
        return True
    # SQLite's "database is locked" is an OperationalError, and so are a dropped PostgreSQL connection and a full disk.
    if getattr(getattr(error, "orig", None), "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return False
    return isinstance(error, (*TRANSIENT, OperationalError)) and getattr(error, "errno", None) not in LASTING


@dataclass(frozen=True)
class Published:
    """The result of a publish."""

    snapshot_id: int
    repeated: bool
    """Whether an earlier publish with the same token committed it."""
    attempts: int = 0
    """Commits that this call tried."""
    files_removed: int = 0
    """By the snapshot's summary; 0 if the snapshot has expired."""
    seconds: float = 0.0
    """How long this call took, waits included."""


def publish(
    catalog: Catalog,
    identifier: str,
    change: Publishable,
    token: RunToken,
    parts: Sequence[CommitPart] = (),
) -> Published:
    """Commits a change to a table, as one snapshot on main.

    A second publish with the token changes nothing and returns the first one's snapshot; each batch of chunks that a
    run publishes separately needs its own token. Every attempt loads the table, looks for the token and plans again, so
    another commit costs at most an attempt. After an error, nothing is deleted before the token was looked for.

    Raises PublishRefused if the change doesn't fit the table, RolledBack if the run's snapshot was rolled back, or what
    a part raises: then nothing is committed. Raises PublishContended if the attempts ran out or the catalog stayed out
    of reach; publishing again with the same token finds out whether the commit landed.
    """
    with without_cycle_collector():
        return _Publication(catalog, identifier, change, token, parts).run()


@dataclass
class _Publication:
    catalog: Catalog
    identifier: str
    change: Publishable
    token: RunToken
    parts: Sequence[CommitPart]
    started: float = field(default_factory=time.monotonic)
    merge: ManifestMerge = field(default_factory=ManifestMerge)
    tried: list[ChangeSnapshot] = field(default_factory=list)
    """One may have landed although its commit raised an error."""
    refused: list[ChangeSnapshot] = field(default_factory=list)
    """To be deleted once the table is seen to lack the token."""

    def run(self) -> Published:
        return commit_persistently(
            self.identifier, "publish", self._attempt, lambda: self._landed(self._load()), self._contended
        )

    def _attempt(self) -> Published:
        table = self._load()
        if landed := self._landed(table):
            return landed
        transaction, evolved = self._evolved(table)
        missing: list[str] = []
        if needed := self.change.needed(evolved.metadata):
            # Checked at every attempt: files may have been removed since. With many files it takes long and others
            # commit meanwhile, so the table is loaded again.
            missing = missing_files(table.io, needed)
            table = self._load()
            if landed := self._landed(table):
                return landed
            transaction, evolved = self._evolved(table)
        plan = self.change.plan(evolved, missing)
        try:
            self.merge.apply(evolved, plan)
        except (UnreadableMetadata, OSError, ValueError) as error:  # a publish does not need the merge
            logger.warning("%s: its manifests were not merged: %s", self.identifier, error)
        for part in self.parts:
            part.refuse(table)
        return self._published(table, self._commit(table, transaction, plan), repeated=False)

    def _evolved(self, table: Table) -> tuple[LeanTransaction, Table]:
        transaction = LeanTransaction(table)
        for part in self.parts:
            part.change(transaction)
        metadata = transaction.table_metadata
        return transaction, Table(table.name(), metadata, table.metadata_location, table.io, table.catalog)

    def _landed(self, table: Table) -> Published | None:
        snapshot_id = tokens.find_published(self.identifier, table.metadata, self.token.text)
        if snapshot_id is not None:
            ours = any(snapshot.snapshot_id == snapshot_id for snapshot in self.tried)
            return self._published(table, snapshot_id, repeated=not ours)
        for snapshot in self.refused:  # certainly not committed: the table lacks the token
            snapshot.discard()
        self.refused.clear()
        return None

    def _commit(self, table: Table, transaction: LeanTransaction, plan: ManifestPlan) -> int:
        now = table.metadata
        summary = {name: text for part in self.parts for name, text in part.summary(now).items()}
        summary[TOKEN] = self.token.text
        snapshot = ChangeSnapshot(self.change.operation, transaction, table.io, plan, summary)
        self.tried.append(snapshot)
        # Only adds it to the transaction.
        snapshot.commit()
        properties = {name: text for part in self.parts for name, text in part.properties(now).items()}
        transaction.set_properties(properties | tokens.token_property(self.token, snapshot.snapshot_id))
        if old := tokens.prunable(now, self.token):
            transaction.remove_properties(*old)
        try:
            transaction.commit_transaction()
        except CommitFailedException:
            self.refused.append(snapshot)
            raise
        except (ValueError, BadRequestError) as error:
            # No requirement names the table's sequence number, which a commit to another branch moves on. A catalog
            # notices this conflict only when it adds the snapshot, and calls it a bad request; PyIceberg has no type
            # for it.
            if self._load().metadata.next_sequence_number() == now.next_sequence_number():
                raise
            self.refused.append(snapshot)
            raise CommitFailedException(f"another commit took the sequence number: {error}") from error
        return snapshot.snapshot_id

    def _load(self) -> Table:
        try:
            return with_retries(lambda: self.catalog.load_table(self.identifier))
        except NoSuchTableError as error:
            raise self.change.refused(self.identifier, "the table is no longer in the catalog") from error

    def _published(self, table: Table, snapshot_id: int, *, repeated: bool) -> Published:
        snapshot = table.metadata.snapshot_by_id(snapshot_id)
        removed = snapshot.summary["deleted-data-files"] if snapshot and snapshot.summary else None
        seconds = time.monotonic() - self.started
        return Published(snapshot_id, repeated, len(self.tried), int(removed or 0), seconds)

    def _contended(self, problem: str, failure: Exception) -> PublishContended:
        seconds = time.monotonic() - self.started
        return PublishContended(
            f"table {self.identifier}: {problem}, tried for {seconds:.0f} s; the last error was {failure!r}. "
            f"{self.change.after_contention}"
        )

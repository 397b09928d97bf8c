"""Publish: everything a run staged lands on its table in one commit, once, whatever else commits meanwhile.
What is staged is read by staged.py, judged by audit.py, turned into a snapshot by replace.py."""

from __future__ import annotations

import errno
import gc
import logging
import random
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from lakehouse_assets.commit import tokens
from lakehouse_assets.commit.fork import refuse_other_versions
from lakehouse_assets.commit.replace import LeanTransaction, ReplaceRegion, plan_replacement
from lakehouse_assets.commit.staged import TOKEN, StagedChunk, distinct_files, missing_files, nulls_in
from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.declare.region import Relation
from lakehouse_assets.declare.terms import spec_text
from lakehouse_assets.errors import PublishContended, PublishRefused
from resources.aws import is_transient

if TYPE_CHECKING:
    from lakehouse_assets.declare.region import Region

logger = logging.getLogger(__name__)

# Full jitter from 100 ms (Iceberg's commit.retry.min-wait-ms) up to 5 s: with 20 attempts over 40 s on average, so a
# catalog locked by somebody else for 10 s is outlasted.
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
# requests' errors and timeouts are OSErrors.
TRANSIENT = (
    CommitFailedException,
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    OSError,
)
LASTING = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}


@dataclass(frozen=True)
class Published:
    """What landed. repeated: an earlier publish of the same run had done it. attempts: commits tried here.

    seconds: of this call. Counts come from the snapshot's summary, 0 where it has expired.
    """

    snapshot_id: int
    repeated: bool
    attempts: int
    files_added: int
    files_removed: int
    rows_added: int
    rows_removed: int
    seconds: float


def publish(
    catalog: Catalog,
    identifier: str,
    region: Region,
    chunks: Sequence[StagedChunk],
    token: RunToken,
    summary: Mapping[str, str],
    *,
    attempts: int = 20,
) -> Published:
    """Replace a region of the table by what was staged for it, in one OVERWRITE snapshot on main.

    region: the partitions to replace, those that came out empty as well.
    token: a second publish with it changes nothing and returns the first one's snapshot; a run that publishes part by
    part needs one for each part. summary: further entries of the snapshot's summary.
    Every attempt loads the table, looks for the token, checks and plans anew, so another commit, wherever it lands,
    never costs more than an attempt. After an error of any kind nothing is deleted before the token was looked for.

    Raises PublishRefused when what was staged doesn't fit the table as it is now, RolledBack when the run's snapshot
    was rolled back: nothing is committed then. Raises PublishContended when the attempts ran out or the catalog stayed
    out of reach; a repeated publish finds out.
    """
    with _uncollected():
        return _Publication(catalog, identifier, region, tuple(chunks), token, dict(summary)).run(attempts)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Python's cycle collector off: manifest entries are many and in no cycle, and each round looks at all of them.

    With 10,000 files replaced it took a third of the time, and made it grow faster than the number of files.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass
class _Publication:
    catalog: Catalog
    identifier: str
    region: Region
    chunks: tuple[StagedChunk, ...]
    token: RunToken
    summary: dict[str, str]
    started: float = field(default_factory=time.monotonic)
    tried: list[ReplaceRegion] = field(default_factory=list)
    refused: list[ReplaceRegion] = field(default_factory=list)

    def run(self, attempts: int) -> Published:
        twice = [n for n, count in Counter(c.receipt.chunk for c in self.chunks).items() if count > 1]
        if twice:
            raise self._refusal(f"the chunks {twice} were handed in more than once; expected one receipt for each")
        files = distinct_files(self.chunks)
        for attempt in range(attempts):
            if attempt:
                time.sleep(random.uniform(0, min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (attempt - 1))))
            try:
                return self._attempt(files)
            except Exception as error:
                failure = error
                if isinstance(error, PublishRefused):
                    raise
                if not _transient(error):
                    break
                self._tell(error, attempt + 1, attempts)
        # Whatever the error said, the commit may have landed.
        if landed := self._landed(self._load_at_last(failure)):
            return landed
        if not _transient(failure):
            raise failure
        raise self._contended(f"not committed in {attempts} attempts", failure) from failure

    def _tell(self, error: Exception, attempt: int, attempts: int) -> None:
        if isinstance(error, CommitFailedException):  # normal life of a table that several write
            told = "%s: another commit came first at attempt %d of %d to publish; going on from what is there now"
            logger.info(told, self.identifier, attempt, attempts)
        else:
            logger.warning("%s: attempt %d of %d to publish failed: %r", self.identifier, attempt, attempts, error)

    def _attempt(self, files: Sequence[DataFile]) -> Published:
        table = self._load()
        landed = self._landed(table)
        if not landed and files:
            self._check_identities(table)  # first: a table made anew is why its files are gone
            self._check_files(table, files)
            table = self._load()  # of now: the more files, the more others have committed while they were looked for
            landed = self._landed(table)
        if landed:
            return landed
        self._check(table, files)
        producer = self._commit(table, files)
        return self._published(table, producer.snapshot_id, repeated=False)

    def _landed(self, table: Table) -> Published | None:
        snapshot_id = tokens.find_published(self.identifier, table.metadata, self.token.text)
        if snapshot_id is not None:
            ours = any(producer.snapshot_id == snapshot_id for producer in self.tried)
            return self._published(table, snapshot_id, repeated=not ours)
        for producer in self.refused:  # surely not committed: refused, and the table has no sign of it
            producer._clean_all_uncommitted()
        self.refused.clear()
        return None

    def _load(self) -> Table:
        try:
            return self.catalog.load_table(self.identifier)
        except NoSuchTableError as error:
            raise self._refusal("the table is no longer in the catalog") from error

    def _load_at_last(self, failure: Exception) -> Table:
        try:
            return self._load()
        except PublishRefused:
            raise
        except Exception as error:
            problem = f"the catalog can't be asked whether the commit landed ({error!r})"
            raise self._contended(problem, failure) from error

    def _contended(self, problem: str, failure: Exception) -> PublishContended:
        return PublishContended(
            f"table {self.identifier}: {problem}, tried for {self._seconds():.0f} s, the last error was {failure!r}. "
            "What was staged is kept: re-execute the run from failure, it finds out and publishes what is not published"
        )

    def _check(self, table: Table, files: Sequence[DataFile]) -> None:
        refuse_other_versions(table)
        self._check_identities(table)
        spec, schema = table.spec(), self._schema(table)
        for file in files:
            if file.spec_id != spec.spec_id:
                told = f"{file.spec_id}, the table's is {spec.spec_id} ({spec_text(spec, schema)})"
                raise self._refusal(f"{file.file_path} was staged under partition spec {told}")
            if self.region.relation(schema, spec, file.partition) is not Relation.INSIDE:
                path = spec.partition_to_path(file.partition, schema)
                raise self._refusal(f"{file.file_path} lies in {path or 'no partition'}, outside the run's partitions")

    def _check_files(self, table: Table, files: Sequence[DataFile]) -> None:
        """At every attempt: a file that was removed meanwhile would leave a table that nobody can read."""
        if missing := missing_files(table.io, files):
            raise self._refusal(
                f"{len(missing)} of {len(files)} staged files are gone, such as {missing[0]}, maybe removed as orphans"
            )

    def _check_identities(self, table: Table) -> None:
        for chunk in self.chunks:
            self._check_identity(table, chunk)

    def _check_identity(self, table: Table, chunk: StagedChunk) -> None:
        now, then = table.metadata, chunk.metadata
        if now.table_uuid != then.table_uuid:
            raise self._refusal(f"it was dropped and made anew since: UUID {then.table_uuid}, now {now.table_uuid}")
        if now.default_spec_id != then.default_spec_id:
            raise self._refusal(
                f"it was partitioned by {spec_text(then.spec(), then.schema())} (spec {then.default_spec_id}) when "
                f"chunk {chunk.receipt.chunk} was staged, now it is by {spec_text(now.spec(), now.schema())} "
                f"(spec {now.default_spec_id})"
            )
        types = {f.field_id: f.field_type for f in now.schema().fields}
        changed = [f for f in then.schema().fields if types.get(f.field_id) != f.field_type]
        if changed:
            raise self._refusal(f"these columns were dropped or changed since: {', '.join(map(str, changed))}")
        staged = {f.field_id for f in then.schema().fields}
        if added := [f for f in now.schema().fields if f.required and f.field_id not in staged]:
            raise self._refusal(f"these required columns were added since: {', '.join(map(str, added))}")
        if now.current_schema_id != then.current_schema_id:
            self._check_nulls(now.schema(), chunk)

    def _check_nulls(self, schema: Schema, chunk: StagedChunk) -> None:
        """Refuse nulls in columns that are required by now: the audit went by the schema that the run began with."""
        nulls = {f.name: sum(nulls_in(chunk, file, f) for file in chunk.files) for f in schema.fields if f.required}
        if held := ", ".join(f"{name}: {count} rows" for name, count in nulls.items() if count):
            raise self._refusal(
                f"columns that are required now hold nulls in what chunk {chunk.receipt.chunk} staged before ({held})"
            )

    def _schema(self, table: Table) -> Schema:
        """The schema whose names the region speaks: as staged, should a column have been renamed since."""
        return self.chunks[0].schema if self.chunks else table.schema()

    def _commit(self, table: Table, files: Sequence[DataFile]) -> ReplaceRegion:
        plan = plan_replacement(table, self.region, self._schema(table), files)
        transaction = LeanTransaction(table)
        producer = ReplaceRegion(transaction, table.io, plan, {**self.summary, TOKEN: self.token.text})
        self.tried.append(producer)
        producer.commit()
        transaction.set_properties(tokens.token_property(self.token, producer.snapshot_id))
        if old := tokens.outdated(table.metadata, self.token):
            transaction.remove_properties(*old)
        # Without producers PyIceberg neither retries (its retry fails on any conflict, or keeps an append to our
        # partitions beside our rows) nor deletes manifests of a commit that may have landed after all.
        transaction._snapshot_producers.clear()
        try:
            transaction.commit_transaction()
        except CommitFailedException:
            self.refused.append(producer)
            raise
        return producer

    def _published(self, table: Table, snapshot_id: int, *, repeated: bool) -> Published:
        snapshot = table.metadata.snapshot_by_id(snapshot_id)
        counts = snapshot.summary if snapshot and snapshot.summary else {}
        added, removed, rows_added, rows_removed = (
            int(counts[name] or 0) if counts else 0
            for name in ("added-data-files", "deleted-data-files", "added-records", "deleted-records")
        )
        return Published(
            snapshot_id=snapshot_id,
            repeated=repeated,
            attempts=len(self.tried),
            files_added=added,
            files_removed=removed,
            rows_added=rows_added,
            rows_removed=rows_removed,
            seconds=self._seconds(),
        )

    def _seconds(self) -> float:
        return time.monotonic() - self.started

    def _refusal(self, problem: str) -> PublishRefused:
        keys = self.region.keys
        span = f"{keys[0]} … {keys[-1]} ({len(keys)} partitions)" if keys else "the whole table"
        return PublishRefused(
            f"table {self.identifier}, {span}: {problem}. Nothing was published; materialize the partitions anew"
        )


def _transient(error: Exception) -> bool:
    from sqlalchemy.exc import OperationalError  # half a second: not needed to load definitions

    if "botocore" in sys.modules and is_transient(error):  # PyIceberg imports it with Glue
        return True
    # SQLite's "database is locked" is an OperationalError, and so is a connection PostgreSQL dropped; a full disk too.
    if getattr(getattr(error, "orig", None), "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return False
    return isinstance(error, (*TRANSIENT, OperationalError)) and getattr(error, "errno", None) not in LASTING

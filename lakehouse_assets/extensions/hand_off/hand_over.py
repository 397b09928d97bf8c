"""Writes a version, verifies its replicas, switches readers, removes old versions.

A *version* is one copy of a snapshot, complete, with a folder and a Glue table of its own; readers get the version that
the view names. A run that resumes a killed one learns from the records and Glue what was done. S3 itself replicates, by
the bucket's rules
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/replication.html).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import ancestors_of

from lakehouse_assets.environment.aws import error_code
from lakehouse_assets.environment.catalog import find_table
from lakehouse_assets.errors import HandOffRefused, HandOffUnfinished, LakehouseError
from lakehouse_assets.extensions.hand_off.glue import (
    SEQUENCE,
    SNAPSHOT,
    VERSION,
    GlueRegistry,
    may_have_landed,
    of_parameters,
)
from lakehouse_assets.extensions.hand_off.hive import (
    count_rows,
    list_sizes,
    plan_tasks,
    read_files,
    source_scan,
    type_problems,
    write_files,
)
from lakehouse_assets.extensions.hand_off.records import (
    Clock,
    HandedFile,
    HandOffPlan,
    Records,
    Version,
    Written,
    backoff,
)
from lakehouse_assets.maintenance.collect.needed import HELD, Chain, Periods, state_of
from lakehouse_assets.storage.objects import delete_all, keys_below, milliseconds
from lakehouse_assets.storage.place import Place, is_elsewhere, place_of

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class VerifiedReplica:
    """A complete replica."""

    location: str
    waited: timedelta
    """How long the run waited for it."""
    looks: int
    """How often it was looked at."""


def wait_for_replicas(
    client: Any, replicas: Sequence[str], written: Written, within: timedelta, clock: Clock
) -> list[VerifiedReplica]:
    """Waits until each replica has each file with the same size and footer, and so the same rows.

    client: of S3; botocore finds each bucket's region. within: for all replicas together. Raises HandOffUnfinished for
    a replica still incomplete, HandOffRefused for an unreadable one.
    """
    until = clock.now() + within
    return [_verify(client, one, written, until, clock) for one in replicas]


def _verify(client: Any, replica: str, written: Written, until: datetime, clock: Clock) -> VerifiedReplica:
    folder = place_of(replica).child(written.name)
    began = clock.now()
    verified: set[str] = set()
    for looks, wait in enumerate(backoff(), start=1):
        lacks = _look(client, folder, written.files, verified)
        if not lacks:
            return VerifiedReplica(folder.location, clock.now() - began, looks)
        left = (until - clock.now()).total_seconds()
        if left <= 0:
            raise HandOffUnfinished(
                f"replica {folder.location}: {lacks}, after {looks} looks in {clock.now() - began}. Nothing was "
                "switched; readers keep the previous version. Check the bucket's replication metrics, then re-execute "
                "the run from failure: what was written is kept"
            )
        logger.info("replica %s: %s; next look in %.0f s", folder.location, lacks, min(wait, left))
        clock.sleep(min(wait, left))
    raise AssertionError("the waits have no end")


def _look(client: Any, folder: Place, files: Mapping[str, HandedFile], verified: set[str]) -> str:
    """Returns what a replica lacks, or "". Adds complete files to ``verified``."""
    try:
        sizes = list_sizes(client, folder)
        # Of the files that are not verified yet, only those of the right size have footers worth reading.
        there = {path: size for path, size in sizes.items() if path in files and path not in verified}
        whole = {path: size for path, size in there.items() if size == files[path].size}
        found = read_files(client, folder, whole)
    except ValueError as error:
        return f"a file is not Parquet: {error}"
    except Exception as error:
        if may_have_landed(error):
            return f"it could not be read ({error!r})"
        raise HandOffRefused(
            f"replica {folder.location} can't be read: {error}. Nothing was switched; readers keep the previous "
            "version. Allow s3:ListBucket and s3:GetObject there, then re-execute the run from failure"
        ) from error
    verified |= {path for path, file in found.items() if file == files[path]}
    pending = sorted(files.keys() - verified)
    # Readers of a folder get the rows of every file in it.
    if more := sorted(sizes.keys() - files.keys()):
        return f"it has files that don't belong to this version, such as {more[0]}"
    return f"{len(pending)} of {len(files)} files have not arrived, such as {pending[0]}" if pending else ""


@dataclass(frozen=True)
class HandOffOrder:
    """What to hand off: the declaration's fields, as in HandOff, and the run's."""

    key: str
    """The asset's key."""
    table: str
    """The source's identifier."""
    location: str
    glue: str
    partitioned_by: Sequence[str]
    keep: timedelta
    replicas: Sequence[str]
    replicated_within: timedelta
    description: str
    token: str
    """The first run in a chain of re-executions from failure."""
    apart_from: Sequence[str]
    """The warehouse and staging prefix, which no version may overlap."""


@dataclass(frozen=True)
class Services:
    """Clients and records."""

    catalog: Catalog
    io: FileIO
    s3: Any
    glue: Any
    """Retries calls, as in GlueRegistry."""
    glue_once: Any
    """Never retries, as in GlueRegistry."""
    records: Records
    chains_of: Callable[[Collection[str]], Mapping[str, Chain]]
    """Finds the runs of tokens: a version stays while its run may finish."""
    clock: Clock = field(default_factory=Clock)


@dataclass(frozen=True)
class HandOffOutcome:
    """The result of an order."""

    plan: HandOffPlan
    version: Version
    written: Written
    current: str
    """What readers get: another version if a newer one is there."""
    arrived: Sequence[VerifiedReplica]
    removed: Sequence[Version]
    not_removed: str = ""
    """Why older versions could not be removed; empty if they were."""

    @property
    def landed(self) -> bool:
        """Whether readers get what the run wrote."""
        return self.current == self.version.name


@dataclass(frozen=True)
class HandOver:
    """One run of a hand-off; its methods are its steps, in order."""

    order: HandOffOrder
    services: Services

    def run(self) -> HandOffOutcome:
        """Hands off the order; continues a killed or failed run.

        Readers always get one complete version. A refusal removes what was written, except replicas and versions that
        readers may have. Raises HandOffRefused and HandOffUnfinished, and the errors of catalogs and the staging
        prefix.
        """
        with _in_our_words(f"{self.order.glue}: its plan"):
            plan = self.decide()
        with _in_our_words(f"{plan.glue}: its files"):
            version, written = self.ensure_written(plan)
        arrived = self.verify_replicas(plan, written)
        try:
            with _in_our_words(f"{plan.glue}: its registration in Glue"):
                self.register(plan, version, written)
                self._note_offered(plan, version, written)
                current = self.switch(plan, version)
        except HandOffRefused as refusal:
            if written.offered:  # by an earlier attempt, so readers may have it
                raise
            raise self._undone(plan, version, refusal) from refusal
        if current != version.name:
            logger.info("%s: readers already have a newer version, %s", plan.glue, current)
        removed, problem = self.clean_up(plan)
        return HandOffOutcome(plan, version, written, current, arrived, removed, problem)

    @cached_property
    def registry(self) -> GlueRegistry:
        """The view and the versions' tables in Glue."""
        return GlueRegistry(self.services.glue, self.services.glue_once, self.order.key, self.services.clock)

    # plan

    def decide(self) -> HandOffPlan:
        """Returns the run's plan; if new, records one of the source's current snapshot.

        Raises HandOffRefused for what can't be handed off, before anything is written.
        """
        order = self.order
        if (found := self.services.records.plan(order.token)) is not None:
            return found
        table = self._load(order.table)
        snapshot = table.current_snapshot()
        if snapshot is None:
            raise HandOffRefused(f"table {order.table} has no snapshot to hand off. Materialize it first")
        self._refuse_overlap([*order.apart_from, table.location()])
        schema = table.schema()  # not the snapshot's: readers of the table see later changes
        if problems := [*type_problems(schema, order.partitioned_by)]:
            raise HandOffRefused(f"table {order.table} can't be handed off: {'. '.join(problems)}. Nothing was written")
        plan = HandOffPlan(
            token=order.token,
            made_at=self.services.clock.now(),
            table=order.table,
            table_uuid=table.metadata.table_uuid,
            snapshot_id=snapshot.snapshot_id,
            sequence_number=snapshot.sequence_number or 0,
            columns=schema.model_dump_json(),
            partitioned_by=tuple(order.partitioned_by),
            location=order.location,
            glue=order.glue,
            replicas=tuple(order.replicas),
        )
        # Both raise what would otherwise fail only after all rows are written.
        self.registry.check_database(plan)
        self.registry.find_view(plan)
        self.services.records.note_plan(plan)
        return plan

    def _load(self, identifier: str) -> IcebergTable:
        if (table := find_table(self.services.catalog, identifier)) is None:
            raise HandOffRefused(f"table {identifier} is not in the catalog. Materialize it first")
        return table

    def _refuse_overlap(self, others: Sequence[str]) -> None:
        own = place_of(self.order.location)
        for other in others:
            if not is_elsewhere(other) and _overlap(own, place_of(other)):
                raise HandOffRefused(
                    f"location {own.location} overlaps {other}, which contains Iceberg tables or records: files there "
                    "are collected. Choose a separate prefix. Nothing was written"
                )

    # write

    def ensure_written(self, plan: HandOffPlan) -> tuple[Version, Written]:
        """Returns the version that an earlier attempt has written and checked, else writes a new one."""
        records = self.services.records
        if (written := records.written(plan.token)) and (version := records.version(written.name)):
            return version, written
        version = self.begin_version(plan)
        try:
            written = self.write(plan, version)
        except HandOffRefused as refusal:
            raise self._undone(plan, version, refusal) from refusal
        records.note_written(plan.token, written)
        return version, written

    def begin_version(self, plan: HandOffPlan) -> Version:
        """Records a new version, whose folder no attempt has written into."""
        now = self.services.clock.now()
        name = f"{now:%Y%m%dt%H%M%Sz}_{uuid4().hex[:8]}"
        folder = place_of(plan.location).child(name)
        version = Version(name, plan.token, now, folder.location, plan.database, f"{plan.view}_{name}")
        self.services.records.note_version(version)
        return version

    def write(self, plan: HandOffPlan, version: Version) -> Written:
        """Writes all rows of the planned snapshot, and checks them. Raises HandOffRefused."""
        scan = source_scan(self._load(plan.table), plan)
        tasks = plan_tasks(scan)
        folder = place_of(version.location)
        write_files(scan, tasks, plan, folder, self.services.io)
        return self.check_written(version, folder, count_rows(scan))

    def check_written(self, version: Version, folder: Place, rows: int) -> Written:
        """Returns what storage has of a version. rows: the snapshot's. Raises HandOffRefused for another number."""
        sizes = list_sizes(self.services.s3, folder)
        written = Written(version.name, read_files(self.services.s3, folder, sizes))
        if written.rows != rows:
            raise HandOffRefused(
                f"{version.location} has {written.rows:,} rows in {len(sizes)} files, but the snapshot has {rows:,}. "
                "Nothing was switched, and what was written is removed. Materialize again"
            )
        return written

    def verify_replicas(self, plan: HandOffPlan, written: Written) -> list[VerifiedReplica]:
        """Waits until all replicas are complete. Raises HandOffUnfinished or HandOffRefused; written files stay."""
        within, clock = self.order.replicated_within, self.services.clock
        return wait_for_replicas(self.services.s3, plan.replicas, written, within, clock)

    # switch

    def register(self, plan: HandOffPlan, version: Version, written: Written) -> None:
        """Creates the version's table and partitions, before readers get it."""
        self.registry.register(plan, version, written)

    def switch(self, plan: HandOffPlan, version: Version) -> str:
        """Switches the view unless its version is newer. Returns the version that readers get."""

        def view_is_newer(current: Mapping[str, str]) -> bool:
            # A smaller age is newer.
            line = self._line(plan)
            own = _age(plan.snapshot_id, plan.sequence_number, line)
            return _age(int(current[SNAPSHOT]), int(current[SEQUENCE]), line) < own

        return self.registry.switch(plan, version, self.order.description, view_is_newer)

    def _note_offered(self, plan: HandOffPlan, version: Version, written: Written) -> None:
        """Records that readers may get the version; this restarts the time of one they had before."""
        self.services.records.note_written(plan.token, replace(written, offered=True))
        if version.left_at is not None:
            self.services.records.note_version(replace(version, left_at=None))

    def _line(self, plan: HandOffPlan) -> list[int]:
        """Returns the ancestors of the source's head as of now, newest first."""
        table = self._load(plan.table)
        return [one.snapshot_id for one in ancestors_of(table.current_snapshot(), table.metadata)]

    # tidy

    def clean_up(self, plan: HandOffPlan) -> tuple[list[Version], str]:
        """Removes the versions that a hand-off saw replaced ``keep`` ago or earlier.

        Returns the removed versions, and why others could not be removed. This does not fail the run, as readers have
        the new version.
        """
        removed: list[Version] = []
        try:
            removed.extend(self._removed(plan))
        except Exception as error:  # whatever AWS raises
            return removed, f"older versions are left to the next hand-off: {error!r}"
        return removed, ""

    def _removed(self, plan: HandOffPlan) -> Iterator[Version]:
        """Removes expired versions, yields each when it is gone, and records those that readers have left.

        Touches only recorded versions, and none that readers get or a run may finish.
        """
        records, now = self.services.records, self.services.clock.now()
        versions = records.versions()
        known = self.services.chains_of({one.token for one in versions})
        view = self.registry.find_view(plan)  # after the list: a version begun from now on is not in it
        current = of_parameters(view or {}).get(VERSION)
        for version in versions:
            if version.name == current:
                if version.left_at is not None:
                    records.note_version(replace(version, left_at=None))
            elif not _run_may_finish(version, known.get(version.token), now):
                if version.left_at is None:
                    records.note_version(replace(version, left_at=now))
                elif now - version.left_at >= self.order.keep:
                    self._remove(version)
                    yield version

    def _remove(self, version: Version) -> None:
        """Removes a version's Glue table, files and records; missing ones are no error.

        In this order, a table never lacks its files, and what a killed run leaves is still recorded.
        """
        self.registry.drop(version)
        folder = place_of(version.location)
        assert folder.key.endswith(f"/{version.name}")  # made by begin_version()
        delete_all(self.services.s3, folder.bucket, keys_below(self.services.s3, folder.child("")))
        self.services.records.forget(version)

    def _undone(self, plan: HandOffPlan, version: Version, refusal: HandOffRefused) -> HandOffRefused:
        """Removes a refused version. Returns the refusal, with what is left."""
        try:
            self.services.records.forget_written(plan.token)
            self._remove(version)
        except Exception as error:  # whatever AWS raises
            return HandOffRefused(
                f"{refusal} What was written to {version.location} will be removed by the next hand-off: {error!r}"
            )
        return refusal


@contextmanager
def _in_our_words(what: str) -> Iterator[None]:
    """Turns AWS's errors into HandOffRefused, or HandOffUnfinished if they may pass.

    what: the step, to begin a sentence.
    """
    try:
        yield
    except LakehouseError:
        raise
    except Exception as error:
        if may_have_landed(error):
            raise HandOffUnfinished(
                f"{what} could not be finished: {error}. Readers keep the previous version. Re-execute the run from "
                "failure: it continues from here"
            ) from error
        if not error_code(error):  # not an error of AWS
            raise
        raise HandOffRefused(
            f"{what} was refused: {error}. Readers keep the previous version. See the permissions in docs/hand-off.md, "
            "then materialize again"
        ) from error


def _run_may_finish(version: Version, chain: Chain | None, now: datetime) -> bool:
    """Whether the run that began a version, or a re-execution of this run, may still hand it off."""
    return state_of(chain, milliseconds(version.began_at), milliseconds(now), Periods()) in HELD


def _overlap(one: Place, other: Place) -> bool:
    return one.is_within(other) or other.is_within(one)


def _age(snapshot_id: int, sequence_number: int, line: Sequence[int]) -> tuple[int, int]:
    """Returns a smaller key for a newer snapshot. line: the head's ancestors, newest first.

    One outside the line is older than all others: it was rolled back, has expired, or is of a table that was created
    again.
    """
    return (line.index(snapshot_id) if snapshot_id in line else len(line), -sequence_number)

"""Publishes a release: pins its tables, checks them, tags their snapshots, and moves the pointer in one commit."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.deletes import live_rows
from lakehouse_assets.commit.expire import Expiry, expire
from lakehouse_assets.commit.publish import commit_persistently
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import find_table, why_gone
from lakehouse_assets.errors import LakehouseError, PublishContended, ReleaseRefused
from lakehouse_assets.extensions.releases.consistency import Log, PinnedTable
from lakehouse_assets.extensions.releases.pointer import (
    MOST,
    KeptRelease,
    Member,
    Pointer,
    load_pointer,
    open_pointer,
    pointer_identifier,
)
from lakehouse_assets.inputs.pins import set_tags
from lakehouse_assets.storage.objects import at_once

logger = logging.getLogger(__name__)

LOOKS, LONGEST_WAIT_S = 5, 4.0
"""How often it looks at Dagster's log, and the most seconds in between: runs report commits within seconds."""
HISTORY = 20
"""How many of the pointer's own snapshots are kept: each reader loads their metadata."""
TAG = "lakehouse.release.{name}."
"""A run's id follows, so that concurrent releases don't share tags."""


@dataclass(frozen=True)
class Order:
    """What to release, and how."""

    name: str
    tables: Sequence[Table]
    run_id: str
    keep: int
    keep_for: timedelta
    again: int | None = None
    """A kept release to release again, instead of the current snapshots."""
    anyway: bool = False
    """Whether to release tables that don't fit together."""


@dataclass(frozen=True)
class ReleaseOutcome:
    """The result of an order."""

    release: KeptRelease
    before: KeptRelease | None
    is_new: bool
    """False if nothing had changed since ``release``, or an earlier try of the run made it."""
    misfits: tuple[str, ...] = ()
    """Why the tables don't fit together, if they were released anyway."""
    named: frozenset[str] = frozenset()
    """The tables of the releases kept before: tidy() removes tags from them too."""


class MemberMoved(LakehouseError):
    """A member, or its pinned snapshot, is gone: the release needs another plan."""


def publish_release(catalog: Catalog, order: Order, log: Log) -> ReleaseOutcome:
    """Makes the ordered release, and moves the pointer to it.

    Each attempt plans from the current pointer and tables, so a delayed one never replaces a newer release. If the run
    is killed, readers get the previous release, or this one.

    Raises ReleaseRefused if tables can't be released or don't fit together, PublishContended if the attempts run out or
    the catalog stays unreachable.
    """
    identifier = pointer_identifier(order.name)

    def contended(problem: str, failure: Exception) -> PublishContended:
        return PublishContended(
            f"table {identifier}: the release of run {order.run_id}: {problem}; the last error was {failure!r}. "
            "Readers keep the previous release. Materialize it again"
        )

    def landed() -> ReleaseOutcome | None:
        pointer = load_pointer(catalog, order.name)
        return _of_run(pointer, order) if pointer else None

    return commit_persistently(identifier, "release", lambda: _attempt(catalog, order, log), landed, contended)


def _attempt(catalog: Catalog, order: Order, log: Log) -> ReleaseOutcome:
    # The pointer is loaded before the tables: if another release pins later ones, this one's move conflicts with it.
    pointer = open_pointer(catalog, order.name)
    if (done := _of_run(pointer, order)) is not None:
        return done
    once_more = order.again is not None
    members, misfits = (_once_more(pointer, order), ()) if once_more else _fitting(catalog, order, log, pointer)
    number = pointer.newest.number + 1 if pointer.newest else 1
    release = KeptRelease(number, _now(pointer), order.run_id, tuple(members))
    if pointer.newest and pointer.newest.version == release.version:
        return ReleaseOutcome(pointer.newest, pointer.before(pointer.newest), is_new=False, misfits=misfits)
    try:
        tag_members(catalog, order, members)
        verify_members(catalog, members)
    except MemberMoved as moved:
        # Another plan would name the same snapshots.
        if once_more:
            raise ReleaseRefused(f"{moved}. Nothing was released") from moved
        # The release is planned again, as after any conflict.
        raise CommitFailedException(str(moved)) from moved
    pointer.move(still_kept((*pointer.releases, release), order.keep, order.keep_for))
    named = frozenset(member.table for one in pointer.releases for member in one.members)
    return ReleaseOutcome(release, pointer.newest, is_new=True, misfits=misfits, named=named)


def _of_run(pointer: Pointer, order: Order) -> ReleaseOutcome | None:
    """Returns the outcome of an earlier try that has moved the pointer."""
    done = pointer.of_run(order.run_id)
    return ReleaseOutcome(done, pointer.before(done), is_new=False) if done else None


def _now(pointer: Pointer) -> datetime:
    """Returns a time after the last release's, even if clocks differ."""
    now = datetime.now(UTC)
    return max(now, pointer.newest.released_at + timedelta(microseconds=1)) if pointer.newest else now


def still_kept(releases: Sequence[KeptRelease], keep: int, keep_for: timedelta) -> tuple[KeptRelease, ...]:
    """Returns the last ``keep`` releases, and those younger than ``keep_for``. releases: oldest first."""
    # The last release is the one being made.
    since = releases[-1].released_at - keep_for
    kept = [one for n, one in enumerate(reversed(releases)) if n < keep or one.released_at >= since]
    return tuple(reversed(kept[:MOST]))


# pin


def pin_members(catalog: Catalog, order: Order, newest: KeptRelease | None) -> list[PinnedTable]:
    """Pins members at main's head. Raises ReleaseRefused for one without a snapshot."""
    before = {member.table: member.snapshot_id for member in newest.members} if newest else {}

    def pinned(declared: Table) -> PinnedTable:
        identifier = declared.identifier
        table = find_table(catalog, identifier)
        snapshot = table.current_snapshot() if table else None
        if table is None or snapshot is None:
            found = "has no snapshot" if table else "is not in the catalog"
            raise ReleaseRefused(
                f"table {identifier}: a release of {order.name} needs a snapshot of each of its tables, but this one "
                f"{found}. Materialize it first. Nothing was released"
            )
        return PinnedTable(declared.key, identifier, table.metadata, snapshot, table.io, before.get(identifier))

    return at_once(pinned, order.tables)


def _fitting(catalog: Catalog, order: Order, log: Log, pointer: Pointer) -> tuple[list[Member], tuple[str, ...]]:
    """Pins the members until they fit together; returns why they don't, if released anyway."""

    def reload(identifier: str) -> TableMetadata:
        return catalog.load_table(identifier).metadata

    for look in range(1, LOOKS + 1):
        pinned = pin_members(catalog, order, pointer.newest)
        made = log.made(table.key for table in pinned)
        unsettled = [*log.unsettled(pinned, made, reload)]
        if not unsettled or order.anyway or look == LOOKS:
            break
        logger.info("%s: planned again, because %s", order.name, "; ".join(unsettled))
        time.sleep(random.uniform(0, min(LONGEST_WAIT_S, 2 ** (look - 1))))
    misfits = (*unsettled, *log.stale_members([table.key for table in pinned], made))
    if misfits and not order.anyway:
        before = "; readers keep the previous release" if pointer.newest else ""
        raise ReleaseRefused(
            f"{order.name}: its tables don't fit together. {' '.join(f'{one}.' for one in misfits)} Nothing was "
            f"released{before}. To release them anyway, materialize with the run tag lakehouse/release_anyway: true"
        )
    return at_once(_member, pinned), misfits


def _member(table: PinnedTable) -> Member:
    snapshot = table.snapshot
    rows = live_rows(table.metadata, snapshot, table.io)
    committed_at = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
    uuid = str(table.metadata.table_uuid)
    return Member(table.identifier, uuid, snapshot.snapshot_id, committed_at, rows.exactly if rows else None)


def _once_more(pointer: Pointer, order: Order) -> Sequence[Member]:
    """Returns the members of the kept release that is to be released again. Raises ReleaseRefused if it is not kept."""
    found = next((one for one in pointer.releases if one.number == order.again), None)
    if found is None:
        kept = ", ".join(str(one.number) for one in pointer.releases) or "none"
        raise ReleaseRefused(
            f"table {pointer_identifier(order.name)}: release {order.again} is not kept; the kept releases are {kept}. "
            "Name one of them in the run tag lakehouse/release_again. Nothing was released"
        )
    return found.members


# tag


def tag_of(name: str, run_id: str) -> str:
    """Returns a release's tag."""
    return TAG.format(name=name) + run_id


def tag_members(catalog: Catalog, order: Order, members: Sequence[Member]) -> None:
    """Tags each snapshot. Raises MemberMoved if one is gone, PublishContended, and the catalog's errors."""
    tag = tag_of(order.name, order.run_id)

    def of_member(member: Member) -> None:
        def wanted(metadata: TableMetadata) -> dict[str, int | None]:
            _check(member, metadata)
            return {tag: member.snapshot_id}

        try:
            set_tags(catalog, member.table, wanted)
        except NoSuchTableError:
            # Raises MemberMoved.
            _check(member, None)

    at_once(of_member, members)


def verify_members(catalog: Catalog, members: Sequence[Member]) -> None:
    """Looks at each member again, now that its tag protects it. Raises MemberMoved if it was gone before."""

    def verify(member: Member) -> None:
        table = find_table(catalog, member.table)
        _check(member, table.metadata if table else None)

    at_once(verify, members)


def _check(member: Member, found: TableMetadata | None) -> None:
    if why := why_gone(found, member.uuid, member.snapshot_id):
        raise MemberMoved(f"table {member.table} {why}")


# tidy


def tidy(
    catalog: Catalog,
    order: Order,
    named: Collection[str],
    unfinished: Callable[[Collection[str]], Collection[str]],
) -> None:
    """Sets the tags of kept releases; removes others except those of unfinished runs, which may still release.

    Expires the pointer's old snapshots. named: as in ReleaseOutcome. Raises LakehouseError and the catalog's errors,
    though the release is made.
    """
    prefix = TAG.format(name=order.name)
    loaded = at_once(partial(find_table, catalog), sorted({*named, *(table.identifier for table in order.tables)}))
    tables = {".".join(one.name()): one for one in loaded if one is not None}
    runs = {tag.removeprefix(prefix) for one in tables.values() for tag in one.metadata.refs if tag.startswith(prefix)}
    alive = unfinished(runs)
    # Loaded after that query: a run that it called finished has moved this pointer, or never will.
    pointer = open_pointer(catalog, order.name)
    releases = {release.run_id: release for release in pointer.releases}
    # None removes a tag.
    over: dict[str, int | None] = {prefix + run_id: None for run_id in runs - releases.keys() - {*alive}}
    of_table = {name: dict(over) for name in tables}
    for release in pointer.releases:
        for member in release.members:
            of_table.setdefault(member.table, {})[prefix + release.run_id] = member.snapshot_id

    def put_right(identifier: str) -> None:
        def wanted(metadata: TableMetadata) -> dict[str, int | None]:
            # A snapshot that is gone can't be tagged.
            there = {snapshot.snapshot_id for snapshot in metadata.snapshots}
            return {tag: at for tag, at in of_table[identifier].items() if at is None or at in there}

        set_tags(catalog, identifier, wanted)

    at_once(put_right, list(tables))
    expire(catalog, pointer_identifier(order.name), _old_history)


def _old_history(metadata: TableMetadata) -> Expiry:
    """Expires all but the last HISTORY snapshots; none while few are older, to spare most releases a second commit."""
    old = sorted(metadata.snapshots, key=lambda one: one.sequence_number or 0)[:-HISTORY]
    return Expiry.of(metadata, [one.snapshot_id for one in old] if len(old) > HISTORY else ())

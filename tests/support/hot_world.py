"""A world between whose readers' steps anything may happen: transactions that end in any order, moves, purges, upkeep.
What readers see is judged here; test_hot_races.py and bench/hot.py let them read."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import psycopg2
from psycopg2.extensions import connection as Connection
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table as IcebergTable

from lakehouse_assets.commit.expire import ExpiryPolicy, expire, plan_expiry
from lakehouse_assets.commit.snapshot import LeanTransaction
from lakehouse_assets.declare.row_source import Offsets, SourceState
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import find_table
from lakehouse_assets.errors import SourceLost
from lakehouse_assets.extensions.sources import hot_and_cold as reader
from lakehouse_assets.extensions.sources.postgres import PostgresTable
from lakehouse_assets.extensions.sources.purge import purgeable
from tests.support.hot_tables import UPSERT, state_table
from tests.support.lake_model import FAR
from tests.support.standin_mover import made, moving

WRITERS, ACCOUNTS, EACH = 3, 4, 10


@dataclass
class Writer:
    """Transfers between its accounts, whose sum is always the same. An account that has nothing is deleted."""

    connection: Connection
    has: dict[int, int]
    is_open: bool = False

    def act(self, chance: random.Random) -> None:
        """Begins a transaction, or ends the one that is open."""
        if self.is_open:
            self.connection.commit()
        else:
            one, other = chance.sample(sorted(self.has), 2)
            amount = chance.randint(0, self.has[one])
            self.has[one] -= amount
            self.has[other] += amount
            with self.connection.cursor() as cursor:
                cursor.executemany(UPSERT, [(n, str(self.has[n]), not self.has[n]) for n in (one, other)])
        self.is_open = not self.is_open


@dataclass
class World:
    """All that happens between the steps of a reader, by chance, and the same again for the same seed."""

    catalog: Catalog
    writers: list[Writer]
    chance: random.Random
    table: Table = field(default_factory=lambda: state_table(source=PostgresTable("state", grace=timedelta(0))))
    mover: Iterator[None] = field(default_factory=lambda: iter(()))
    is_acting: bool = False

    def gap(self) -> None:
        """Does nothing, or a few things; what is done here has no gaps of its own."""
        if self.is_acting:
            return
        self.is_acting = True
        for _ in range(self.chance.choice([0, 0, 2, 6, 12])):
            seldom = self.chance.choice([self.purge, self.purge, self.compact, self.expire])
            self.chance.choice([self.write, self.write, self.step, self.step, seldom])()
        self.is_acting = False

    def write(self) -> None:
        self.chance.choice(self.writers).act(self.chance)

    def step(self) -> None:
        """The next step of a move; the first of another behind the last, or behind one that another commit refused."""
        with suppress(CommitFailedException):
            if next(self.mover, self) is not self:
                return
        self.mover = moving(self.catalog, self.table)

    def purge(self) -> None:
        if found := purgeable(self.catalog, self.table, time.time() + 60):
            found.source.purge(found.upto)

    def compact(self) -> None:
        """Writes the table's rows anew, as another client does: its commit says nothing of positions."""
        table = self.catalog.load_table(self.table.identifier)
        if (rows := table.scan().to_arrow()).num_rows:
            with LeanTransaction(table) as transaction:
                transaction.overwrite(rows)

    def expire(self) -> None:
        """As the project does, and at once."""
        policy = ExpiryPolicy(minimum=1)
        expire(self.catalog, self.table.identifier, lambda found: plan_expiry("state", found, policy, FAR).expiry)

    def wrong(self, rows: list[tuple[int, str]]) -> str | None:
        """What is wrong with the rows of one read; None if nothing."""
        if len(dict(rows)) < len(rows):
            return "a row twice"
        sums = Counter[int]()
        for n, text in rows:
            sums[n // ACCOUNTS] += int(text)
        return None if sums == dict.fromkeys(range(WRITERS), ACCOUNTS * EACH) else "rows missing, or of several times"

    def tally(self, reads: int, *, to_the_end: bool = False) -> Counter[str]:
        """How often each fault was found in some reads, or until one is found."""
        found: Counter[str] = Counter()
        for _ in range(reads):
            try:
                found[self.wrong(self.read()) or "right"] += 1
            except SourceLost:  # after ten tries: this purger has no grace
                found["gave up"] += 1
            if faults(found) and not to_the_end:
                break
            self.gap()
        return found

    def read(self) -> list[tuple[int, str]]:
        """The rows of the reader that users have."""
        return rows_of(reader.hot_and_cold(self.table, catalog=self.catalog))


def rows_of(found: reader.HotAndCold) -> list[tuple[int, str]]:
    return found.polars().collect().rows()


def faults(found: Counter[str]) -> int:
    """How many reads were wrong."""
    return found.total() - found["right"] - found["gave up"]


@contextmanager
def world_of(catalog: Catalog, seed: int) -> Iterator[World]:
    """A world on an empty source, with gaps behind each step of a reader."""
    accounts = [range(writer * ACCOUNTS, (writer + 1) * ACCOUNTS) for writer in range(WRITERS)]
    connections = [psycopg2.connect("") for _ in accounts]
    writers = [Writer(one, dict.fromkeys(own, EACH)) for one, own in zip(connections, accounts, strict=True)]
    for writer in writers:
        with writer.connection.cursor() as cursor:
            cursor.executemany(UPSERT, [(n, str(EACH), False) for n in writer.has])
        writer.connection.commit()
    world = World(catalog, writers, random.Random(seed))
    made(catalog, world.table)
    try:
        with with_gaps(world.gap):
            yield world
    finally:
        for connection in connections:
            connection.close()


@contextmanager
def with_gaps(gap: Callable[[], None]) -> Iterator[None]:
    """Calls it behind each step of a reader, and of whoever takes the same steps."""

    def followed(step: Callable[..., object], name: str) -> Callable[..., object]:
        def with_gap(*arguments: object) -> object:
            found = step(*arguments)
            if name == "read":
                found = iter([*found])  # type: ignore[call-overload]  so that the gap is behind the reading
            gap()
            return found

        return with_gap

    steps = ((reader, "find_table"), (PostgresTable, "state"), (PostgresTable, "read"), (PostgresTable, "prove"))
    with ExitStack() as patches:
        for owner, name in steps:
            patches.enter_context(patch.object(owner, name, followed(getattr(owner, name), name)))
        yield


# Wrong orders of the steps, each as a context in which readers, or movers, take them so.


def without_the_proof() -> Any:
    return patch.object(SourceState, "problem", lambda *_: None)


def hot_first() -> Any:
    read = reader.hot_and_cold

    def hot_and_cold(table: Table, *, catalog: Catalog) -> reader.HotAndCold:
        first = read(table, catalog=catalog)
        later = find_table(catalog, table.identifier)
        return replace(first, cold=later, snapshot_id=reader._snapshot(later))

    return patch.object(reader, "hot_and_cold", hot_and_cold)


def position_of_a_second_load() -> Any:
    position = reader.moved_to

    def of_second_load(table: Table, cold: IcebergTable) -> Offsets | None:
        return position(table, find_table(cold.catalog, table.identifier))

    return patch.object(reader, "moved_to", of_second_load)


@contextmanager
def moving_up_to_the_newest() -> Iterator[None]:
    """Serial order is not the order of commits: a transaction that is open may still write below.

    A read with an end refuses that, too: this takes both defences away.
    """
    newest = patch.object(PostgresTable, "bound", lambda _, state, begin: Offsets(state.identity, state.newest))
    with newest, patch.object(PostgresTable, "_refuse_set_back", lambda *_: None):
        yield


WRONG: dict[str, Callable[[], Any]] = {
    "without the proof": without_the_proof,
    "hot first, cold later": hot_first,
    "the position of a second load": position_of_a_second_load,
    "moved up to the newest transaction": moving_up_to_the_newest,
}

"""Readers of hot and cold, between whose steps anything may happen: transactions that end in any order, moves, purges.
No row twice, none missing, all as they were at one time; each wrong order of the steps is shown to fail here."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta

import psycopg2
import pytest
from psycopg2.extensions import connection as Connection
from pyiceberg.catalog import Catalog

from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.errors import SourceLost
from lakehouse_assets.hot import hot_and_cold as reader
from lakehouse_assets.hot.purge import purgeable
from lakehouse_assets.sources.offsets import Offsets
from lakehouse_assets.sources.postgres import PostgresTable
from tests.conftest import Lake
from tests.support.hot_tables import UPSERT, state_table
from tests.support.standin_mover import made, moving

pytestmark = pytest.mark.server
WRITERS, ACCOUNTS, EACH = 3, 4, 10
READS = 20


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
            act = self.chance.choice([self.write, self.write, self.step, self.step, self.purge])
            act()
        self.is_acting = False

    def write(self) -> None:
        self.chance.choice(self.writers).act(self.chance)

    def step(self) -> None:
        """The next step of a move; the first of another behind the last."""
        if next(self.mover, self) is self:
            self.mover = moving(self.catalog, self.table)

    def purge(self) -> None:
        if found := purgeable(self.catalog, self.table, time.time() + 60):
            found.source.purge(found.upto)

    def wrong(self, rows: list[tuple[int, str]]) -> str | None:
        """What is wrong with the rows of one read; None if nothing."""
        if len(dict(rows)) < len(rows):
            return "a row twice"
        sums = Counter[int]()
        for n, text in rows:
            sums[n // ACCOUNTS] += int(text)
        return None if sums == dict.fromkeys(range(WRITERS), ACCOUNTS * EACH) else "rows missing, or of several times"

    def tally(self, read: Callable[[], list[tuple[int, str]]], *, to_the_end: bool = False) -> Counter[str]:
        """How often each fault was found in some reads, or until one is found."""
        found: Counter[str] = Counter()
        for _ in range(READS):
            try:
                found[self.wrong(read()) or "right"] += 1
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


@pytest.fixture
def world(lake: Lake, database: Connection) -> Iterator[World]:
    catalog = load_lake(lake.settings)
    accounts = [range(writer * ACCOUNTS, (writer + 1) * ACCOUNTS) for writer in range(WRITERS)]
    with database.cursor() as cursor:
        cursor.executemany(UPSERT, [(n, str(EACH), False) for of_writer in accounts for n in of_writer])
    writers = [Writer(psycopg2.connect(""), dict.fromkeys(of_writer, EACH)) for of_writer in accounts]
    world = World(catalog, writers, random.Random(1))
    made(catalog, world.table)
    yield world
    for writer in writers:
        writer.connection.close()


@pytest.fixture
def gaps(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaps behind each step of a reader."""
    for owner, name in ((reader, "_load"), (PostgresTable, "state"), (PostgresTable, "read"), (PostgresTable, "prove")):
        step = getattr(owner, name)

        def with_gap(*arguments: object, step: Callable[..., object] = step, name: str = name) -> object:
            found = step(*arguments)
            if name == "read":
                found = iter([*found])  # type: ignore[misc]  so that the gap is behind the reading
            world.gap()
            return found

        monkeypatch.setattr(owner, name, with_gap)


def faults(found: Counter[str]) -> int:
    return found.total() - found["right"] - found["gave up"]


def test_no_read_is_wrong(world: World, gaps: None) -> None:
    found = world.tally(world.read, to_the_end=True)
    assert faults(found) == 0, found
    assert found["right"] > READS / 2


def test_without_the_proof_reads_are_wrong(world: World, gaps: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse_assets.sources.row_source.SourceState.problem", lambda *_: None)
    assert faults(world.tally(world.read)) > 0


def test_hot_first_reads_are_wrong(world: World, gaps: None) -> None:
    def read() -> list[tuple[int, str]]:
        first = reader.hot_and_cold(world.table, catalog=world.catalog)
        world.gap()
        later = world.catalog.load_table(world.table.identifier)
        return rows_of(replace(first, cold=later, snapshot_id=later.metadata.current_snapshot_id))

    assert faults(world.tally(read)) > 0


def test_a_position_of_a_second_load_is_wrong(world: World, gaps: None, monkeypatch: pytest.MonkeyPatch) -> None:
    position = reader._position

    def of_second_load(table: Table, _: object) -> Offsets | None:
        return position(table, reader._load(world.catalog, table.identifier))

    monkeypatch.setattr(reader, "_position", of_second_load)
    assert faults(world.tally(world.read)) > 0


def test_moving_up_to_what_was_given_last_is_wrong(world: World, gaps: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serial order is not the order of commits: a transaction that is open may still write below."""
    monkeypatch.setattr(PostgresTable, "bound", lambda _, state, begin: Offsets(state.identity, state.newest))
    assert faults(world.tally(world.read)) > 0

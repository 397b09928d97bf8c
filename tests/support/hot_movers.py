"""The model's source, what is written to it, and the runs that move it: they stage at one time, and land or die later.
Readers, maintenance, outsiders and what must stay true are in hot_model.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import psycopg2
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor
from pyiceberg.table import Table as IcebergTable

from lakehouse_assets.drive.chunks import Journal
from lakehouse_assets.errors import PublishRefused, RolledBack, SourceLost, StageAgain
from lakehouse_assets.extensions.sources import hot_and_cold as reader
from lakehouse_assets.extensions.sources.postgres import PostgresTable
from lakehouse_assets.maintenance.collect.needed import Periods
from tests.support.hot_tables import UPSERT, make_source, state_table
from tests.support.hot_world import rows_of
from tests.support.lake_writers import fate, index, killed, killed_behind_commit
from tests.support.light_move import LightMove
from tests.support.model_site import SiteModel
from tests.support.standin_mover import made

WRITERS, EACH = 3, 2
KEYS = range(WRITERS * EACH)
Rows = Mapping[int, str]
Changes = Mapping[int, str | None]
"""By key; None where it is deleted."""
written = st.dictionaries(st.sampled_from(KEYS), st.booleans(), min_size=1, max_size=3)


@dataclass
class Writer:
    """A client of the database, with keys of its own. open: what its transaction has written."""

    connection: Connection
    keys: Sequence[int]
    open: dict[int, str | None] = field(default_factory=dict)


@dataclass
class Pending:
    """A run that has staged. at: on which day of the model's clock. changes: what it moves, as the database says.
    base: the head that it was staged on."""

    move: LightMove
    at: float
    changes: Changes = field(default_factory=dict)
    base: int | None = None


@dataclass(frozen=True)
class State:
    """What a snapshot holds. upto: all that is below was moved into it, or into an ancestor; 0 where nothing was."""

    rows: Rows
    upto: int


class HotMovers(SiteModel):
    """rows: what is committed. at: what each head of main holds. parents: as snapshots were committed. says: those that
    tell how far the source was moved. purged: how far the table was moved when its source was purged."""

    @initialize(deleted=written)
    def create(self, deleted: Mapping[int, bool]) -> None:
        self.open()
        self.writers = [Writer(psycopg2.connect(""), KEYS[n * EACH :][:EACH]) for n in range(WRITERS)]
        self.table = state_table(source=PostgresTable("state", grace=timedelta(0)))
        with self._cursor() as cursor:
            make_source(cursor)
        made(self.site.catalog, self.table)
        self.rows: Rows = {}
        self.at: dict[int | None, State] = {None: State({}, 0)}
        self.parents: dict[int, int | None] = {}
        self.says: set[int | None] = set()
        self.moves: list[Pending] = []
        self.purged = self.versions = self.runs = 0
        self.begin_move(deleted, at_once=True)

    def teardown(self) -> None:
        for writer in self.writers:
            writer.connection.close()
        self.close(self.table.identifier)

    # Writers

    @rule(deleted=written, commits=st.booleans())
    def write(self, deleted: Mapping[int, bool], commits: bool) -> None:
        """commits: whether the transactions end at once; else they go on until they are ended. Key by key."""
        for n, is_deleted in deleted.items():
            one = self.writers[n // EACH]
            self.versions += 1
            with one.connection.cursor() as cursor:
                cursor.execute(UPSERT, (n, text := f"v{self.versions}", is_deleted))
            one.open[n] = None if is_deleted else text
            if commits:
                self.end(n // EACH, commits=True)

    @rule(writer=st.integers(0, WRITERS - 1), commits=st.booleans())
    def end(self, writer: int, commits: bool) -> None:
        one = self.writers[writer]
        if commits:
            one.connection.commit()
            self.rows = changed(self.rows, one.open)
            self.figures["transactions"] += bool(one.open)
        else:
            one.connection.rollback()
        one.open = {}

    # Movers

    @rule(deleted=written | st.just({}), at_once=st.booleans())
    def begin_move(self, deleted: Mapping[int, bool], at_once: bool) -> None:
        """Of what is written just now, and what was before. at_once: whether it lands before anything else happens."""
        self.write(deleted, commits=True)
        if self._stage(pending := self._new_run()):
            self.moves.append(pending)
            if at_once:
                self._publish(pending)

    def _new_run(self, *, reads_all: bool = False) -> Pending:
        self.runs += 1
        return Pending(LightMove(self.table, f"run-{self.runs}", reads_all=reads_all), self.site.days)

    def _stage(self, pending: Pending) -> bool:
        """Whether it could; else it must have been refused because rows are lost."""
        move = pending.move
        if self._is_lost and not move.reads_all:
            with pytest.raises((PublishRefused, SourceLost)):
                move.stage(self.site.catalog)
            self._tell(pending, ended=True)
            self.figures["moves refused"] += 1
            return False
        receipt = move.stage(self.site.catalog)
        journal = Journal(self.site.staging_io, f"{self.site.staging}/{self.table.identifier}/{move.name}")
        receipt.write(journal.io, journal.receipt_location(0))
        self._tell(pending)
        with self._cursor() as cursor:
            span = (*move.begin.by_partition, *move.to.by_partition)
            cursor.execute("SELECT n, text, deleted FROM state WHERE pos >= %s AND pos < %s", span)
            pending.changes = {n: None if deleted else text for n, text, deleted in cursor.fetchall()}
        pending.base = self._head
        return True

    @rule(chosen=index)
    def publish_move(self, chosen: int) -> None:
        """Also one that is published, and is published again."""
        if self.moves:
            self._publish(self.moves[-1 - chosen % len(self.moves)])

    @rule(chosen=index, death=st.integers(1, 6), after=st.booleans())
    def die_while_publishing(self, chosen: int, death: int, after: bool) -> None:
        self._publish_and_die(chosen, killed(self.site.catalog, death, after=after))

    @rule(chosen=index)
    def die_behind_the_commit(self, chosen: int) -> None:
        self._publish_and_die(chosen, killed_behind_commit(self.site.catalog))

    def _publish_and_die(self, chosen: int, dying: AbstractContextManager[None]) -> None:
        """One that moves what is written just now."""
        self.begin_move({chosen % len(KEYS): False}, at_once=False)
        if not self.moves:
            return
        pending = self.moves[-1]
        landed, says = self._landed(pending), self._says(pending)
        with dying:
            self._publish(pending)
        if self._head not in self.at:
            self._committed(landed, says=says)
            self.figures["moves landed, unheard of"] += 1

    def _publish(self, pending: Pending) -> None:
        move, catalog = pending.move, self.site.catalog
        was = fate(self._cold, move.name)
        if was == "rolled back":
            with pytest.raises(RolledBack):
                move.publish(catalog)
            return
        if was != "None":
            assert move.publish(catalog).repeated
            self.figures["moves published again"] += 1
            return
        if gone := [f.file_path for f in move.chunk.files if not self._cold.io.new_input(f.file_path).exists()]:
            # Only of a run that took longer than any worker may.
            assert self.site.days - pending.at > Periods().unnamed.days, gone
            self.moves.remove(pending)
            return
        landed, says = self._landed(pending), self._says(pending)
        try:
            move.publish(catalog)
        except StageAgain:
            assert self._head != pending.base, "nobody else has committed"
            self.figures["moves staged again"] += 1
            if not self._stage(pending):
                self.moves.remove(pending)
            return
        self._committed(landed, says=says)
        self._tell(pending)
        self.figures["moves landed"] += 1

    def _landed(self, pending: Pending) -> State:
        """What the table holds if the run lands now."""
        return State(changed(self._now.rows, pending.changes), max(self._now.upto, *pending.move.to.by_partition))

    def _says(self, pending: Pending) -> bool:
        """Whether its commit says how far the source was moved: one that moves nothing copies what is known."""
        return bool(pending.move.moves.to) or self._known is not None

    @rule()
    def move_all(self) -> None:
        """As a person asks for it who gives up what is lost; nothing is, where only nobody knows the position."""
        gives_up = self._now.upto < self.purged
        self._stage(pending := self._new_run(reads_all=True))
        landed = self._landed(pending)
        pending.move.publish(self.site.catalog)
        self._committed(landed, says=True)
        self._tell(pending)
        if gives_up:
            self.rows = self._read()
            self.figures["rows given up"] += 1

    def _tell(self, pending: Pending, *, ended: bool = False) -> None:
        published = fate(self._cold, pending.move.name) not in ("None", "rolled back")
        self.tell_dagster(pending.move.name, pending.at, published=published, ended=ended)

    # What is known

    def _committed(self, state: State, *, says: bool) -> None:
        """Somebody has committed, or has found nothing to commit. says: whether how far the source was moved, too."""
        for snapshot in self._cold.snapshots():
            self.parents.setdefault(snapshot.snapshot_id, snapshot.parent_snapshot_id)
        if self._head not in self.at:
            self.at[self._head] = state
            self.says |= {self._head} if says else set()

    @property
    def _known(self) -> int | None:
        """How far the source was moved, by what main's snapshots say; None if that can't be known."""
        there = {snapshot.snapshot_id for snapshot in self._cold.snapshots()}
        here = self._head
        while here in there:
            if here in self.says:
                return self.at[here].upto
            here = self.parents[here]
        return None if self.says else 0

    @property
    def _is_lost(self) -> bool:
        """Whether nobody can know the rows: how far they were moved, or what was purged since."""
        return (known := self._known) is None or known < self.purged

    @property
    def _now(self) -> State:
        return self.at[self._head]

    @property
    def _cold(self) -> IcebergTable:
        return self.site.catalog.load_table(self.table.identifier)

    @property
    def _head(self) -> int | None:
        return self._cold.metadata.current_snapshot_id

    def _read(self) -> Rows:
        rows = rows_of(reader.hot_and_cold(self.table, catalog=self.site.catalog))
        assert len(rows) == len(dict(rows)), f"a row comes twice: {sorted(rows)}"
        return dict(rows)

    @contextmanager
    def _cursor(self) -> Iterator[Cursor]:
        with closing(psycopg2.connect("")) as connection, connection, connection.cursor() as cursor:
            yield cursor


def changed(rows: Rows, changes: Changes) -> Rows:
    return {n: text for n, text in {**rows, **changes}.items() if text is not None}

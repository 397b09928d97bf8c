"""What a source of rows can do, and its offsets."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from lakehouse_assets.errors import SourceLost

if TYPE_CHECKING:
    import pyarrow as pa


class Offsets(NamedTuple):
    """A position in a source: all rows with smaller offsets were read, no others.

    Example:
        >>> str(Offsets("Zk3X", (12, 0)))
        '12,0@Zk3X'
    """

    identity: str
    """Which source the offsets are of; those of one that was created again, or restored elsewhere, mean nothing.
    A mark may follow, which the source keeps: one that was set back to an earlier time does not know it."""
    by_partition: tuple[int, ...]
    """The first offset that was not read, by the number of its partition."""

    def __str__(self) -> str:
        return f"{','.join(map(str, self.by_partition))}@{self.identity}"

    @staticmethod
    def marked(source: str, mark: str) -> str:
        """Returns the identity of a source with a mark; without one where that is empty."""
        return f"{source}~{mark}" if mark else source

    @property
    def source(self) -> str:
        """The identity without its mark."""
        return self.identity.partition("~")[0]

    @property
    def mark(self) -> str:
        """The mark; empty where there is none, as in the position of a move before there were marks."""
        return self.identity.partition("~")[2]

    @classmethod
    def parse(cls, text: str) -> Offsets:
        """Reads what str() gives. Raises ValueError for another text."""
        offsets, _, identity = text.partition("@")
        return cls(identity, tuple(int(offset) for offset in offsets.split(",")))

    def widened(self, partitions: int) -> Offsets:
        """Returns the same position in a source that has this many partitions by now: a new one begins at 0."""
        return Offsets(self.identity, self.by_partition + (0,) * (partitions - len(self.by_partition)))

    def spans(self, to: Offsets) -> dict[int, tuple[int, int]]:
        """Returns the half-open range from here ``to`` there of each partition that has one, by the partition."""
        pairs = zip(self.widened(len(to.by_partition)).by_partition, to.by_partition, strict=False)
        return {number: (begin, end) for number, (begin, end) in enumerate(pairs) if begin < end}

    def before(self, to: Offsets) -> int:
        """Returns how many offsets lie from here ``to`` there."""
        return sum(end - begin for begin, end in self.spans(to).values())


DELETED = "deleted"
"""The column that says whether a row is deleted, of sources that have one."""
CLIENT_VARIABLES = ("PG", "KAFKA_", "SCHEMA_REGISTRY_")
"""What the names of the environment's variables begin with that sources are reached by."""


@dataclass(frozen=True)
class SourceState:
    """Holds what a source says of its offsets at one time."""

    identity: str
    """As in Offsets: with the mark of the position that was asked for, if the source knows it."""
    first: tuple[int, ...]
    """The first offset whose row is still there, by partition: what comes before was purged, or retention took it."""
    safe: tuple[int, ...]
    """The offset, by partition, before which no row can appear any more: up to it a run may move."""
    newest: tuple[int, ...]
    """The offset, by partition, that the next row gets: between ``safe`` and it, transactions are open."""
    retention: timedelta | None = None
    """After which time the source deletes rows by itself; None where it does not."""
    purged: bool = False
    """Whether what comes before ``first`` was purged because a table had it."""
    mover: str | None = None
    """The table that the source is moved into, as ``shop.orders@<table uuid>``; empty until it is moved, None if the
    source does not keep that."""
    is_restored: bool = False
    """Whether what it says of purges is of another server, or of a table that is gone."""

    @property
    def held_back(self) -> int:
        """How many offsets open transactions keep from being moved."""
        return sum(self.newest) - sum(self.safe)

    def begin(self, position: Offsets | None) -> Offsets:
        """Returns where a run begins to read: at the position, or without one at the first row that is there."""
        return position.widened(len(self.safe)) if position else Offsets(self.identity, self.first)

    def still_there(self, position: Offsets) -> Offsets:
        """Returns the position, moved to the first row that is there in the partitions that have lost rows behind it.

        Offsets of another source mean nothing here, and stay as they are.
        """
        if position.source != Offsets(self.identity, ()).source:
            return position
        begin = position.widened(len(self.first)).by_partition
        there = tuple(max(pair) for pair in zip(self.first, begin, strict=True))
        # A purge drops the marks of the positions before it.
        return Offsets(position.identity if there == begin else self.identity, there)

    def problem(self, name: str, position: Offsets | None) -> str | None:
        """Says why not all rows from the position on are there any more; None if they are. name: the source's."""
        if position is None:
            if self.purged:
                return f"{name} was purged up to {_text(self.first)}, and the table has nothing of it"
            return None
        if position.source != Offsets(self.identity, ()).source:
            return f"{name} is another one than was read: {self.identity} now, {position.source} then"
        begin = position.widened(len(self.first)).by_partition
        if lost := position.before(self.still_there(position)):
            return f"{name} was read to {_text(begin)}, and has only what follows {_text(self.first)}: {lost} offsets"
        if any(newest < offset for newest, offset in zip(self.newest, begin, strict=True)):
            return f"{name} was read to {_text(begin)}, and has only got to {_text(self.newest)}: it was set back"
        if position.identity != self.identity:
            return (
                f"{name} was read to {_text(begin)}, and does not know of it: it was set back to an earlier time, as "
                "by a restore, or a failover to a server that lagged behind"
            )
        return None

    def of_another(self, name: str, mover: str) -> str | None:
        """Says that the source is moved into another table, if it is. name: the source's. mover: the one that asks."""
        if not self.mover or self.mover.rpartition("@")[2] == mover.rpartition("@")[2]:
            return None
        return (
            f"{name} is moved into another table, {self.mover}, not into {mover}: what one has moved is purged, and "
            "the other would lack it"
        )


def _text(offsets: Sequence[int]) -> str:
    return str(offsets[0]) if len(offsets) == 1 else f"{[*offsets]}"


class Fault(NamedTuple):
    """What is wrong with how a source is made, or with what refers to it."""

    is_refused: bool
    """Whether rows would be lost, so that nothing is moved or purged; if not, it is worth a warning."""
    text: str
    """A clause, with what to do."""


@dataclass(frozen=True)
class Lag:
    """How far a table is behind its source."""

    depth: int
    """Rows that the source holds, moved or not; of a topic, offsets."""
    rows: int
    """Rows that can be moved; of a topic, offsets, which may be more than rows."""
    oldest: datetime | None
    """When the oldest of these was written, by the source's clock; None where there is none."""
    held: int = 0
    """Rows that are there, and can't be moved before open transactions have ended."""
    held_since: datetime | None = None
    """When the oldest of these was written."""


@dataclass(frozen=True)
class Split:
    """A part of a range of a source that one task reads."""

    partition: int
    begin: int
    end: int | None
    """The first offset that is not read; None: all that is there is read."""


@dataclass(frozen=True, kw_only=True)
class RowSource(ABC):
    """A source of a table's rows, and how soon and how often they are moved."""

    marks_deleted: ClassVar[bool] = False
    """Whether its rows have a column ``deleted``, which says that they are."""

    floor: int = 100_000
    """The number of rows that are worth a run at once; fewer wait until the oldest has waited for ``latency``."""
    latency: timedelta = timedelta(minutes=5)
    """How long the oldest of fewer rows waits at most."""
    ceiling: int = 5_000_000
    """The most rows of one run; a transaction of PostgreSQL is moved whole, however many it has."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name by which positions know it, such as ``kafka:flight-events``."""

    @abstractmethod
    def problems(self, columns: Mapping[str, str], write_mode: object) -> Iterator[str]:
        """Yields the reasons why a table can't have this source. columns: its types by name, in Iceberg's words."""

    @abstractmethod
    def state(self, position: Offsets | None = None) -> SourceState:
        """Asks the source what it holds. Raises SourceUnreachable, and SourceLost where it does not exist.

        position: that of the table, whose mark is looked for.
        """

    @abstractmethod
    def bound(self, state: SourceState, begin: Offsets) -> Offsets:
        """Returns how far a run that begins there moves: to what is safe, ``ceiling`` rows at most."""

    @abstractmethod
    def lag(self, state: SourceState, begin: Offsets) -> Lag:
        """Returns how far a table is behind that was moved to ``begin``."""

    @abstractmethod
    def visible(self, state: SourceState, begin: Offsets) -> Sequence[Split]:
        """Returns what a reader reads that wants all rows from ``begin`` on."""

    @abstractmethod
    def read(self, split: Split, schema: pa.Schema, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a split, with the columns of the schema; what a record of a topic lacks is null.

        limit: after how many rows to stop, about. Raises SourceUnreachable, SourceLost and BadValue.
        """

    def faults(self, state: SourceState) -> Sequence[Fault]:
        """Looks for what is wrong with how the source is made."""
        return ()

    def refuse_faults(self, state: SourceState) -> None:
        """Raises SourceLost where rows would be lost if it were moved or purged."""
        if refused := [fault.text for fault in self.faults(state) if fault.is_refused]:
            raise SourceLost(f"{self.name} can't be moved or purged: {'; '.join(refused)}")

    def marked(self, to: Offsets) -> Offsets:
        """Returns the position with a new mark of a source that keeps marks. Called once all up to there was read."""
        return to

    def claim(self, state: SourceState, mover: str, *, takes_over: bool) -> None:
        """Notes which table the source is moved into, where that matters. Raises SourceLost if it is another one.

        mover: the table, as in SourceState. takes_over: whether it is noted in place of another one.
        """
        return

    def lacking(self, columns: Sequence[str]) -> list[str]:
        """Returns those of a table's columns that the source is known not to have."""
        return []

    def column_problem(self, columns: Sequence[str], *, may_lack: bool) -> str | None:
        """Says why moving these columns would lose values, or null them; None if it would not.

        may_lack: whether the table's step adds those that the source lacks.
        """
        return None

    def prove(self, begin: Offsets) -> None:
        """Raises SourceLost unless all rows from there on are still there.

        Asked after they were read, it proves that none was missing when they were.
        """
        if problem := self.state(begin).problem(self.name, begin):
            raise SourceLost(problem)


def client_environment() -> dict[str, str]:
    """Returns the variables by which clients reach sources, for the processes that read in a worker's stead.

    They hold secrets: they are handed on in memory only.
    """
    return {name: value for name, value in os.environ.items() if name.startswith(CLIENT_VARIABLES)}


def named_settings(prefix: str) -> dict[str, str]:
    """Returns a client's settings of the environment: KAFKA_SASL_USERNAME is ``sasl.username``."""
    return {
        name.removeprefix(prefix).lower().replace("_", "."): value
        for name, value in os.environ.items()
        if name.startswith(prefix)
    }


def is_on_loopback() -> bool:
    """Tells whether all sources that the environment names are on this machine."""
    places = [os.environ.get("KAFKA_BOOTSTRAP_SERVERS", ""), os.environ.get("PGHOST", "")]
    named = [place.partition(":")[0] for place in ",".join(filter(None, places)).split(",")]
    return set(named) <= {"127.0.0.1", "localhost"}

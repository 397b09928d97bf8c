"""The interface of row sources (Kafka topics, PostgreSQL tables), and positions in them.

A run *moves* rows from the source into its table; a *purge* deletes moved rows from the source. A *mark* is a random
text that each move stores in PostgreSQL, and in its position: a source that lacks the mark was set back in time.
"""

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

    Examples:
        >>> str(Offsets("Zk3X", (12, 0)))
        '12,0@Zk3X'
    """

    identity: str
    """The source's identity, which may end in a mark. It changes if the source is created again or restored elsewhere:
    offsets then mean nothing."""
    by_partition: tuple[int, ...]

    def __str__(self) -> str:
        return f"{','.join(map(str, self.by_partition))}@{self.identity}"

    @staticmethod
    def marked(source: str, mark: str) -> str:
        """Returns an identity with a mark; without one if the mark is empty."""
        return f"{source}~{mark}" if mark else source

    @property
    def source(self) -> str:
        """The identity without its mark."""
        return self.identity.partition("~")[0]

    @property
    def mark(self) -> str:
        """Empty in positions older than marks."""
        return self.identity.partition("~")[2]

    @classmethod
    def parse(cls, text: str) -> Offsets:
        """Parses str(). Raises ValueError."""
        offsets, _, identity = text.partition("@")
        return cls(identity, tuple(int(offset) for offset in offsets.split(",")))

    def widened(self, partitions: int) -> Offsets:
        """Returns the same position with at least this many partitions; new ones begin at 0."""
        return Offsets(self.identity, self.by_partition + (0,) * (partitions - len(self.by_partition)))

    def spans(self, to: Offsets) -> dict[int, tuple[int, int]]:
        """Returns partition → half-open range from here to ``to``, without empty ones."""
        # If ``to`` has fewer partitions, the others are left out.
        pairs = zip(self.widened(len(to.by_partition)).by_partition, to.by_partition, strict=False)
        return {number: (begin, end) for number, (begin, end) in enumerate(pairs) if begin < end}

    def before(self, to: Offsets) -> int:
        """Counts the offsets from here to ``to``."""
        return sum(end - begin for begin, end in self.spans(to).values())


DELETED = "deleted"
"""The column that marks deleted rows."""
CLIENT_VARIABLES = ("PG", "KAFKA_", "SCHEMA_REGISTRY_")
"""Prefixes of the environment variables that clients of sources read."""


@dataclass(frozen=True)
class SourceState:
    """A source's offsets at one time, each tuple by partition."""

    identity: str
    """As in Offsets, with the requested position's mark if the source still has that mark."""
    first: tuple[int, ...]
    """The first offsets still there: earlier rows were purged or expired."""
    safe: tuple[int, ...]
    """No row can appear before these any more: a run may move up to here."""
    newest: tuple[int, ...]
    """The next rows' offsets. From ``safe`` to here, open transactions may still add rows."""
    retention: timedelta | None = None
    """The age at which the source itself deletes rows; None if it never does."""
    purged: bool = False
    """Whether rows before ``first`` were purged because a table had them."""
    mover: str | None = None
    """The table that rows are moved into, as ``shop.orders@<table uuid>``; empty before the first move, None if the
    source can't note it."""
    is_restored: bool = False
    """Whether the purges that it notes are another server's, or a dropped table's: their offsets mean nothing here."""

    @property
    def held_back(self) -> int:
        """How many offsets open transactions hold back."""
        return sum(self.newest) - sum(self.safe)

    def begin(self, position: Offsets | None) -> Offsets:
        """Returns where a move begins: at the position, or else at the first row still there."""
        return position.widened(len(self.safe)) if position else Offsets(self.identity, self.first)

    def still_there(self, position: Offsets) -> Offsets:
        """Returns the position, advanced to the first rows still there.

        Returns a position in another source unchanged.
        """
        # Offsets(…).source is the identity without its mark.
        if position.source != Offsets(self.identity, ()).source:
            return position
        begin = position.widened(len(self.first)).by_partition
        there = tuple(max(pair) for pair in zip(self.first, begin, strict=True))
        # A purge drops the marks of earlier positions, so an advanced position has the source's own identity.
        return Offsets(position.identity if there == begin else self.identity, there)

    def problem(self, name: str, position: Offsets | None) -> str | None:
        """Returns why rows from the position on are missing, or None."""
        if position is None:
            if self.purged:
                return f"{name} was purged up to {_text(self.first)}, but the table has none of its rows"
            return None
        if position.source != Offsets(self.identity, ()).source:
            return f"{name} is not the one that was read: it is now {self.identity}, and was {position.source}"
        begin = position.widened(len(self.first)).by_partition
        if lost := position.before(self.still_there(position)):
            return f"{name} was read to {_text(begin)}, but now begins at {_text(self.first)}: {lost} offsets are lost"
        if any(newest < offset for newest, offset in zip(self.newest, begin, strict=True)):
            return f"{name} was read to {_text(begin)}, but has only reached {_text(self.newest)}: it was set back"
        # The same source without lost rows, and yet another identity: it lacks the position's mark.
        if position.identity != self.identity:
            return (
                f"{name} was read to {_text(begin)}, but has no record of that: it was set back to an earlier time, "
                "for example by a restore or by a failover to a server that lagged behind"
            )
        return None

    def of_another(self, name: str, mover: str) -> str | None:
        """Returns a message if the source is moved into another table than ``mover``."""
        if not self.mover or self.mover.rpartition("@")[2] == mover.rpartition("@")[2]:
            return None
        return (
            f"{name} is moved into another table, {self.mover}, not into {mover}: rows that one table has moved are "
            "purged, and the other would lack them"
        )


def _text(offsets: Sequence[int]) -> str:
    return str(offsets[0]) if len(offsets) == 1 else f"{[*offsets]}"


class Fault(NamedTuple):
    """A fault of a source's setup, or of what refers to it."""

    is_refused: bool
    """Whether a move or purge would lose rows; else it is a warning."""
    text: str
    """A clause, with the remedy."""


@dataclass(frozen=True)
class Lag:
    """How far a table is behind its source."""

    depth: int
    """Rows that the source holds, moved or not; for a topic, offsets."""
    rows: int
    """Rows that can be moved now; for a topic, offsets, which may be more than rows."""
    oldest: datetime | None
    """When the oldest of ``rows`` was written, by the source's clock; None without rows."""
    held: int = 0
    """Rows that open transactions hold back."""
    held_since: datetime | None = None
    """When the oldest of ``held`` was written."""


@dataclass(frozen=True)
class Split:
    """A part of a source that one task reads."""

    partition: int
    begin: int
    """The first offset."""
    end: int | None
    """Exclusive; None: all rows from ``begin`` on."""


@dataclass(frozen=True, kw_only=True)
class RowSource(ABC):
    """A source of a table's rows, and how soon and how often they are moved."""

    marks_deleted: ClassVar[bool] = False
    """Whether its rows have the column DELETED."""

    floor: int = 100_000
    """The number of rows that are worth a run at once; fewer wait until the oldest has waited for ``latency``."""
    latency: timedelta = timedelta(minutes=5)
    """How long the oldest row waits at most if there are fewer than ``floor``."""
    ceiling: int = 5_000_000
    """The most rows of one run; a PostgreSQL transaction is moved whole, however many rows it has."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The source's name in positions and messages, such as ``kafka:flight-events``."""

    @abstractmethod
    def problems(self, columns: Mapping[str, str], write_mode: object) -> Iterator[str]:
        """Yields the reasons why a table can't have this source. columns: name → Iceberg type."""

    @abstractmethod
    def state(self, position: Offsets | None = None) -> SourceState:
        """Asks the source for its offsets, and whether it has the position's mark.

        Raises SourceUnreachable, and SourceLost if it does not exist.
        """

    @abstractmethod
    def bound(self, state: SourceState, begin: Offsets) -> Offsets:
        """Returns where a run's move from ``begin`` ends: at ``safe``, or after about ``ceiling`` rows."""

    @abstractmethod
    def lag(self, state: SourceState, begin: Offsets) -> Lag:
        """Returns the lag of a table that was moved up to ``begin``."""

    @abstractmethod
    def visible(self, state: SourceState, begin: Offsets) -> Sequence[Split]:
        """Returns the splits in which a reader finds all rows from ``begin`` on."""

    @abstractmethod
    def read(self, split: Split, schema: pa.Schema, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yields a split's rows, about ``limit`` at most; null for columns that a topic's record lacks.

        Raises SourceUnreachable, SourceLost and BadValue.
        """

    def faults(self, state: SourceState) -> Sequence[Fault]:
        """Returns faults of the setup."""
        return ()

    def refuse_faults(self, state: SourceState) -> None:
        """Raises SourceLost if a move or purge would lose rows."""
        if refused := [fault.text for fault in self.faults(state) if fault.is_refused]:
            raise SourceLost(f"{self.name} can't be moved or purged: {'; '.join(refused)}")

    def marked(self, to: Offsets) -> Offsets:
        """Stores a new mark, if the source keeps marks, and returns the position with it; call it after reading."""
        return to

    def claim(self, state: SourceState, mover: str, *, takes_over: bool) -> None:
        """Notes ``mover`` as the only table that rows are moved into: another one would lack purged rows.

        Raises SourceLost if another table is noted, unless ``takes_over``.
        """
        return

    def lacking(self, columns: Sequence[str]) -> list[str]:
        """Returns the columns that the source is known to lack."""
        return []

    def column_problem(self, columns: Sequence[str], *, may_lack: bool) -> str | None:
        """Returns why a move would lose values, or None. may_lack: whether columns may be missing."""
        return None

    def prove(self, begin: Offsets) -> None:
        """Raises SourceLost unless all rows from ``begin`` on are still there.

        Called after a read, it proves that no row was missing: rows that are gone never come back.
        """
        if problem := self.state(begin).problem(self.name, begin):
            raise SourceLost(problem)


def client_environment() -> dict[str, str]:
    """Returns clients' variables, for Spark's Python workers. They hold secrets: hand them on in memory only."""
    return {name: value for name, value in os.environ.items() if name.startswith(CLIENT_VARIABLES)}


def named_settings(prefix: str) -> dict[str, str]:
    """Returns a client's settings from the environment: with KAFKA_, ``sasl.username`` is KAFKA_SASL_USERNAME."""
    return {
        name.removeprefix(prefix).lower().replace("_", "."): value
        for name, value in os.environ.items()
        if name.startswith(prefix)
    }


def is_on_loopback() -> bool:
    """Whether all sources that the environment names are local; a PostgreSQL service may be anywhere, so it is not."""
    if any(os.environ.get(name) for name in ("PGSERVICE", "PGSERVICEFILE")):
        return False
    places = [os.environ.get(name, "") for name in ("KAFKA_BOOTSTRAP_SERVERS", "PGHOST", "PGHOSTADDR")]
    named = [place.partition(":")[0] for place in ",".join(filter(None, places)).split(",")]
    return set(named) <= {"127.0.0.1", "localhost"}

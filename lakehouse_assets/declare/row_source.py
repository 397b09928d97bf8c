"""The interface of row sources, and positions in them."""

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
    """Of the source: after it was created again or restored elsewhere, offsets mean nothing. May end in a mark, which a
    source set back in time lacks."""
    by_partition: tuple[int, ...]

    def __str__(self) -> str:
        return f"{','.join(map(str, self.by_partition))}@{self.identity}"

    @staticmethod
    def marked(source: str, mark: str) -> str:
        """Returns an identity with a mark, unless that is empty."""
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
        """Returns the same position with this many partitions; new ones begin at 0."""
        return Offsets(self.identity, self.by_partition + (0,) * (partitions - len(self.by_partition)))

    def spans(self, to: Offsets) -> dict[int, tuple[int, int]]:
        """Returns nonempty half-open ranges by partition."""
        pairs = zip(self.widened(len(to.by_partition)).by_partition, to.by_partition, strict=False)
        return {number: (begin, end) for number, (begin, end) in enumerate(pairs) if begin < end}

    def before(self, to: Offsets) -> int:
        """Counts offsets from here ``to`` there."""
        return sum(end - begin for begin, end in self.spans(to).values())


DELETED = "deleted"
"""The column that marks deleted rows."""
CLIENT_VARIABLES = ("PG", "KAFKA_", "SCHEMA_REGISTRY_")


@dataclass(frozen=True)
class SourceState:
    """A source's offsets at one time."""

    identity: str
    """As in Offsets, with the requested position's mark if known."""
    first: tuple[int, ...]
    """The first offsets still there: earlier rows were purged or expired."""
    safe: tuple[int, ...]
    """No row can appear before these any more: a run may move up to here."""
    newest: tuple[int, ...]
    """The next rows' offsets; transactions from ``safe`` to here are open."""
    retention: timedelta | None = None
    """After which the source itself deletes rows."""
    purged: bool = False
    """Whether rows before ``first`` were purged because a table had them."""
    mover: str | None = None
    """The table moved into, as ``shop.orders@<table uuid>``; empty before the first move, None if not kept."""
    is_restored: bool = False
    """Whether its purges are another server's, or a dropped table's."""

    @property
    def held_back(self) -> int:
        """Offsets that open transactions hold back."""
        return sum(self.newest) - sum(self.safe)

    def begin(self, position: Offsets | None) -> Offsets:
        """Returns the position, else the first row still there."""
        return position.widened(len(self.safe)) if position else Offsets(self.identity, self.first)

    def still_there(self, position: Offsets) -> Offsets:
        """Returns the position, advanced to the first rows still there.

        Returns a position in another source unchanged.
        """
        if position.source != Offsets(self.identity, ()).source:
            return position
        begin = position.widened(len(self.first)).by_partition
        there = tuple(max(pair) for pair in zip(self.first, begin, strict=True))
        # A purge drops the marks of the positions before it.
        return Offsets(position.identity if there == begin else self.identity, there)

    def problem(self, name: str, position: Offsets | None) -> str | None:
        """Says why rows from the position on are missing, if they are."""
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
        if position.identity != self.identity:
            return (
                f"{name} was read to {_text(begin)}, but has no record of that: it was set back to an earlier time, "
                "for example by a restore or by a failover to a server that lagged behind"
            )
        return None

    def of_another(self, name: str, mover: str) -> str | None:
        """Says that the source is moved into another table, if it is."""
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
    """Whether a move or purge would lose rows; else a warning."""
    text: str
    """A clause, with the remedy."""


@dataclass(frozen=True)
class Lag:
    """How far a table is behind its source."""

    depth: int
    """All rows; of a topic, offsets."""
    rows: int
    """Movable rows; of a topic, offsets, which may be more."""
    oldest: datetime | None
    """When the oldest of these was written, by the source's clock."""
    held: int = 0
    """Rows that open transactions hold back."""
    held_since: datetime | None = None
    """When the oldest of these was written."""


@dataclass(frozen=True)
class Split:
    """A part of a source that one task reads."""

    partition: int
    begin: int
    end: int | None
    """Exclusive; None: all rows."""


@dataclass(frozen=True, kw_only=True)
class RowSource(ABC):
    """A source of a table's rows, and how soon and how often they are moved."""

    marks_deleted: ClassVar[bool] = False
    """Whether it has a column ``deleted``."""

    floor: int = 100_000
    """The number of rows that are worth a run at once; fewer wait until the oldest has waited for ``latency``."""
    latency: timedelta = timedelta(minutes=5)
    """How long the oldest row waits at most if there are fewer than ``floor``."""
    ceiling: int = 5_000_000
    """The most rows of one run; a PostgreSQL transaction is moved whole, however many rows it has."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in positions, as ``kafka:flight-events``."""

    @abstractmethod
    def problems(self, columns: Mapping[str, str], write_mode: object) -> Iterator[str]:
        """Yields why a table can't have this source. columns: Iceberg types."""

    @abstractmethod
    def state(self, position: Offsets | None = None) -> SourceState:
        """Asks the source, also for the position's mark.

        Raises SourceUnreachable, and SourceLost if it does not exist.
        """

    @abstractmethod
    def bound(self, state: SourceState, begin: Offsets) -> Offsets:
        """Returns the end of a run's move: what is safe, about ``ceiling`` rows at most."""

    @abstractmethod
    def lag(self, state: SourceState, begin: Offsets) -> Lag:
        """Returns a table's lag at ``begin``."""

    @abstractmethod
    def visible(self, state: SourceState, begin: Offsets) -> Sequence[Split]:
        """Returns a reader's splits from ``begin`` on."""

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
        """Returns the position with a new mark, if the source keeps marks; call it after reading."""
        return to

    def claim(self, state: SourceState, mover: str, *, takes_over: bool) -> None:
        """Notes the table moved into, ``mover``. Raises SourceLost for another one, unless ``takes_over``."""
        return

    def lacking(self, columns: Sequence[str]) -> list[str]:
        """Returns columns known to be missing."""
        return []

    def column_problem(self, columns: Sequence[str], *, may_lack: bool) -> str | None:
        """Says why a move would lose values. may_lack: whether the step adds columns."""
        return None

    def prove(self, begin: Offsets) -> None:
        """Raises SourceLost unless all rows are still there. After a read, this proves that no row was missing."""
        if problem := self.state(begin).problem(self.name, begin):
            raise SourceLost(problem)


def client_environment() -> dict[str, str]:
    """Returns clients' variables. They hold secrets: hand them on in memory only."""
    return {name: value for name, value in os.environ.items() if name.startswith(CLIENT_VARIABLES)}


def named_settings(prefix: str) -> dict[str, str]:
    """Returns the environment's settings: KAFKA_SASL_USERNAME is ``sasl.username``."""
    return {
        name.removeprefix(prefix).lower().replace("_", "."): value
        for name, value in os.environ.items()
        if name.startswith(prefix)
    }


def is_on_loopback() -> bool:
    """Whether all sources that the environment names are local; a service of PostgreSQL may be anywhere."""
    if any(os.environ.get(name) for name in ("PGSERVICE", "PGSERVICEFILE")):
        return False
    places = [os.environ.get(name, "") for name in ("KAFKA_BOOTSTRAP_SERVERS", "PGHOST", "PGHOSTADDR")]
    named = [place.partition(":")[0] for place in ",".join(filter(None, places)).split(",")]
    return set(named) <= {"127.0.0.1", "localhost"}

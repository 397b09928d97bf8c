"""Sources: what comes before a table, and is moved into it: what all of them declare, what is known of them, proofs.

No client of any service here: those are in kafka.py and postgres.py.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ClassVar

from lakehouse_assets.errors import SourceLost
from lakehouse_assets.sources.offsets import Offsets

if TYPE_CHECKING:
    import pyarrow as pa

DELETED = "deleted"
"""The column that says whether a row is deleted, of sources that have one."""
CLIENT_VARIABLES = ("PG", "KAFKA_", "SCHEMA_REGISTRY_")
"""What the names of the environment's variables begin with that sources are reached by."""


@dataclass(frozen=True)
class SourceState:
    """Holds what a source says of its offsets at one time."""

    identity: str
    """As in Offsets."""
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

    @property
    def held_back(self) -> int:
        """How many offsets open transactions keep from being moved."""
        return sum(self.newest) - sum(self.safe)

    def begin(self, position: Offsets | None) -> Offsets:
        """Returns where a run begins to read: at the position, or without one at the first row that is there."""
        return position.widened(len(self.safe)) if position else Offsets(self.identity, self.first)

    def problem(self, name: str, position: Offsets | None) -> str | None:
        """Says why not all rows from the position on are there any more; None if they are. name: the source's."""
        if position is None:
            if self.purged:
                return f"{name} was purged up to {_text(self.first)}, and the table has nothing of it"
            return None
        if position.identity != self.identity:
            return f"{name} is another one than was read: {self.identity} now, {position.identity} then"
        begin = position.widened(len(self.first)).by_partition
        if lost := sum(max(0, first - offset) for first, offset in zip(self.first, begin, strict=True)):
            return f"{name} was read to {_text(begin)}, and has only what follows {_text(self.first)}: {lost} offsets"
        if any(newest < offset for newest, offset in zip(self.newest, begin, strict=True)):
            return f"{name} was read to {_text(begin)}, and has only got to {_text(self.newest)}: it was set back"
        return None


def _text(offsets: Sequence[int]) -> str:
    return str(offsets[0]) if len(offsets) == 1 else f"{[*offsets]}"


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
    def state(self) -> SourceState:
        """Asks the source what it holds. Raises SourceUnreachable, and SourceLost where it does not exist."""

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
        if problem := self.state().problem(self.name, begin):
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

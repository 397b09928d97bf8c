"""Finds which part of the inbox one run is for, and removes it after the run's publish. The run's plan notes it.

The rules, each with what is lost without it, are in docs/why.md; items are put there and read by inbox.py.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from lakehouse_assets.inbox.inbox import Inbox, Item
from lakehouse_assets.wire.work import Durable


@dataclass(frozen=True)
class Covered:
    """The items that waited for one partition."""

    names: tuple[str, ...]
    """The names of the inbox objects."""
    messages: int
    """The number of messages that these stand for."""
    sent_ms: int
    """The time when the oldest message was sent, in milliseconds since 1970."""


@dataclass(frozen=True)
class Covers:
    """The part of the inbox that one run is for."""

    table: str
    token: str
    keys: tuple[str, ...]
    """The run's partitions; "" without partitions."""
    found: Mapping[str, Covered]
    """The items that waited, by partition; a partition for which nothing waited is not there."""
    snapshot_id: int | None
    """The table's head at that time; None if it had none."""
    noted_ms: int
    """The time of the note, in milliseconds since 1970."""

    def names(self) -> Mapping[str, frozenset[str]]:
        """Returns the names of the inbox objects of each partition; none where nothing waited."""
        return {key: frozenset(self.found[key].names if key in self.found else ()) for key in self.keys}


@dataclass(frozen=True)
class Failed(Durable):
    """The reason why a run failed."""

    run_id: str
    """The id of the attempt."""
    keys: tuple[str, ...]
    """The partitions that are bad, if the run knows any."""
    reason: str


def waiting_for(inbox: Inbox, table: str, keys: Collection[str]) -> dict[str, Covered]:
    """Returns what waits in the inbox for these partitions of a table, by partition; none where nothing does."""
    wanted = set(keys)
    return {key: found for (_, key), found in by_partition(inbox.waiting({table})).items() if key in wanted}


def by_partition(items: Mapping[str, Item]) -> dict[tuple[str, str], Covered]:
    """Returns what waits for each partition, by its table and key. items: by name."""
    found: dict[tuple[str, str], dict[str, Item]] = defaultdict(dict)
    for name, item in items.items():
        found[item.table, item.key][name] = item
    return {
        partition: Covered(tuple(some), sum(i.messages for i in some.values()), min(i.sent_ms for i in some.values()))
        for partition, some in found.items()
    }


@dataclass
class RunCovers:
    """One run's part in the inbox."""

    inbox: Inbox
    covers: Covers
    keys_of: Callable[[str], Collection[str] | None]
    """Returns the partitions of another run, by its token; None where nobody knows them."""
    clock: Callable[[], float] = time.time
    """Returns the seconds since 1970."""
    _told: set[str] = field(default_factory=set)

    def ask_again(self, others: Collection[str]) -> None:
        """Puts partitions into the inbox that another run published since the covers were noted.

        It is called before this run commits. The other run may have read newer input than this one, and this one's rows
        replace what it wrote. others: the tokens of the other runs. Raises what the storage raises: the run must not
        commit.
        """
        new = set(others) - self._told - {self.covers.token}
        theirs = {key for token in new for key in self.keys_of(token) or self.covers.keys}
        now_ms = round(self.clock() * 1000)
        self.inbox.put(Item(self.covers.table, key, 0, now_ms, now_ms) for key in self.covers.keys if key in theirs)
        self._told |= new

    def remove(self, keys: Iterable[str]) -> None:
        """Removes from the inbox what the run covered of these partitions, which are in the table now, and only that.

        Raises what the storage raises: what stays asks for its partition once more.
        """
        names = self.covers.names()
        self.inbox.remove(name for key in keys for name in names[key])

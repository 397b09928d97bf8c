"""Notes which part of the inbox one run is for, before any of its workers starts, and removes it after its publish.

The rules, each with what is lost without it, are in docs/why.md; items are put there and read by inbox.py.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import TypeAdapter
from pyiceberg.io import FileIO

from lakehouse_assets.inbox.inbox import Inbox, Item
from lakehouse_assets.protocol.receipts import read_json, write_json

COVERS, FAILED = "covers.json", "failed.json"
"""The names of two notes beside the receipts of the run: they are of no use without them, and go with them."""


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
    version: Literal[1] = 1

    def names(self) -> Mapping[str, frozenset[str]]:
        """Returns the names of the inbox objects of each partition; none where nothing waited."""
        return {key: frozenset(self.found[key].names if key in self.found else ()) for key in self.keys}


@dataclass(frozen=True)
class Failed:
    """The reason why a run failed."""

    run_id: str
    """The id of the attempt."""
    keys: tuple[str, ...]
    """The partitions that are bad, if the run knows any."""
    reason: str
    version: Literal[1] = 1


@dataclass(frozen=True)
class CoverNotes:
    """The notes of the runs of one table."""

    io: FileIO
    prefix: str
    """The place of the receipts of its runs, a folder for each token."""

    def covers(self, token: str) -> Covers | None:
        """Returns the covers of one run; None if it has noted none, or what it noted can't be read. Raises OSError."""
        return read_json(self.io, self._location(token, COVERS), TypeAdapter(Covers).validate_json)

    def failed(self, token: str) -> Failed | None:
        """Returns the failure of one run, under the same conditions as covers()."""
        return read_json(self.io, self._location(token, FAILED), TypeAdapter(Failed).validate_json)

    def note(self, covers: Covers) -> None:
        """Writes the covers of a run. Raises what the storage raises."""
        text = TypeAdapter(Covers).dump_json(covers).decode()
        write_json(self.io, self._location(covers.token, COVERS), text)

    def note_failed(self, token: str, failed: Failed) -> None:
        """Writes the failure of a run over what an earlier attempt of it noted. Raises what the storage raises."""
        write_json(self.io, self._location(token, FAILED), TypeAdapter(Failed).dump_json(failed).decode())

    def _location(self, token: str, name: str) -> str:
        return f"{self.prefix}/{token}/{name}"


@dataclass
class RunCovers:
    """One run's part in the inbox."""

    inbox: Inbox
    notes: CoverNotes
    table: str
    token: str
    clock: Callable[[], float] = time.time
    """Returns the seconds since 1970."""
    covers: Covers = field(init=False)
    _told: set[str] = field(default_factory=set)

    def note(self, keys: Collection[str], snapshot_id: int | None, *, resumes: bool) -> None:
        """Notes what the run covers: once for all its attempts.

        keys: the run's partitions; ("",) without partitions. snapshot_id: the table's head, read before. resumes:
        whether workers of an earlier attempt may have read their input already; what came since they did is not theirs,
        so nothing is noted anew then. Raises what the storage raises: no worker may start.
        """
        if (earlier := self.notes.covers(self.token)) is not None:
            self.covers = earlier
            return
        found = {} if resumes else self._waiting(set(keys))
        self.covers = Covers(self.table, self.token, tuple(keys), found, snapshot_id, self._now_ms())
        self.notes.note(self.covers)

    def _waiting(self, keys: Collection[str]) -> Mapping[str, Covered]:
        by_key: dict[str, dict[str, Item]] = defaultdict(dict)
        for name, item in self.inbox.waiting({self.table}).items():
            if item.key in keys:
                by_key[item.key][name] = item
        return {
            key: Covered(
                names=tuple(items),
                messages=sum(item.messages for item in items.values()),
                sent_ms=min(item.sent_ms for item in items.values()),
            )
            for key, items in by_key.items()
        }

    def ask_again(self, others: Collection[str]) -> None:
        """Puts partitions into the inbox that another run published since the covers were noted.

        It is called before this run commits. The other run may have read newer input than this one, and this one's rows
        replace what it wrote. others: the tokens of the other runs. Raises what the storage raises: the run must not
        commit.
        """
        new = set(others) - self._told - {self.token}
        theirs = {key for token in new for key in self._keys_of(token)}
        now_ms = self._now_ms()
        self.inbox.put(Item(self.table, key, 0, now_ms, now_ms) for key in self.covers.keys if key in theirs)
        self._told |= new

    def _keys_of(self, token: str) -> Collection[str]:
        """Returns the partitions of another run; all of this one's where it has left no covers."""
        covers = self.notes.covers(token)
        return self.covers.keys if covers is None else covers.keys

    def remove(self, keys: Iterable[str]) -> None:
        """Removes from the inbox what the run covered of these partitions, which are in the table now, and only that.

        Raises what the storage raises: what stays asks for its partition once more.
        """
        names = self.covers.names()
        self.inbox.remove(name for key in keys for name in names[key])

    def _now_ms(self) -> int:
        return round(self.clock() * 1000)

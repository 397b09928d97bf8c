"""The durable inbox of requested partitions, and a run's part of it.

An object has an *item* for each partition that the same messages request. A run notes in its plan which items it
*covers*, and removes exactly these after its publish (docs/why.md).
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any
from uuid import uuid4

from lakehouse_assets.storage.objects import Objects, at_once, objects_at
from lakehouse_assets.storage.place import place_of
from lakehouse_assets.wire.work import Durable

logger = logging.getLogger(__name__)
VERSION = 2
"""Of the objects' format."""
DONE = ".done"
"""The suffix of notes that say which partitions of an object are done. Objects are never rewritten: of two runs
that finish parts of one, the second would undo the first's change."""
PART = re.compile(r"(?P<object>.+)#(?P<at>[0-9]+)/(?P<of>[0-9]+)", re.DOTALL)
"""The name of one item of an object with several. Older code takes it for an object's name, finds none,
and removes nothing."""
LATEST_MS = 253_402_300_799_999
"""The end of 9999, Python's last year, since 1970."""
CROWD = 100
"""Notes of one object above which they are merged."""


@dataclass(frozen=True)
class Item:
    """One tick's messages for one partition."""

    table: str
    key: str
    """Empty if the table has no partitions."""
    messages: int
    """Their number; 0 if a run or a person asks again."""
    sent_ms: int
    """Of the oldest message, since 1970."""
    received_ms: int
    """When the item was made, since 1970."""


Content = Mapping[str, Item] | frozenset[int]
"""Of an object: its items by name. Of a note: the numbers of the object's items that are done."""


@dataclass(frozen=True)
class InboxLook:
    """One look into the inbox.

    Objects of another version are counted, not read.
    """

    items: Mapping[str, Item]
    """By name: their object's, or as in PART."""
    objects: int
    """Includes notes."""
    finished: Sequence[str]
    """Objects whose items are all done."""
    needless: Sequence[str]
    """Notes of objects that are gone or finished."""
    crowds: Mapping[str, Mapping[str, frozenset[int]]]
    """The notes of each object with more than CROWD: item numbers, by the note's name."""
    unread: int = 0
    """Objects that were not read: more items may wait."""


@dataclass(frozen=True)
class Inbox:
    """The inbox of a staging prefix. All methods raise the storage's errors."""

    objects: Objects
    """Below ``<LAKEHOUSE_STAGING>/inbox``."""

    def put(self, items: Iterable[Item]) -> None:
        """Writes items durably; then messages may be deleted. What it wrote before an error costs at most more runs."""
        at_once(self._put, grouped(items))

    def _put(self, group: Sequence[Item]) -> None:
        """Writes one object. The items differ only in their keys."""
        name, fields = _name(group[0]), asdict(group[0])
        del fields["key"]
        self.objects.write(name, _json({**fields, "keys": [item.key for item in group]}))
        _cache(self.objects)[name] = _named(name, group)

    def waiting(self, tables: Collection[str] | None = None) -> Mapping[str, Item]:
        """Returns waiting items by name."""
        return self.look(tables).items

    def look(self, tables: Collection[str] | None = None, most: int | None = None) -> InboxLook:
        """Lists the inbox, and reads objects new to this process.

        most: the most objects to read, a table's oldest first.
        """
        # No item is lost: it counts as done only if a note that was read says that it is done. None is repeated: an
        # object is left out while one of its notes is unread, as that note may say that more is done.
        names, known = self.objects.names(), _cache(self.objects)
        for gone in set(known) - set(names):
            # None: another thread may have been first.
            known.pop(gone, None)
        wanted = [name for name in names if tables is None or name.partition("/")[0] in tables]
        at_once(self._read, [name for name in wanted if name not in known][:most])
        # This includes objects that a run has removed meanwhile.
        unread = [name for name in wanted if name not in known]
        unsure = {_object_of(name) for name in unread if name.endswith(DONE)}
        contents = {name: known[name] for name in wanted if name in known and name not in unsure}
        notes = _notes_of(contents)
        left = {name: _left(items, notes[name]) for name, items in contents.items() if not isinstance(items, frozenset)}
        # An object that can't be read is {}, and must stay.
        finished = [name for name, items in left.items() if contents[name] and not items]
        there = set(wanted).difference(finished)
        return InboxLook(
            items={name: item for of_object in left.values() for name, item in of_object.items()},
            objects=len(names),
            finished=finished,
            needless=[note for name, of_object in notes.items() if name not in there for note in of_object],
            crowds={name: found for name, found in notes.items() if name in there and len(found) > CROWD},
            unread=len(unread),
        )

    def _read(self, name: str) -> None:
        try:
            _cache(self.objects)[name] = _content(name, self.objects.read(name))
        except FileNotFoundError:  # a run removed it meanwhile
            return
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            # {}: it is not read again, and has no items.
            logger.warning("%s in the inbox can't be read, and stays until newer code can read it: %s", name, error)
            _cache(self.objects)[name] = {}

    def remove(self, names: Iterable[str]) -> None:
        """Removes exactly these items; missing ones are no error.

        A partly done object stays, with a note.
        """
        parts: dict[tuple[str, int], set[int]] = defaultdict(set)
        for name in names:
            part = PART.fullmatch(name)
            # The only item of an object has the object's name.
            of_object, at, of = (part["object"], int(part["at"]), int(part["of"])) if part else (name, 0, 1)
            parts[of_object, of].add(at)
        noted = [(name, done) for (name, of), done in parts.items() if len(done) < of]
        at_once(lambda one: self._note_done(*one), noted)
        self.objects.remove(sorted(name for (name, of), done in parts.items() if len(done) == of))

    def _note_done(self, name: str, done: Collection[int]) -> str:
        """Writes a note about an object; returns the note's name. The same items give the same name."""
        said = sorted(done)
        note = f"{name}.{hashlib.sha256(repr(said).encode()).hexdigest()[:12]}{DONE}"
        self.objects.write(note, _json({"done": said}))
        return note

    def tidy(self, found: InboxLook) -> None:
        """Removes useless objects, and merges crowds of notes; after a crash, the next call goes on."""
        # Before their notes: an object without notes requests all its items.
        self.objects.remove(found.finished)
        needless = list(found.needless)
        for name, notes in found.crowds.items():
            whole = self._note_done(name, frozenset().union(*notes.values()))
            needless += notes.keys() - {whole}
        self.objects.remove(needless)


def inbox_at(properties: Mapping[str, str], staging: str) -> Inbox:
    """Returns the inbox of a staging prefix. Raises UnknownStorage."""
    return Inbox(objects_at(properties, place_of(staging).child("inbox")))


def grouped(items: Iterable[Item]) -> list[list[Item]]:
    """Returns the items of each object to write: those of one table with the same numbers and times of messages.

    One object for each partition of a long range could not be written within a tick.
    """
    found: dict[tuple[Any, ...], list[Item]] = defaultdict(list)
    for item in items:
        found[item.table, item.messages, item.sent_ms, item.received_ms].append(item)
    return list(found.values())


def _name(item: Item) -> str:
    """Returns a unique name: a run covers objects by name, and must not cover later ones."""
    of_key = hashlib.sha256(item.key.encode()).hexdigest()[:8]
    return f"{item.table}/{item.received_ms:013d}-{of_key}-{uuid4().hex[:12]}.json"


def _named(name: str, group: Sequence[Item]) -> Mapping[str, Item]:
    if len(group) == 1:
        return {name: group[0]}
    return {f"{name}#{at}/{len(group)}": item for at, item in enumerate(group)}


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, **fields}).encode()


def _content(name: str, content: bytes) -> Content:
    """Parses an object or a note. Raises ValueError, TypeError, KeyError or AttributeError."""
    fields = dict(json.loads(content))
    if (version := fields.pop("version")) != VERSION:
        raise ValueError(f"it has version {version!r}, but this code reads version {VERSION}")
    if name.endswith(DONE):
        return frozenset(map(int, fields["done"]))
    if not isinstance(keys := fields.pop("keys"), list):
        raise TypeError(f"expected a list of keys, found {keys!r}")
    group = [Item(key=key, **fields) for key in keys]
    if wrong := next((item for item in group if not _is_sound(item)), None):
        raise TypeError(f"expected texts and whole numbers in the range of times, found {wrong}")
    return _named(name, group)


def _is_sound(item: Item) -> bool:
    """A dataclass takes any type, and one bad object would stop all."""
    numbers = (item.messages, item.sent_ms, item.received_ms)
    texts = (item.table, item.key)
    return all(type(n) is int and 0 <= n <= LATEST_MS for n in numbers) and all(type(t) is str for t in texts)


def _notes_of(contents: Mapping[str, Content]) -> defaultdict[str, dict[str, frozenset[int]]]:
    """Returns the notes of each object, by their names."""
    notes: defaultdict[str, dict[str, frozenset[int]]] = defaultdict(dict)
    for name, done in contents.items():
        if isinstance(done, frozenset):
            notes[_object_of(name)][name] = done
    return notes


def _object_of(note: str) -> str:
    return note.removesuffix(DONE).rpartition(".")[0]


def _left(items: Mapping[str, Item], notes: Mapping[str, frozenset[int]]) -> Mapping[str, Item]:
    done = frozenset().union(*notes.values())
    return {name: item for at, (name, item) in enumerate(items.items()) if at not in done}


@lru_cache(maxsize=16)  # inboxes: a process has one, tests have many
def _cache(objects: Objects) -> dict[str, Content]:
    """Returns what this process has read, by object name: the same dict for the same inbox."""
    return {}


@dataclass(frozen=True)
class PartitionMessages:
    """What waits for one partition."""

    names: tuple[str, ...]
    """The names of the inbox items."""
    messages: int
    sent_ms: int
    """Of the oldest message."""


@dataclass(frozen=True)
class RunMessages:
    """A run's part of the inbox."""

    table: str
    token: str
    keys: tuple[str, ...]
    found: Mapping[str, PartitionMessages]
    """Without partitions for which nothing waited."""
    snapshot_id: int | None
    """The table's head when the plan was made, if any."""
    noted_ms: int
    """When the plan was made, since 1970."""

    def names(self) -> Mapping[str, frozenset[str]]:
        """Returns item names by partition."""
        return {key: frozenset(self.found[key].names if key in self.found else ()) for key in self.keys}


@dataclass(frozen=True)
class Failed(Durable):
    """Why a run failed."""

    run_id: str
    keys: tuple[str, ...]
    """Partitions that the run blames."""
    reason: str
    published: tuple[str, ...] = ()
    """Partitions that the run had published."""


def waiting_for(inbox: Inbox, table: str, keys: Collection[str]) -> dict[str, PartitionMessages]:
    """Returns what waits for these partitions."""
    wanted = set(keys)
    return {key: found for (_, key), found in by_partition(inbox.waiting({table})).items() if key in wanted}


def by_partition(items: Mapping[str, Item]) -> dict[tuple[str, str], PartitionMessages]:
    """Returns what waits for each partition."""
    found: dict[tuple[str, str], dict[str, Item]] = defaultdict(dict)
    for name, item in items.items():
        found[item.table, item.key][name] = item
    return {
        partition: PartitionMessages(
            tuple(some), sum(i.messages for i in some.values()), min(i.sent_ms for i in some.values())
        )
        for partition, some in found.items()
    }


@dataclass
class RunInbox:
    """One run's part of the inbox."""

    inbox: Inbox
    covers: RunMessages
    keys_of: Callable[[str], Collection[str] | None]
    """Returns a run's partitions by token; None if unknown."""
    clock: Callable[[], float] = time.time
    _told: set[str] = field(default_factory=set)
    """Tokens that ask_again() has handled: each attempt to commit calls it."""

    def ask_again(self, tokens: Collection[str]) -> None:
        """Asks again for partitions that other runs published since the covers were noted.

        Call it before the commit, which replaces the rows of these runs, although they may have read newer input. If
        the storage raises, the run must not commit.
        """
        new = set(tokens) - self._told - {self.covers.token}
        # If a run's partitions are unknown, it may have published all of them.
        their_keys = {key for token in new for key in self.keys_of(token) or self.covers.keys}
        now_ms = round(self.clock() * 1000)
        asked = (key for key in self.covers.keys if key in their_keys)
        self.inbox.put(Item(self.covers.table, key, 0, now_ms, now_ms) for key in asked)
        self._told |= new

    def remove(self, keys: Iterable[str]) -> None:
        """Removes the items that the run covers of these published partitions, and no later ones.

        If the storage raises, the items that are left ask once more.
        """
        names = self.covers.names()
        self.inbox.remove(name for key in keys for name in names[key])

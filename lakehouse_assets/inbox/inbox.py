"""What messages asked for, durably, and what of it a run covers."""

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
"""The version of an object: what waits must outlive a deployment, so it has versions of its own."""
DONE = ".done"
"""The end of the name of an object that says which partitions of another one are done. Objects never change: two runs
may be done with parts of the same one at once."""
PART = re.compile(r"(?P<object>.+)#(?P<at>[0-9]+)/(?P<of>[0-9]+)", re.DOTALL)
"""The name of one of an object's many partitions: the object's own name, which of them it is, and of how many. Whoever
takes it for the name of an object, as older code does, finds no such object."""
LATEST_MS = 253_402_300_799_999
"""The end of the year 9999, the last one that Python's times have."""
CROWD = 100
"""The number of notes of one object beyond which they are made one."""


@dataclass(frozen=True)
class Item:
    """The messages that one tick received for one partition."""

    table: str
    key: str
    """The partition; "" without partitions."""
    messages: int
    """The number of messages."""
    sent_ms: int
    """The time when the oldest of them was sent, in milliseconds since 1970."""
    received_ms: int
    """The time when the oldest of them was taken from the queue, in milliseconds since 1970."""


Content = Mapping[str, Item] | frozenset[int]
"""The content of an object: the items that wait, by their names, or, in a note, the numbers of those that are done."""


@dataclass(frozen=True)
class InboxLook:
    """The result of one look into the inbox.

    What another version of the code wrote counts as an object, and for nothing else until that version is back.
    """

    items: Mapping[str, Item]
    """The items that wait, by their names: an object's own, or that of one of its many partitions."""
    objects: int
    """The number of objects of all tables, whatever they say; notes count."""
    finished: Sequence[str]
    """The objects all of whose many partitions are done."""
    needless: Sequence[str]
    """The notes whose objects are gone, or go now."""
    crowds: Mapping[str, Mapping[str, frozenset[int]]]
    """The notes of each object that has more than CROWD of them."""
    unread: int = 0
    """How many objects were not read, so that more may wait than ``items``."""


@dataclass(frozen=True)
class Inbox:
    """The inbox of one staging prefix."""

    objects: Objects
    """The objects below ``<LAKEHOUSE_STAGING>/inbox``."""

    def put(self, items: Iterable[Item]) -> None:
        """Writes items durably: when this returns, the messages may go.

        Raises what the storage raises; what is there by then asks for its partition once more than needed, which does
        no harm.
        """
        at_once(self._put, grouped(items))

    def _put(self, group: Sequence[Item]) -> None:
        """Writes one object, with one group of grouped()."""
        name, fields = _name(group[0]), asdict(group[0])
        del fields["key"]
        self.objects.write(name, _json({**fields, "keys": [item.key for item in group]}))
        _known(self.objects)[name] = _named(name, group)

    def waiting(self, tables: Collection[str] | None = None) -> Mapping[str, Item]:
        """Returns all items by their names, or those of some tables. Raises what the storage raises."""
        return self.look(tables).items

    def look(self, tables: Collection[str] | None = None, most: int | None = None) -> InboxLook:
        """Lists the inbox, of all tables or of some, and reads what is new.

        A process reads an object once, and keeps it in memory while it is there. most: how many it reads at most, the
        oldest of a table first; None: all. Raises what the storage raises.
        """
        names, known = self.objects.names(), _known(self.objects)
        for gone in set(known) - set(names):
            known.pop(gone, None)  # another thread may have been first
        wanted = [name for name in names if tables is None or name.partition("/")[0] in tables]
        at_once(self._read, [name for name in wanted if name not in known][:most])
        unread = [name for name in wanted if name not in known]  # also what went meanwhile
        unsure = {_object_of(name) for name in unread if name.endswith(DONE)}  # of which a note may say more
        said = {name: known[name] for name in wanted if name in known and name not in unsure}
        notes: dict[str, dict[str, frozenset[int]]] = defaultdict(dict)
        for name, done in said.items():
            if isinstance(done, frozenset):
                notes[_object_of(name)][name] = done
        left = {name: _left(items, notes[name]) for name, items in said.items() if not isinstance(items, frozenset)}
        finished = [name for name, items in left.items() if said[name] and not items]
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
        """Keeps what an object says; an object that this version can't read says nothing."""
        try:
            _known(self.objects)[name] = _content(name, self.objects.read(name))
        except FileNotFoundError:  # a run has done it meanwhile
            return
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            logger.warning("%s in the inbox can't be read, and waits for code that can: %s", name, error)
            _known(self.objects)[name] = {}

    def remove(self, names: Iterable[str]) -> None:
        """Removes exactly these items; what is not there any more is no error.

        An object of which other partitions are left stays, with a note of what is done. Raises what the storage raises.
        """
        parts: dict[tuple[str, int], set[int]] = defaultdict(set)
        for name in names:
            part = PART.fullmatch(name)
            of_object, at, of = (part["object"], int(part["at"]), int(part["of"])) if part else (name, 0, 1)
            parts[of_object, of].add(at)
        noted = [(name, done) for (name, of), done in parts.items() if len(done) < of]
        at_once(lambda one: self._note_done(*one), noted)
        self.objects.remove(sorted(name for (name, of), done in parts.items() if len(done) == of))

    def _note_done(self, name: str, done: Collection[int]) -> str:
        """Notes which of an object's partitions are done. Returns the name of the note, the same for the same ones."""
        said = sorted(done)
        note = f"{name}.{hashlib.sha256(repr(said).encode()).hexdigest()[:12]}{DONE}"
        self.objects.write(note, _json({"done": said}))
        return note

    def tidy(self, found: InboxLook) -> None:
        """Removes what says nothing any more.

        A process that dies in the middle leaves at most as much for the next time. Raises what the storage raises.
        """
        self.objects.remove(found.finished)  # before its notes: without these it would ask for everything again
        needless = list(found.needless)
        for name, notes in found.crowds.items():
            whole = self._note_done(name, frozenset().union(*notes.values()))
            needless += notes.keys() - {whole}
        self.objects.remove(needless)


def inbox_at(properties: Mapping[str, str], staging: str) -> Inbox:
    """Returns the inbox below a staging prefix. properties: PyIceberg's, of the FileIO.

    Raises UnknownStorage for a prefix that is neither a folder nor on S3.
    """
    return Inbox(objects_at(properties, place_of(staging).child("inbox")))


def grouped(items: Iterable[Item]) -> list[list[Item]]:
    """Returns the items of each object, in order.

    An object is for the partitions of a table that the same messages ask for, such as a range.
    """
    found: dict[tuple[Any, ...], list[Item]] = defaultdict(list)
    for item in items:
        found[item.table, item.messages, item.sent_ms, item.received_ms].append(item)
    return list(found.values())


def _name(item: Item) -> str:
    """Returns a name that no other object ever has.

    A run covers objects by name, and must not cover what comes later.
    """
    of_key = hashlib.sha256(item.key.encode()).hexdigest()[:8]
    return f"{item.table}/{item.received_ms:013d}-{of_key}-{uuid4().hex[:12]}.json"


def _named(name: str, group: Sequence[Item]) -> Mapping[str, Item]:
    """Returns the items of an object by their names."""
    if len(group) == 1:
        return {name: group[0]}
    return {f"{name}#{at}/{len(group)}": item for at, item in enumerate(group)}


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, **fields}).encode()


def _content(name: str, content: bytes) -> Content:
    """Reads what an object says.

    Raises ValueError, TypeError, KeyError or AttributeError for what this version can't read.
    """
    fields = dict(json.loads(content))
    if (version := fields.pop("version")) != VERSION:
        raise ValueError(f"it is of version {version!r}, this code reads version {VERSION}")
    if name.endswith(DONE):
        return frozenset(map(int, fields["done"]))
    if not isinstance(keys := fields.pop("keys"), list):
        raise TypeError(f"expected a list of keys, found {keys!r}")
    group = [Item(key=key, **fields) for key in keys]
    if wrong := next((item for item in group if not _is_sound(item)), None):
        raise TypeError(f"expected texts and whole numbers that can be times, found {wrong}")
    return _named(name, group)


def _is_sound(item: Item) -> bool:
    """Says whether the fields have their types: a dataclass takes anything, and one wrong object would stop all."""
    numbers = (item.messages, item.sent_ms, item.received_ms)
    texts = (item.table, item.key)
    return all(type(n) is int and 0 <= n <= LATEST_MS for n in numbers) and all(type(t) is str for t in texts)


def _object_of(note: str) -> str:
    """Returns the name of the object whose partitions a note is about."""
    return note.removesuffix(DONE).rpartition(".")[0]


def _left(items: Mapping[str, Item], notes: Mapping[str, frozenset[int]]) -> Mapping[str, Item]:
    """Returns those of an object's items that no note says are done."""
    done = frozenset().union(*notes.values())
    return {name: item for at, (name, item) in enumerate(items.items()) if at not in done}


@lru_cache(maxsize=16)  # a process has one; tests have many
def _known(objects: Objects) -> dict[str, Content]:
    """Returns the memory of an inbox: what its objects say, by their names, as far as this process has read them."""
    return {}


@dataclass(frozen=True)
class PartitionMessages:
    """The items that waited for one partition."""

    names: tuple[str, ...]
    """The names of the inbox objects."""
    messages: int
    """The number of messages that these stand for."""
    sent_ms: int
    """The time when the oldest message was sent, in milliseconds since 1970."""


@dataclass(frozen=True)
class RunMessages:
    """The part of the inbox that one run is for."""

    table: str
    token: str
    keys: tuple[str, ...]
    """The run's partitions; "" without partitions."""
    found: Mapping[str, PartitionMessages]
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


def waiting_for(inbox: Inbox, table: str, keys: Collection[str]) -> dict[str, PartitionMessages]:
    """Returns what waits in the inbox for these partitions of a table, by partition; none where nothing does."""
    wanted = set(keys)
    return {key: found for (_, key), found in by_partition(inbox.waiting({table})).items() if key in wanted}


def by_partition(items: Mapping[str, Item]) -> dict[tuple[str, str], PartitionMessages]:
    """Returns what waits for each partition, by its table and key. items: by name."""
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
    """One run's part in the inbox."""

    inbox: Inbox
    covers: RunMessages
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

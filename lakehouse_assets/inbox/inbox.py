"""The inbox: a small object on the staging prefix for each partition that messages ask for, until a run has done it.
What is put there is the sensor's; which of it a run is for is in covers.py."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from uuid import uuid4

from lakehouse_assets.storage.objects import Objects, objects_at
from lakehouse_assets.storage.place import place_of
from lakehouse_assets.storage.raw_s3 import at_once

logger = logging.getLogger(__name__)
VERSION = 1
"""Of an item: what waits must outlive a deployment, so it has a version of its own."""
KEPT = 50_000
"""Items in memory: an object never changes once it is there, so a process reads it once."""


@dataclass(frozen=True)
class Item:
    """What one tick received for one partition. key: "" without partitions. messages: how many. sent_ms, received_ms:
    when the oldest of them was sent, and taken from the queue, milliseconds since 1970."""

    table: str
    key: str
    messages: int
    sent_ms: int
    received_ms: int


@dataclass(frozen=True)
class Inbox:
    """objects: below ``<LAKEHOUSE_STAGING>/inbox``."""

    objects: Objects

    def put(self, items: Iterable[Item]) -> None:
        """Durably: when this returns, the messages may go. Raises what the storage raises; what is there by then asks
        for its partition once more than needed, which does no harm."""
        named = [(_name(item), json.dumps({"version": VERSION, **asdict(item)}).encode()) for item in items]
        at_once(lambda both: self.objects.write(*both), named)

    def waiting(self, tables: Collection[str] | None = None) -> dict[str, Item]:
        """All items by their names, or those of some tables. What another version of the code wrote counts for nothing
        until that version is back. Raises what the storage raises."""
        names = [name for name in self.objects.names() if tables is None or name.partition("/")[0] in tables]
        found = at_once(lambda name: _read(self.objects, name), names)
        return {name: item for name, item in zip(names, found, strict=True) if item is not None}

    def remove(self, names: Iterable[str]) -> None:
        """Exactly these; what is not there any more is no error."""
        self.objects.remove(sorted(names))


def inbox_at(properties: Mapping[str, str], staging: str) -> Inbox:
    """The inbox below a staging prefix. properties: PyIceberg's, of the FileIO. Raises UnknownStorage for a prefix that
    is neither a folder nor on S3."""
    return Inbox(objects_at(properties, place_of(staging).child("inbox")))


def _name(item: Item) -> str:
    """A name of its own for each object: what a run covers is named, and what comes later never has a name of it."""
    of_key = hashlib.sha256(item.key.encode()).hexdigest()[:8]
    return f"{item.table}/{item.received_ms:013d}-{of_key}-{uuid4().hex[:12]}.json"


@lru_cache(maxsize=KEPT)
def _item(objects: Objects, name: str) -> Item | None:
    """None for one that this version can't read. Raises FileNotFoundError, which is not kept in memory."""
    try:
        fields = dict(json.loads(objects.read(name)))
        if (version := fields.pop("version")) != VERSION:
            raise ValueError(f"it is of version {version!r}, this code reads version {VERSION}")
        return Item(**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("%s in the inbox can't be read, and waits for code that can: %s", name, error)
        return None


def _read(objects: Objects, name: str) -> Item | None:
    try:
        return _item(objects, name)
    except FileNotFoundError:  # a run has done it meanwhile
        return None

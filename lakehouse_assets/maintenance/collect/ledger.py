"""Records each file taken from a table before it moves. Ordinals are indexes of ``Batch.entries``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from lakehouse_assets.errors import ForeignVersion
from lakehouse_assets.maintenance.collect.listing import Listed
from lakehouse_assets.storage.objects import Objects, at_once
from lakehouse_assets.storage.place import Place, place_of
from lakehouse_assets.wire.work import Durable

INTENT, TAKEN, RESTORED, PURGED = "intent.jsonl", "taken.json", "restored-", "purged.json"
"""The names of a batch's records; a unique suffix follows RESTORED."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A table that files were taken from."""

    identifier: str
    uuid: str
    """Another table may get the name later."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a batch."""

    location: str
    size: int
    modified_ms: int
    etag: str
    why: str
    since_ms: int
    """When it was first seen unneeded."""
    held: str = ""
    """Its location in the trash; in a versioned bucket ``location``."""
    version: str | None = None

    @classmethod
    def of(cls, file: Listed, why: str, since_ms: int) -> Entry:
        """Returns the entry of a file not yet in the trash."""
        return cls(*file.row, why, since_ms)

    @property
    def place(self) -> Place:
        """Its place in the table. Raises UnknownStorage."""
        return place_of(self.location)

    @property
    def held_place(self) -> Place:
        """Its place in the trash. Raises UnknownStorage if ``held`` is empty."""
        return place_of(self.held)


class Record(Durable):
    """Ignores unknown fields: other versions' records stay readable."""

    __pydantic_config__ = {"extra": "ignore"}  # noqa: RUF012 (as pydantic reads it)


R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Batch(Record):
    """Files that went into the trash together."""

    id: str
    """Begins with ``at``, so that ids sort by time."""
    owner: Owner
    run: str
    at: datetime
    until: datetime
    """The batch is kept until then. Both times are by the storage's clock."""
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Taken(Record):
    """A batch was taken, except some files."""

    kept: dict[int, tuple[str, str]]
    """Location and reason of each file that stayed, by ordinal."""


@dataclass(frozen=True)
class Restored(Record):
    """Files of a batch were restored."""

    restored: tuple[int, ...]


@dataclass(frozen=True)
class Purged(Record):
    """A batch was deleted from the trash."""

    at: datetime
    kept: dict[int, str]
    """Why files could not be deleted, by ordinal."""


@dataclass(frozen=True)
class Recorded:
    """A batch and its later records."""

    batch: Batch
    kept: frozenset[int] = frozenset()
    """Files that stayed, according to the run."""
    restored: frozenset[int] = frozenset()
    is_purged: bool = False

    def held(self) -> list[int]:
        """Returns the ordinals of files that may be in the trash.

        Includes ``kept``, as a killed or overlapped run may have recorded it wrongly.
        """
        return [] if self.is_purged else [n for n in range(len(self.batch.entries)) if n not in self.restored]

    def taken(self) -> list[int]:
        """Returns the ordinals of files surely in the trash."""
        return [n for n in self.held() if n not in self.kept]

    def left(self) -> list[int]:
        """Returns the ordinals of files of which the trash surely has something left.

        Includes restored files: S3 restores a copy.
        """
        return [n for n in range(len(self.batch.entries)) if n not in self.kept]


@dataclass(frozen=True)
class Ledger:
    """The ledger of one table: a folder by batch, an object by event."""

    objects: Objects

    def begin(self, batch: Batch) -> None:
        """Durably records the files to take."""
        head = batch.to_fields()
        lines = [head, *head.pop("entries")]
        self.objects.write(f"{batch.id}/{INTENT}", "".join(f"{json.dumps(line)}\n" for line in lines).encode())

    def record(self, batch: Batch, name: str, record: Record) -> None:
        """Durably adds a record to a batch. name: TAKEN, PURGED, or RESTORED with a unique suffix."""
        self.objects.write(f"{batch.id}/{name}", json.dumps(record.to_fields(), indent=1).encode())

    def forget(self, batch: Batch) -> None:
        """Deletes a batch's records."""
        self.objects.delete(batch.id)

    def read(self) -> list[Recorded]:
        """Returns all batches, oldest first. Raises ForeignVersion and the storage's errors."""
        return at_once(lambda found: self._read(*found), self._begun())

    def last(self) -> Batch | None:
        """Returns the newest batch. Raises as read()."""
        begun = self._begun()
        return self._parsed(f"{begun[-1][0]}/{INTENT}", Batch) if begun else None

    def unfinished(self) -> list[Recorded]:
        """Returns the batches whose runs have not recorded the result: they were killed, or still work."""
        begun = [(folder, files) for folder, files in self._begun() if TAKEN not in files]
        return at_once(lambda found: self._read(*found), begun)

    def _begun(self) -> list[tuple[str, list[str]]]:
        """Returns each batch's folder with the names of its records, oldest first."""
        names: dict[str, list[str]] = {}
        for name in self.objects.names():
            folder, _, file = name.partition("/")
            names.setdefault(folder, []).append(file)
        return [(folder, files) for folder, files in sorted(names.items()) if INTENT in files]

    def _read(self, folder: str, files: Sequence[str]) -> Recorded:
        taken = [self._parsed(f"{folder}/{file}", Taken) for file in files if file == TAKEN]
        back = [self._parsed(f"{folder}/{file}", Restored) for file in files if file.startswith(RESTORED)]
        return Recorded(
            self._parsed(f"{folder}/{INTENT}", Batch),
            frozenset(n for record in taken for n in record.kept),
            frozenset(n for record in back for n in record.restored),
            PURGED in files,
        )

    def _parsed(self, name: str, model: type[R]) -> R:
        text = self.objects.read(name).decode()
        try:
            # An intent has a line for the batch and one for each entry.
            # pydantic's JSON parser refuses text that is not UTF-8; names of local files may not be.
            head, *entries = map(json.loads, text.splitlines() if name.endswith(INTENT) else [text])
            return model.from_json({**head, "entries": entries} if entries else head)
        except (ValueError, TypeError) as error:
            raise ForeignVersion(
                f"the collector's ledger has {name}, which can't be read ({error}): until it can be read, nothing is "
                "moved to the trash, brought back or purged; run the version of this code that wrote it, or restore "
                "the object"
            ) from error

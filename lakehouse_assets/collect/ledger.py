"""Records each file that was taken from a table: why, since when, by which run, where it is, how long it can come back.

This is written before anything moves.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from lakehouse_assets.collect.listing import Listed
from lakehouse_assets.errors import ForeignVersion
from lakehouse_assets.storage.objects import Objects, at_once
from lakehouse_assets.storage.place import Place, place_of
from lakehouse_assets.wire.work import Durable

INTENT, TAKEN, RESTORED, PURGED = "intent.jsonl", "taken.json", "restored-", "purged.json"


@dataclass(frozen=True, slots=True)
class Owner:
    """The table that files were taken from."""

    identifier: str
    uuid: str
    """The UUID in its metadata: another table may get the name later."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a batch, as it was listed."""

    location: str
    """The file's location in the table."""
    size: int
    modified_ms: int
    etag: str
    why: str
    since_ms: int
    """The time when it was first seen without need."""
    held: str = ""
    """Its location in the trash; in a versioned bucket the same as in the table; "" as long as it has none."""
    version: str | None = None
    """The version that the trash has; None unless the bucket is versioned."""

    @classmethod
    def of(cls, file: Listed, why: str, since_ms: int) -> Entry:
        """Returns the entry of a file that is not in the trash yet. why, since_ms: as the entry has them."""
        return cls(*file.row, why, since_ms)

    @property
    def place(self) -> Place:
        """The place that ``location`` means. Raises UnknownStorage."""
        return place_of(self.location)

    @property
    def held_place(self) -> Place:
        """The place that ``held`` means. Raises UnknownStorage while ``held`` is not filled in."""
        return place_of(self.held)


class Record(Durable):
    """The base of the ledger's records: what another build wrote besides is no reason to give a file up."""

    __pydantic_config__ = {"extra": "ignore"}  # noqa: RUF012 (as pydantic reads it)


R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Batch(Record):
    """Files that went into the trash together."""

    id: str
    owner: Owner
    run: str
    at: datetime
    """The time when they were taken, by the storage's clock."""
    until: datetime
    """The time until which they can be brought back, by the storage's clock."""
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Taken(Record):
    """Says that all files of a batch were taken but those kept."""

    kept: dict[int, tuple[str, str]]
    """The location of each file that stayed, and the reason, by its ordinal."""


@dataclass(frozen=True)
class Restored(Record):
    """Says that files of a batch came back."""

    restored: tuple[int, ...]
    """Their ordinals."""


@dataclass(frozen=True)
class Purged(Record):
    """Says that the trash has nothing of a batch any more."""

    at: datetime
    kept: dict[int, str]
    """The files that could not be deleted, by ordinal, with the reason."""


@dataclass(frozen=True)
class Recorded:
    """A batch and what became of it."""

    batch: Batch
    kept: frozenset[int] = frozenset()
    """The ordinals of the files that stayed where they were, as far as the run could say."""
    restored: frozenset[int] = frozenset()
    """The ordinals of the files that came back."""
    is_purged: bool = False

    def held(self) -> list[int]:
        """Returns the ordinals of the files that may be in the trash.

        Files recorded as kept are among them and are checked again: a run that was killed, or that looked while another
        one was at work, may have recorded them wrongly, and that is not enough to give a file up.
        """
        return [] if self.is_purged else [n for n in range(len(self.batch.entries)) if n not in self.restored]

    def taken(self) -> list[int]:
        """Returns the ordinals of the files that are in the trash by all that is recorded."""
        return [n for n in self.held() if n not in self.kept]


@dataclass(frozen=True)
class Ledger:
    """The ledger of one table.

    It has a folder for each batch, and in it an object for each thing that happened to the batch.
    """

    objects: Objects

    def begin(self, batch: Batch) -> None:
        """Writes durably what is about to be taken: the first line describes the batch, each further one a file."""
        head = batch.to_fields()
        lines = [head, *head.pop("entries")]
        self.objects.write(f"{batch.id}/{INTENT}", "".join(f"{json.dumps(line)}\n" for line in lines).encode())

    def record(self, batch: Batch, name: str, record: Record) -> None:
        """Records what became of a batch. name: TAKEN, PURGED, or RESTORED with a text that makes it unique."""
        self.objects.write(f"{batch.id}/{name}", json.dumps(record.to_fields(), indent=1).encode())

    def forget(self, batch: Batch) -> None:
        """Removes the records of a batch, long after it was purged."""
        self.objects.delete(batch.id)

    def read(self) -> list[Recorded]:
        """Returns all batches, the oldest first. Raises ForeignVersion, and what the storage raises."""
        return at_once(lambda found: self._read(*found), self._begun())

    def last(self) -> Batch | None:
        """Returns the newest batch; None if there is none. Raises as read()."""
        begun = self._begun()
        return self._parsed(f"{begun[-1][0]}/{INTENT}", Batch) if begun else None

    def unfinished(self) -> list[Recorded]:
        """Returns the batches of runs that ended before they could say what they took."""
        begun = [(folder, files) for folder, files in self._begun() if TAKEN not in files]
        return at_once(lambda found: self._read(*found), begun)

    def _begun(self) -> list[tuple[str, list[str]]]:
        """Returns the folders of the batches, the oldest first, each with the names of its objects."""
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
            # pydantic's own parser of JSON takes no text that is no UTF-8, as names of local files may be.
            head, *entries = map(json.loads, text.splitlines() if name.endswith(INTENT) else [text])
            return model.from_json({**head, "entries": entries} if entries else head)
        except (ValueError, TypeError) as error:
            raise ForeignVersion(
                f"the collector's ledger has {name}, which can't be read ({error}): nothing is put into the trash, "
                "brought back or purged before it can be; run the version of this code that wrote it, or restore the "
                "object"
            ) from error

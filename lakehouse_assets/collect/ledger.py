"""Records each file that was taken from a table: why, since when, by which run, where it is, how long it can come back.

This is written before anything moves. Nothing of the lake is moved here; what records mean for files is in trash.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from lakehouse_assets.errors import ForeignVersion
from lakehouse_assets.protocol.versions import with_version, without_version
from lakehouse_assets.storage.objects import Objects
from lakehouse_assets.storage.place import Place, StorageKind, place_of
from resources.aws import READERS

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
    held: str
    """Its location in the trash; in a versioned bucket the same as in the table."""
    version: str | None = None
    """The version that the trash has; None unless the bucket is versioned."""

    @property
    def place(self) -> Place:
        """The place that ``location`` means. Raises UnknownStorage."""
        return place_of(self.location)

    @property
    def held_place(self) -> Place:
        """The place that ``held`` means. Raises UnknownStorage while ``held`` is not filled in."""
        return place_of(self.held)


@dataclass(frozen=True)
class Batch:
    """Files that went into the trash together."""

    id: str
    owner: Owner
    run: str
    at_ms: int
    """The time when they were taken, by the storage's clock."""
    until_ms: int
    """The time until which they can be brought back, by the storage's clock."""
    entries: tuple[Entry, ...]

    @property
    def kind(self) -> StorageKind:
        """The kind of the storage that all its files are in."""
        return self.entries[0].place.kind

    @property
    def has_versions(self) -> bool:
        """Whether its files stayed where they were, as versions below delete markers."""
        return any(entry.version for entry in self.entries)


@dataclass(frozen=True)
class Recorded:
    """A batch and what became of it."""

    batch: Batch
    kept: Mapping[int, str] | None = None
    """The ordinals of files that stayed where they were, with the reason; None if the run ended before it could say."""
    restored: frozenset[int] = frozenset()
    """The ordinals of the files that came back."""
    is_purged: bool = False

    def held(self) -> list[int]:
        """Returns the ordinals of the files that may be in the trash.

        Files recorded as kept are among them and are checked again: a run that was killed, or that looked while another
        one was at work, may have recorded them wrongly, and that is not enough to give a file up.
        """
        return [] if self.is_purged else [n for n in range(len(self.batch.entries)) if n not in self.restored]


@dataclass(frozen=True)
class Ledger:
    """The ledger of one table.

    It has a folder for each batch, and in it an object for each thing that happened to the batch.
    """

    objects: Objects

    def begin(self, batch: Batch) -> None:
        """Writes durably what is about to be taken: the first line describes the batch, each further one a file."""
        head = {**asdict(batch), "at": _text(batch.at_ms), "until": _text(batch.until_ms)}
        del head["entries"]
        lines = [with_version(head), *map(asdict, batch.entries)]
        self.objects.write(f"{batch.id}/{INTENT}", "".join(f"{json.dumps(line)}\n" for line in lines).encode())

    def taken(self, batch: Batch, kept: Mapping[int, str], how: str) -> None:
        """Records that all files of the batch were taken but those kept.

        kept: by ordinal, the reason why the file stayed. how: the way each file was compared right before it was taken,
        or that all this was found out afterwards.
        """
        fields = {"kept": {n: [batch.entries[n].location, why] for n, why in kept.items()}, "how": how}
        self._tell(f"{batch.id}/{TAKEN}", fields)

    def restored(self, batch: Batch, ordinals: Iterable[int], name: str) -> None:
        """Records that these files came back.

        name: a text that no other such record of the batch has in its name.
        """
        self._tell(f"{batch.id}/{RESTORED}{name}.json", {"restored": sorted(ordinals)})

    def purged(self, batch: Batch, at_ms: int, kept: Mapping[int, str]) -> None:
        """Records that the trash has nothing of the batch any more but the files kept, which could not be deleted."""
        self._tell(f"{batch.id}/{PURGED}", {"at": _text(at_ms), "kept": kept})

    def forget(self, batch: Batch) -> None:
        """Removes the records of a batch, long after it was purged."""
        self.objects.delete(batch.id)

    def read(self) -> list[Recorded]:
        """Returns all batches, the oldest first. Raises ForeignVersion, and what the storage raises."""
        return self._read_all(self._begun())

    def last(self) -> Batch | None:
        """Returns the newest batch; None if there is none. Raises as read()."""
        begun = self._begun()
        return self._batch(begun[-1][0]) if begun else None

    def unfinished(self) -> list[Recorded]:
        """Returns the batches of runs that ended before they could say what they took."""
        return self._read_all((folder, files) for folder, files in self._begun() if TAKEN not in files)

    def _begun(self) -> list[tuple[str, list[str]]]:
        """Returns the folders of the batches, the oldest first, each with the names of its objects."""
        names: dict[str, list[str]] = {}
        for name in self.objects.names():
            folder, _, file = name.partition("/")
            names.setdefault(folder, []).append(file)
        return [(folder, files) for folder, files in sorted(names.items()) if INTENT in files]

    def _read_all(self, begun: Iterable[tuple[str, list[str]]]) -> list[Recorded]:
        with ThreadPoolExecutor(READERS, thread_name_prefix="ledger") as pool:
            return list(pool.map(lambda found: self._read(*found), begun))

    def _read(self, folder: str, files: Sequence[str]) -> Recorded:
        kept: dict[int, str] | None = None
        if TAKEN in files:
            kept = {int(n): why for n, (_, why) in self._told(f"{folder}/{TAKEN}")["kept"].items()}
        back = [self._told(f"{folder}/{file}")["restored"] for file in files if file.startswith(RESTORED)]
        restored = frozenset(n for ordinals in back for n in ordinals)
        return Recorded(self._batch(folder), kept, restored, PURGED in files)

    def _batch(self, folder: str) -> Batch:
        name = f"{folder}/{INTENT}"
        head, *lines = self.objects.read(name).decode().splitlines()
        fields = _known(name, head)
        entries = tuple(Entry(**json.loads(line)) for line in lines)
        times = {"at_ms": fields["at_ms"], "until_ms": fields["until_ms"]}
        return Batch(fields["id"], Owner(**fields["owner"]), fields["run"], **times, entries=entries)

    def _tell(self, name: str, fields: Mapping[str, Any]) -> None:
        self.objects.write(name, json.dumps(with_version(fields), indent=1).encode())

    def _told(self, name: str) -> dict[str, Any]:
        return _known(name, self.objects.read(name).decode())


def _known(name: str, text: str) -> dict[str, Any]:
    try:
        return without_version(json.loads(text))
    except ValueError as error:
        raise ForeignVersion(
            f"the collector's ledger has {name}, which can't be read ({error}): nothing is put into the trash, brought "
            "back or purged before it can be; run the version of this code that wrote it, or restore the object"
        ) from error


def _text(milliseconds: int) -> str:
    """Returns a time as text for a person."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")

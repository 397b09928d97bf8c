"""What was taken from a table, file by file: why, since when, by which run, where it is, until when it can come back.
Written before anything moves. Nothing of the lake is moved here; what the records mean for files is in trash.py."""

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
from lakehouse_assets.storage.place import Kind, Place, place_of
from resources.aws import READERS

INTENT, TAKEN, RESTORED, PURGED = "intent.jsonl", "taken.json", "restored-", "purged.json"


@dataclass(frozen=True, slots=True)
class Owner:
    """The table that files were taken from. uuid: of its metadata, as its name may be given away."""

    identifier: str
    uuid: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a batch. location: where it was. held: where the trash has it; of a versioned bucket the same place,
    with the version. since_ms: first seen without need. The rest is as it was listed."""

    location: str
    size: int
    modified_ms: int
    etag: str
    why: str
    since_ms: int
    held: str
    version: str | None = None

    @property
    def place(self) -> Place:
        return place_of(self.location)

    @property
    def held_place(self) -> Place:
        return place_of(self.held)


@dataclass(frozen=True)
class Batch:
    """Files that went into the trash together. at_ms, until_ms: when, and how long they can be brought back, by the
    storage's clock."""

    id: str
    owner: Owner
    run: str
    at_ms: int
    until_ms: int
    entries: tuple[Entry, ...]

    @property
    def kind(self) -> Kind:
        """Of the storage that all its files are in."""
        return self.entries[0].place.kind

    @property
    def has_versions(self) -> bool:
        """Whether its files stayed where they are, as versions below delete markers."""
        return any(entry.version for entry in self.entries)


@dataclass(frozen=True)
class Recorded:
    """A batch and what became of it. kept: the ordinals of files that stayed where they were, with the reason; None:
    the run ended before it could say. restored: the ordinals of those that came back."""

    batch: Batch
    kept: Mapping[int, str] | None = None
    restored: frozenset[int] = frozenset()
    is_purged: bool = False

    def held(self) -> list[int]:
        """The ordinals of the files that may be in the trash. Those that a run kept are asked about again: the word of
        a run that was killed, or of one that looked while another was at work, is not enough to give a file up."""
        return [] if self.is_purged else [n for n in range(len(self.batch.entries)) if n not in self.restored]


@dataclass(frozen=True)
class Ledger:
    """The ledger of one table: a folder for each batch, in it an object for each thing that happened to it."""

    objects: Objects

    def begin(self, batch: Batch) -> None:
        """Write what is about to be taken, durably: the first line says of what, each further one is a file."""
        head = {**asdict(batch), "at": _text(batch.at_ms), "until": _text(batch.until_ms)}
        del head["entries"]
        lines = [with_version(head), *map(asdict, batch.entries)]
        self.objects.write(f"{batch.id}/{INTENT}", "".join(f"{json.dumps(line)}\n" for line in lines).encode())

    def taken(self, batch: Batch, kept: Mapping[int, str], how: str) -> None:
        """All were taken but those kept, with their reason. how: the file was compared right before."""
        fields = {"kept": {n: [batch.entries[n].location, why] for n, why in kept.items()}, "how": how}
        self._tell(f"{batch.id}/{TAKEN}", fields)

    def restored(self, batch: Batch, ordinals: Iterable[int], name: str) -> None:
        """These came back. name: no other telling of this batch has it."""
        self._tell(f"{batch.id}/{RESTORED}{name}.json", {"restored": sorted(ordinals)})

    def purged(self, batch: Batch, at_ms: int, kept: Mapping[int, str]) -> None:
        """The trash has nothing of it any more, but for what could not be deleted."""
        self._tell(f"{batch.id}/{PURGED}", {"at": _text(at_ms), "kept": kept})

    def forget(self, batch: Batch) -> None:
        """Remove what is written of a batch, long after it was purged."""
        self.objects.delete(batch.id)

    def read(self) -> list[Recorded]:
        """All batches, the oldest first. Raises ForeignVersion, and what the storage raises."""
        return self._read_all(self._begun())

    def last(self) -> Batch | None:
        """The newest batch. Raises as read()."""
        begun = self._begun()
        return self._batch(begun[-1][0]) if begun else None

    def unfinished(self) -> list[Recorded]:
        """The batches of runs that ended before they could say what they took."""
        return self._read_all((folder, files) for folder, files in self._begun() if TAKEN not in files)

    def _begun(self) -> list[tuple[str, list[str]]]:
        """By batch, its objects."""
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
    """For a person."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")

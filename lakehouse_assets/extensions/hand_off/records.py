"""A hand-off's records, objects on the staging prefix by which another process continues it, and its waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar
from uuid import UUID

from pyiceberg.schema import Schema

from lakehouse_assets.errors import ForeignVersion
from lakehouse_assets.storage.objects import Objects, at_once
from lakehouse_assets.wire.work import Durable

D = TypeVar("D", bound=Durable)


@dataclass(frozen=True)
class HandOffPlan(Durable):
    """What a run and its re-executions from failure hand off."""

    token: str
    """The first run in a chain of re-executions from failure."""
    made_at: datetime
    table: str
    """The source's identifier."""
    table_uuid: UUID
    snapshot_id: int
    sequence_number: int
    columns: str
    """The table's schema when the plan was made, as Iceberg's JSON."""
    partitioned_by: tuple[str, ...]
    location: str
    glue: str
    """The readers' view in Glue, as ``database.table``."""
    replicas: tuple[str, ...]

    @property
    def schema(self) -> Schema:
        """The columns to hand off."""
        return Schema.model_validate_json(self.columns)

    @property
    def database(self) -> str:
        """The name of the database in Glue."""
        return self.glue.partition(".")[0]

    @property
    def view(self) -> str:
        """The name of the readers' view, without its database."""
        return self.glue.partition(".")[2]


@dataclass(frozen=True)
class Version(Durable):
    """One attempt to write a plan's rows, recorded before its first file, so that each file can be removed one day."""

    name: str
    """The start time and a random part; the suffix of the Glue table's name."""
    token: str
    began_at: datetime
    location: str
    """``<location>/<name>``, which no other attempt writes to."""
    database: str
    table: str
    left_at: datetime | None = None
    """When a hand-off first saw that no reader gets this version; its retention starts then."""


@dataclass(frozen=True)
class HandedFile:
    """A file in storage."""

    rows: int
    size: int
    """In bytes."""
    footer: str
    """A hash of the footer, which describes the values of each part of the file: replicas are compared by it."""


@dataclass(frozen=True)
class Written(Durable):
    """A version's checked files."""

    name: str
    files: Mapping[str, HandedFile] = field(default_factory=dict)
    """By paths below the version's folder."""
    offered: bool = False
    """Whether readers may have got it (recorded before the switch). If so, it stays for its retention."""

    @property
    def rows(self) -> int:
        """The rows of all files."""
        return sum(file.rows for file in self.files.values())

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files.values())


@dataclass(frozen=True)
class Records:
    """A hand-off's records. All methods raise the storage's errors."""

    objects: Objects

    def plan(self, token: str) -> HandOffPlan | None:
        """Returns a run's plan, if any. Raises ForeignVersion."""
        return self._read(HandOffPlan, f"plans/{token}.json")

    def note_plan(self, plan: HandOffPlan) -> None:
        """Writes a plan."""
        self._write(f"plans/{plan.token}.json", plan)

    def versions(self) -> list[Version]:
        """Returns versions begun and not removed, oldest first. Raises ForeignVersion."""
        names = [name for name in self.objects.names() if name.startswith("versions/")]
        found = at_once(lambda name: self._read(Version, name), names)
        return sorted((one for one in found if one), key=lambda one: (one.began_at, one.name))

    def version(self, name: str) -> Version | None:
        """Returns a version, if recorded. Raises ForeignVersion."""
        return self._read(Version, f"versions/{name}.json")

    def note_version(self, version: Version) -> None:
        """Writes or replaces a record."""
        self._write(f"versions/{version.name}.json", version)

    def written(self, token: str) -> Written | None:
        """Returns the checked files, if recorded. Raises ForeignVersion."""
        return self._read(Written, f"written/{token}.json")

    def note_written(self, token: str, written: Written) -> None:
        """Records checked files."""
        self._write(f"written/{token}.json", written)

    def forget_written(self, token: str) -> None:
        """Undoes note_written(): a re-execution writes again."""
        self.objects.remove([f"written/{token}.json"])

    def forget(self, version: Version) -> None:
        """Deletes a removed version's record, and those of its plan unless another version has the same plan."""
        others = [one for one in self.versions() if one.token == version.token and one.name != version.name]
        # The version's own record goes last: if killed before, the next hand-off still finds the version.
        self.objects.remove([] if others else [f"written/{version.token}.json", f"plans/{version.token}.json"])
        self.objects.remove([f"versions/{version.name}.json"])

    def _read(self, kind: type[D], name: str) -> D | None:
        try:
            text = self.objects.read(name).decode()
        except FileNotFoundError:
            return None
        try:
            return kind.from_json(text)
        except ValueError as error:
            raise ForeignVersion(
                f"the hand-off's record {name} on the staging prefix can't be read by this code: {error}. Nothing was "
                "handed off. Run the code that wrote it, or delete the object and materialize again"
            ) from None

    def _write(self, name: str, record: Durable) -> None:
        self.objects.write(name, record.to_json().encode())


LONGEST_WAIT_S = 60.0


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Clock:
    """Tells the time, and waits."""

    now: Callable[[], datetime] = _utc_now
    """With a timezone."""
    sleep: Callable[[float], None] = time.sleep


def backoff(first: float = 1.0) -> Iterator[float]:
    """Yields the seconds to wait before each further try, without end; they double up to a minute."""
    while True:
        yield first
        first = min(first * 2, LONGEST_WAIT_S)

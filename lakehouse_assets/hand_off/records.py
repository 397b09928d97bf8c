"""What a hand-off records of its versions, and how long it waits."""

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
    """The plan of what a run hands off, decided once; its re-executions from failure read it."""

    token: str
    """The id of the first run in a chain of re-executions from failure."""
    made_at: datetime
    table: str
    """The source's identifier."""
    table_uuid: UUID
    snapshot_id: int
    sequence_number: int
    """The snapshot's, in its table."""
    columns: str
    """The table's schema when the plan was made, Iceberg's JSON."""
    partitioned_by: tuple[str, ...]
    location: str
    """The prefix below which each version has a path of its own."""
    glue: str
    """``database.table``, the name that readers use."""
    replicas: tuple[str, ...]
    """The prefixes to which S3 replicates ``location``."""

    @property
    def schema(self) -> Schema:
        """The columns that are handed off."""
        return Schema.model_validate_json(self.columns)

    @property
    def database(self) -> str:
        """The database in Glue."""
        return self.glue.partition(".")[0]

    @property
    def view(self) -> str:
        """The name of the view in that database."""
        return self.glue.partition(".")[2]


@dataclass(frozen=True)
class Version(Durable):
    """One attempt to write a plan's rows: noted before the first file, so that whatever it leaves can be found."""

    name: str
    """When it began and a random part: the folder's name, and the end of the name of its Glue table."""
    token: str
    """The plan's."""
    began_at: datetime
    location: str
    """The folder, ``<location>/<name>``: nobody else writes there, nor does another attempt of the same run."""
    database: str
    table: str
    """The name of its Glue table."""
    left_at: datetime | None = None
    """When a hand-off first saw that readers don't get it, or not any more: the time for which it is kept has begun."""


@dataclass(frozen=True)
class HandedFile:
    """A file as its storage has it."""

    rows: int
    """By its Parquet footer."""
    size: int
    """Bytes."""
    footer: str
    """A hash of the footer, which says where in the file each column of which rows lies."""


@dataclass(frozen=True)
class Written(Durable):
    """The files of a version that was written whole and checked."""

    name: str
    """The version's."""
    files: Mapping[str, HandedFile] = field(default_factory=dict)
    """The files, by their paths below the version's."""
    offered: bool = False
    """Whether readers may have had the version: noted before the view is switched. What they had goes by its time."""

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
    """The records of one hand-off. Every method raises what the storage raises."""

    objects: Objects

    def plan(self, token: str) -> HandOffPlan | None:
        """Reads the plan of a run; None where it has none. Raises ForeignVersion."""
        return self._read(HandOffPlan, f"plans/{token}.json")

    def note_plan(self, plan: HandOffPlan) -> None:
        """Writes a new plan."""
        self._write(f"plans/{plan.token}.json", plan)

    def versions(self) -> list[Version]:
        """Reads all versions that were begun and are not gone, the oldest first. Raises ForeignVersion."""
        names = [name for name in self.objects.names() if name.startswith("versions/")]
        found = at_once(lambda name: self._read(Version, name), names)
        return sorted((one for one in found if one), key=lambda one: (one.began_at, one.name))

    def version(self, name: str) -> Version | None:
        """Reads a version. Raises ForeignVersion."""
        return self._read(Version, f"versions/{name}.json")

    def note_version(self, version: Version) -> None:
        """Writes a version as it is now, over what was noted of it."""
        self._write(f"versions/{version.name}.json", version)

    def written(self, token: str) -> Written | None:
        """Reads what a run has written and checked. Raises ForeignVersion."""
        return self._read(Written, f"written/{token}.json")

    def note_written(self, token: str, written: Written) -> None:
        """Writes that a run has written and checked all rows."""
        self._write(f"written/{token}.json", written)

    def forget_written(self, token: str) -> None:
        """Deletes what note_written() wrote: a re-execution writes all rows anew."""
        self.objects.remove([f"written/{token}.json"])

    def forget(self, version: Version) -> None:
        """Deletes all records of a version that is gone, and its run's plan, unless another version has that."""
        others = [one for one in self.versions() if one.token == version.token and one.name != version.name]
        # The version's own record goes last: until then, whoever is killed in between is known by it.
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
                f"the hand-off's record {name} on the staging prefix is none that this code reads: {error}. Nothing "
                "was handed off. Run the code that wrote it, or delete the object and materialize anew"
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
    """Returns the time, with a timezone."""
    sleep: Callable[[float], None] = time.sleep
    """Waits for some seconds."""


def backoff(first: float = 1.0) -> Iterator[float]:
    """Yields how many seconds to wait, each time twice as long, at most a minute, without end."""
    while True:
        yield first
        first = min(first * 2, LONGEST_WAIT_S)

"""The one door out of the lake: what is due moves to its table's trash, comes back, or goes for good after its time.
How a kind of storage does that is in trash_local.py and trash_s3.py, what is written down of it in ledger.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from lakehouse_assets.collect.listing import Listed
from lakehouse_assets.collect.place import Place

RETENTION = timedelta(days=7)
"""How long a file can be brought back, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The table that files were taken from. uuid: of its metadata, as its name may be given away."""

    identifier: str
    uuid: str


@dataclass(frozen=True, slots=True)
class Due:
    """A file to be put into the trash. since_ms: when it was first seen without need, by the storage's clock."""

    listed: Listed
    why: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A file that stays where it is. reason: for a person."""

    place: Place
    reason: str


@dataclass(frozen=True)
class TrashReport:
    """files, size: what is in the trash now (bytes). kept: what was not taken, and why. until_ms: how long it can be
    brought back. how: how the storage compared each file right before it was taken."""

    files: int
    size: int
    kept: tuple[Kept, ...]
    until_ms: int
    how: str


@dataclass(frozen=True)
class Selection:
    """What to bring back of a table: everything, or what all conditions name. run: that put it into the trash.
    places: files, or folders with all that was below them."""

    run: str | None = None
    places: frozenset[Place] = frozenset()


@dataclass(frozen=True)
class RestoreReport:
    """restored: files that are back. there: that were back already, unchanged. lost: that can't come back, and why."""

    restored: int
    size: int
    there: int
    lost: tuple[Kept, ...]


@dataclass(frozen=True)
class PurgeReport:
    """What is gone for good. kept: what should have gone and did not, and why."""

    files: int
    size: int
    kept: tuple[Kept, ...]


@dataclass(frozen=True)
class Trash:
    """The trash of one table at one place."""

    owner: Owner

    @classmethod
    def for_location(
        cls,
        properties: Mapping[str, str],
        staging: str,
        owner: Owner,
        place: Place,
        retention: timedelta = RETENTION,
    ) -> Trash:
        """The trash for files below the place, by what its storage offers.

        properties: PyIceberg's, of a FileIO that may read and write both the table and the staging prefix.
        Raises StorageRefused where the storage has no way to take a file and give it back.
        """
        raise NotImplementedError

    def put(self, files: Iterable[Due], run: str) -> TrashReport:
        """Move the files to the trash that are still what was listed. run: who does it, for the ledger.

        Raises StorageRefused when the storage fails; what is in the trash by then is in the ledger.
        """
        raise NotImplementedError

    def restore(self, selection: Selection) -> RestoreReport:
        """Bring files back to where they were; what is there by now is never overwritten. Raises StorageRefused."""
        raise NotImplementedError

    def purge(self, now_ms: int) -> PurgeReport:
        """Delete for good what is past its time in the trash. now_ms: by storage_now(). Raises StorageRefused."""
        raise NotImplementedError

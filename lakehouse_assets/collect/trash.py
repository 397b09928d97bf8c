"""The one door out of the lake: what is due moves to its table's trash, comes back, or goes for good after its time.

How a kind of storage does that is in its trash_*.py, what is written down of it in ledger.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from uuid import uuid4

from lakehouse_assets.collect.bins import Bin, BinOf
from lakehouse_assets.collect.bins import Kept as Kept
from lakehouse_assets.collect.ledger import Batch, Entry, Ledger
from lakehouse_assets.collect.ledger import Owner as Owner
from lakehouse_assets.collect.listing import Listed, storage_now
from lakehouse_assets.collect.purge import PurgeReport as PurgeReport
from lakehouse_assets.collect.purge import purge
from lakehouse_assets.collect.refusals import refusals
from lakehouse_assets.collect.restore import RestoreReport as RestoreReport
from lakehouse_assets.collect.restore import TrashSelection as TrashSelection
from lakehouse_assets.collect.restore import restore
from lakehouse_assets.collect.settle import settle
from lakehouse_assets.storage.objects import objects_at
from lakehouse_assets.storage.place import Place, place_of

RETENTION = timedelta(days=7)
"""The time for which a file can be brought back, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Due:
    """A file to be put into the trash."""

    listed: Listed
    why: str
    since_ms: int
    """The time when it was first seen without need, by the storage's clock."""


@dataclass(frozen=True)
class TrashReport:
    """The result of putting files into the trash."""

    files: int
    """The number of files that were put into the trash."""
    size: int
    """Their size in bytes."""
    kept: tuple[Kept, ...]
    """The files that were not taken, each with the reason."""
    until_ms: int
    """The time until which the files can be brought back, by the storage's clock."""
    how: str
    """The way the storage compared each file right before it was taken."""


BATCH = 1000
"""The number of files that share one record of the ledger: what one DeleteObjects takes."""


@dataclass(frozen=True)
class Trash:
    """The trash of one table at one place."""

    owner: Owner
    place: Place
    ledger: Ledger
    bin: Bin
    """Takes files there now."""
    bin_of: BinOf
    """Finds the bin by which the files of a batch were taken."""
    retention: timedelta
    properties: Mapping[str, str]
    """PyIceberg's properties, as in for_location()."""
    staging: str
    """The staging prefix."""

    @classmethod
    def for_location(
        cls,
        properties: Mapping[str, str],
        staging: str,
        owner: Owner,
        place: Place,
        retention: timedelta = RETENTION,
    ) -> Trash:
        """Returns the trash for files below the place, by what its storage offers.

        properties: PyIceberg's, of a FileIO that may read and write both the table and the staging prefix. Raises
        StorageRefused where the storage has no way to take a file and give it back.
        """
        from lakehouse_assets.collect.storages import bins  # botocore is slow to import

        folder = place_of(staging).child(f"collect/{owner.uuid}")
        with refusals(f"table {owner.identifier}", "be collected", place):
            now, of = bins(properties, folder.child("trash"), owner.identifier, place)
            ledger = Ledger(objects_at(properties, folder.child("ledger")))
        return cls(owner, place, ledger, now, of, retention, properties, staging)

    def put(self, files: Iterable[Due], run: str) -> TrashReport:
        """Moves the files to the trash that are still what was listed. run: the one that does it, for the ledger.

        Raises StorageRefused when the storage fails; what is in the trash by then is in the ledger. Raises ValueError
        for a file that does not lie at the trash's place.
        """
        now_ms = storage_now(self.properties, self.staging)
        with refusals(f"table {self.owner.identifier}", "be put into the trash", self.place):
            settle(self.ledger, self.bin_of)
            parts = [self._put(number, dues, run, now_ms) for number, dues in enumerate(_parts(files))]
        taken = [size for sizes, _ in parts for size in sizes]
        kept = tuple(kept for _, stayed in parts for kept in stayed)
        return TrashReport(len(taken), sum(taken), kept, now_ms + self._retention_ms, self.bin.how)

    def _put(self, number: int, dues: Sequence[Due], run: str, now_ms: int) -> tuple[list[int], list[Kept]]:
        """Takes some files in the order that loses nothing.

        It writes down what is to be taken, takes it, and writes what was. Returns the sizes of what was taken, and what
        was not.
        """
        batch_id = f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%SZ}-{number:05d}-{uuid4().hex[:8]}"
        prepared = self._prepare(dues, batch_id)
        kept = [Kept(due.listed.place, why) for due, why in zip(dues, prepared, strict=True) if isinstance(why, str)]
        entries = tuple(entry for entry in prepared if isinstance(entry, Entry))
        if not entries:
            return [], kept
        batch = Batch(batch_id, self.owner, run, now_ms, now_ms + self._retention_ms, entries)
        self.ledger.begin(batch)
        stayed = self.bin.take(batch)
        self.ledger.taken(batch, stayed, self.bin.how)
        sizes = [entry.size for n, entry in enumerate(entries) if n not in stayed]
        return sizes, [*kept, *(Kept(entries[n].place, reason) for n, reason in stayed.items())]

    def _prepare(self, dues: Sequence[Due], batch_id: str) -> list[Entry | str]:
        for due in dues:
            if not due.listed.place.is_within(self.place):
                raise ValueError(f"{due.listed.place.location!r} does not lie at {self.place.location!r}")
        return self.bin.prepare([_entry(due) for due in dues], batch_id)

    @property
    def _retention_ms(self) -> int:
        return self.retention // timedelta(milliseconds=1)

    def restore(self, selection: TrashSelection) -> RestoreReport:
        """Brings files back to where they were; what is there by now is never overwritten. Raises StorageRefused."""
        with refusals(f"table {self.owner.identifier}", "be restored", self.place):
            settle(self.ledger, self.bin_of)
            return restore(self.ledger, self.bin_of, selection)

    def purge(self, now_ms: int) -> PurgeReport:
        """Deletes for good what is past its time in the trash. now_ms: by storage_now(). Raises StorageRefused."""
        with refusals(f"table {self.owner.identifier}", "be purged", self.place):
            settle(self.ledger, self.bin_of)
            return purge(self.ledger, self.bin_of, now_ms)


def _parts(files: Iterable[Due]) -> Iterator[list[Due]]:
    rest = iter(files)
    while part := list(islice(rest, BATCH)):
        yield part


def _entry(due: Due) -> Entry:
    """Returns the ledger's entry; the file's place in the trash is filled in when that is known."""
    listed = due.listed
    return Entry(listed.place.location, listed.size, listed.modified_ms, listed.etag, due.why, due.since_ms, held="")

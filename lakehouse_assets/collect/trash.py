"""The one door out of the lake: what is due moves to its table's trash, comes back, or goes for good after its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from uuid import uuid4

from lakehouse_assets.collect.bins import BACK, THERE, Bin, LocalBin
from lakehouse_assets.collect.ledger import (
    PURGED,
    RESTORED,
    TAKEN,
    Batch,
    Entry,
    Ledger,
    Owner,
    Purged,
    Recorded,
    Restored,
    Taken,
)
from lakehouse_assets.collect.listing import storage_now
from lakehouse_assets.collect.needed import folder_without_links, without_links
from lakehouse_assets.collect.report import Kept, Refused, refusals
from lakehouse_assets.errors import StorageRefused
from lakehouse_assets.storage.objects import objects_at, raw_client
from lakehouse_assets.storage.place import Place, StorageKind, place_of

RETENTION = timedelta(days=7)
"""The time for which a file can be brought back."""
LEDGER_LIFE = timedelta(days=90)
"""The time for which the ledger still tells of files that can't be brought back any more."""
TABLE_BUCKET = "--table-s3"
"""The end of the names of buckets in which S3 Tables keeps tables
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-tables-tables.html)."""
UNFINISHED = "the run ended before it was taken"


@dataclass(frozen=True)
class TrashReport:
    """The result of putting files into the trash, or of deleting them from it for good."""

    files: int
    """The number of files that went."""
    size: int
    """Their size in bytes."""
    kept: tuple[Kept, ...]
    """The files that should have gone and did not, each with the reason."""
    until_ms: int = 0
    """The time until which the files can be brought back, by the storage's clock; 0 where they are gone for good."""


@dataclass(frozen=True)
class TrashSelection:
    """Selects what to bring back of a table: every file, or the files that meet all conditions."""

    run: str | None = None
    """The run that put them into the trash; None for any."""
    places: frozenset[Place] = frozenset()
    """Files, or folders with all that was below them; empty for any."""

    def has(self, batch: Batch, entry: Entry) -> bool:
        """Tells whether the file is meant."""
        if self.run not in (None, batch.run):
            return False
        file = without_links(entry.place)
        return not self.places or any(file.is_within(folder_without_links(place)) for place in self.places)


@dataclass(frozen=True)
class RestoreReport:
    """The result of bringing files back."""

    restored: int
    """The number of files that were brought back."""
    size: int
    """Their size in bytes."""
    there: int
    """The number of files that were there already, unchanged."""
    lost: tuple[Kept, ...]
    """The files that can't come back, with the reason."""


@dataclass(frozen=True)
class Trash:
    """The trash of one table at one place."""

    owner: Owner
    place: Place
    ledger: Ledger
    bin: Bin
    """Takes files there now."""
    bin_of: Callable[[Batch], Bin]
    """Finds the bin by which the files of a batch were taken."""
    properties: Mapping[str, str]
    """PyIceberg's properties, as in for_location()."""
    staging: str
    """The staging prefix."""

    @classmethod
    def for_location(cls, properties: Mapping[str, str], staging: str, owner: Owner, place: Place) -> Trash:
        """Returns the trash for files below the place, by what its storage offers.

        properties: PyIceberg's, of a FileIO that may read and write both the table and the staging prefix. Raises
        StorageRefused where the storage has no way to take a file and give it back.
        """
        folder = place_of(staging).child(f"collect/{owner.uuid}")
        with refusals(f"table {owner.identifier}", "be collected", place):
            now, of = _bins(properties, folder.child("trash"), owner.identifier, place)
            ledger = Ledger(objects_at(properties, folder.child("ledger")))
        return cls(owner, place, ledger, now, of, properties, staging)

    def put(self, files: Sequence[Entry], run: str) -> TrashReport:
        """Moves the files to the trash that are still what was listed. run: the one that does it, for the ledger.

        This is done in the order that loses nothing: it writes down what is to be taken, takes it, and writes what was.
        Raises StorageRefused when the storage fails; what is in the trash by then is in the ledger. Raises ValueError
        for a file that does not lie at the trash's place.
        """
        for file in files:
            if not file.place.is_within(self.place):
                raise ValueError(f"{file.location!r} does not lie at {self.place.location!r}")
        at = _moment(storage_now(self.properties, self.staging))
        with self._refusals("be put into the trash"):
            self._settle()
            batch_id = f"{at:%Y%m%dT%H%M%S.%f}Z-{uuid4().hex[:8]}"
            prepared = self.bin.prepare(files, batch_id)
            both = zip(files, prepared, strict=True)
            kept = [Kept(file.place, why) for file, why in both if isinstance(why, str)]
            entries = tuple(entry for entry in prepared if isinstance(entry, Entry))
            batch = Batch(batch_id, self.owner, run, at, at + RETENTION, entries)
            stayed = self._take(batch) if entries else {}
        kept += [Kept(entries[n].place, reason) for n, reason in stayed.items()]
        sizes = [entry.size for n, entry in enumerate(entries) if n not in stayed]
        return TrashReport(len(sizes), sum(sizes), tuple(kept), _ms(batch.until))

    def _take(self, batch: Batch) -> Mapping[int, str]:
        self.ledger.begin(batch)
        stayed = self.bin.take(batch)
        self._record_taken(batch, stayed)
        return stayed

    def held(self) -> set[Place]:
        """Returns the places of all files that can be brought back, without links. Raises StorageRefused."""
        with self._refusals("be looked for in the trash"):
            recorded = self.ledger.read()
        return {without_links(one.batch.entries[n].place) for one in recorded for n in one.held()}

    def restore(self, selection: TrashSelection) -> RestoreReport:
        """Brings files back to where they were; what is there by now is never overwritten.

        Raises StorageRefused; what is back by then stays.
        """
        count: Counter[str] = Counter()
        lost: list[Kept] = []
        with self._refusals("be restored"):
            self._settle()
            for recorded in reversed(self.ledger.read()):  # of two files of one name, the newer one comes back
                for n, told in self._give_back(recorded, selection).items():
                    entry = recorded.batch.entries[n]
                    if told == BACK:
                        count.update(restored=1, size=entry.size)
                    elif n not in recorded.kept:  # of a file that was never taken there is nothing to tell
                        count.update(there=told == THERE)
                        lost += [Kept(entry.place, told)] if told != THERE else []
        return RestoreReport(count["restored"], count["size"], count["there"], tuple(lost))

    def _give_back(self, recorded: Recorded, selection: TrashSelection) -> dict[int, str]:
        batch = recorded.batch
        chosen = [n for n in recorded.held() if selection.has(batch, batch.entries[n])]
        told = dict(zip(chosen, self.bin_of(batch).give_back([batch.entries[n] for n in chosen]), strict=True))
        if back := tuple(n for n, what in told.items() if what in (BACK, THERE)):
            self.ledger.record(batch, f"{RESTORED}{uuid4().hex[:8]}.json", Restored(back))
        return told

    def purge(self, now_ms: int) -> TrashReport:
        """Deletes for good what can't be brought back any more, and forgets what nobody will ask for.

        Only what the trash has is deleted, and only what the ledger says that it took. now_ms: by storage_now(). Raises
        StorageRefused; what is gone by then is gone.
        """
        gone: list[Entry] = []
        kept: list[Kept] = []
        with self._refusals("be purged"):
            self._settle()
            for recorded in self.ledger.read():
                batch = recorded.batch
                if recorded.is_purged and _ms(batch.until + LEDGER_LIFE) <= now_ms:
                    self.ledger.forget(batch)
                elif not recorded.is_purged and _ms(batch.until) <= now_ms:
                    taken = recorded.taken()
                    stayed = self.bin_of(batch).destroy(batch, taken)
                    kept += [Kept(batch.entries[n].place, reason) for n, reason in stayed.items()]
                    if not any(isinstance(reason, Refused) for reason in stayed.values()):
                        self.ledger.record(batch, PURGED, Purged(_moment(now_ms), dict(stayed)))
                        gone += [batch.entries[n] for n in taken if n not in stayed]
                    # Else it is tried again at the next pass, and counted then.
        return TrashReport(len(gone), sum(entry.size for entry in gone), tuple(kept))

    def _settle(self) -> None:
        """Finds out by looking, and writes down, what a run took that ended before it could say.

        Nothing is moved: what such a run had decided may be wrong by now. The run may be at work still: its own record,
        when it comes, replaces this one.
        """
        for recorded in self.ledger.unfinished():
            batch = recorded.batch
            is_held = self.bin_of(batch).is_held
            kept = {n: UNFINISHED for n, entry in enumerate(batch.entries) if not is_held(entry)}
            self._record_taken(batch, kept)

    def _record_taken(self, batch: Batch, kept: Mapping[int, str]) -> None:
        named = {n: (batch.entries[n].location, why) for n, why in kept.items()}
        self.ledger.record(batch, TAKEN, Taken(named))

    def _refusals(self, verb: str) -> AbstractContextManager[None]:
        return refusals(f"table {self.owner.identifier}", verb, self.place)


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _bins(properties: Mapping[str, str], folder: Place, table: str, place: Place) -> tuple[Bin, Callable[[Batch], Bin]]:
    """Returns the bin by which files are taken at the place now, and a function that finds the bin of an earlier batch.

    folder: of the trash. table: its identifier. Raises StorageRefused where there is no way to take a file and give it
    back, and what the storage raises.
    """
    if folder.is_within(place):
        raise StorageRefused(
            f"table {table}: the trash {folder.location!r} would lie in the table's own location {place.location!r}, "
            "where it would count as files that nobody needs: let LAKEHOUSE_STAGING be a prefix outside of all tables"
        )
    if place.bucket.endswith(TABLE_BUCKET):
        raise StorageRefused(
            f"table {table}: {place.location!r} is a table bucket of S3 Tables, which lets nobody list, copy or delete "
            "single files; it removes by itself what no snapshot needs (unreferencedDays of its maintenance settings)"
        )

    @cache
    def s3(*, versions: bool) -> Bin:
        from lakehouse_assets.collect.s3_bins import PlainBin, VersionedBin, compares

        client = raw_client(properties)
        is_conditional = folder.kind is StorageKind.S3 and compares(client, folder)
        return VersionedBin(client, is_conditional) if versions else PlainBin(client, is_conditional, folder)

    def of(batch: Batch) -> Bin:
        # One ledger may tell of files of two storages: receipts lie where LAKEHOUSE_STAGING is.
        first = batch.entries[0]
        return LocalBin(folder.key) if first.place.kind is StorageKind.FILE else s3(versions=bool(first.version))

    has_versions = place.kind is StorageKind.S3 and (
        raw_client(properties).get_bucket_versioning(Bucket=place.bucket).get("Status") == "Enabled"
    )
    if place.kind is not folder.kind and not has_versions:
        raise StorageRefused(
            f"table {table}: its files lie at {place.location!r}, the trash would be {folder.location!r}, and the "
            "storage of the one can't move files to the other: let LAKEHOUSE_STAGING be a prefix of the table's kind "
            "of storage"
        )
    return LocalBin.beside(folder.key, place) if place.kind is StorageKind.FILE else s3(versions=has_versions), of

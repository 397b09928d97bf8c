"""The trash of a table: takes, restores and purges files, and records this in the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from uuid import uuid4

from lakehouse_assets.errors import StorageRefused
from lakehouse_assets.maintenance.collect.bins import BACK, THERE, Bin, LocalBin
from lakehouse_assets.maintenance.collect.ledger import (
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
from lakehouse_assets.maintenance.collect.listing import storage_now
from lakehouse_assets.maintenance.collect.needed import folder_without_links, without_links
from lakehouse_assets.maintenance.collect.report import Kept, Refused, refusals
from lakehouse_assets.storage.objects import objects_at, raw_client
from lakehouse_assets.storage.place import Place, StorageKind, place_of

RETENTION = timedelta(days=7)
LEDGER_LIFE = timedelta(days=90)
"""How long the ledger remembers purged files."""
TABLE_BUCKET = "--table-s3"
"""The suffix of S3 Tables' buckets (https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-tables-tables.html)."""
UNFINISHED = "the run ended before it was taken"


@dataclass(frozen=True)
class TrashReport:
    """The result of put() or purge()."""

    files: int
    size: int
    kept: tuple[Kept, ...]
    until_ms: int = 0
    """0 after purge()."""


@dataclass(frozen=True)
class TrashSelection:
    """Selects the files that meet all conditions."""

    run: str | None = None
    """The run that trashed them; None for any."""
    places: frozenset[Place] = frozenset()
    """Files or folders; empty for any."""

    def has(self, batch: Batch, entry: Entry) -> bool:
        """Whether it is selected."""
        if self.run not in (None, batch.run):
            return False
        file = without_links(entry.place)
        return not self.places or any(file.is_within(folder_without_links(place)) for place in self.places)


@dataclass(frozen=True)
class RestoreReport:
    """The result of restore()."""

    restored: int
    size: int
    there: int
    """Unchanged files already there."""
    lost: tuple[Kept, ...]


@dataclass(frozen=True)
class Trash:
    """The trash of one table at one place."""

    properties: Mapping[str, str]
    """Of a FileIO for the table and the staging prefix."""
    staging: str
    owner: Owner
    place: Place
    """A folder: the trash takes files below it."""

    @classmethod
    def for_location(cls, properties: Mapping[str, str], staging: str, owner: Owner, place: Place) -> Trash:
        """Returns a trash that takes files below the place.

        Raises StorageRefused if the storage can't take files and give them back.
        """
        trash = cls(properties, staging, owner, place)
        with trash._refusals("be collected"):
            # Opens the bin, which raises for an unfit storage.
            _ = trash._bin
        return trash

    @property
    def ledger(self) -> Ledger:
        """The ledger of the table's files."""
        return Ledger(objects_at(self.properties, self._folder.child("ledger")))

    def put(self, files: Sequence[Entry], run: str) -> TrashReport:
        """Moves unchanged files to the trash. run: the Dagster run's id.

        Records the intent, takes the files, then records the result. Raises StorageRefused, and ValueError for a file
        outside the trash's place.
        """
        for file in files:
            if not file.place.is_within(self.place):
                raise ValueError(f"{file.location!r} is not inside {self.place.location!r}")
        # By the storage's clock, like the time that purge() compares ``until`` with.
        at = _moment(storage_now(self.properties, self.staging))
        with self._refusals("be put into the trash"):
            self._settle()
            batch_id = f"{at:%Y%m%dT%H%M%S.%f}Z-{uuid4().hex[:8]}"
            prepared = self._bin.prepare(files, batch_id)
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
        stayed = self._bin.take(batch)
        self._record_taken(batch, stayed)
        return stayed

    def held(self) -> set[Place]:
        """Returns the places of restorable files, without links. Raises StorageRefused."""
        with self._refusals("be looked for in the trash"):
            recorded = self.ledger.read()
        return {without_links(one.batch.entries[n].place) for one in recorded for n in one.held()}

    def restore(self, selection: TrashSelection) -> RestoreReport:
        """Moves files back; overwrites none. Raises StorageRefused; restored files stay."""
        count: Counter[str] = Counter()
        lost: list[Kept] = []
        with self._refusals("be restored"):
            self._settle()
            for recorded in reversed(self.ledger.read()):  # the newer of two files with one name comes back
                for n, told in self._give_back(recorded, selection).items():
                    entry = recorded.batch.entries[n]
                    if told == BACK:
                        count.update(restored=1, size=entry.size)
                    # held() has files recorded as not taken, too, because such a record may be wrong. One that does
                    # not come back was really not taken, and needs no report.
                    elif n in recorded.kept:
                        continue
                    elif told == THERE:
                        count.update(there=1)
                    else:
                        lost.append(Kept(entry.place, told))
        return RestoreReport(count["restored"], count["size"], count["there"], tuple(lost))

    def _give_back(self, recorded: Recorded, selection: TrashSelection) -> dict[int, str]:
        batch = recorded.batch
        chosen = [n for n in recorded.held() if selection.has(batch, batch.entries[n])]
        told = dict(zip(chosen, self._bin_of(batch).give_back([batch.entries[n] for n in chosen]), strict=True))
        if back := tuple(n for n, what in told.items() if what in (BACK, THERE)):
            self.ledger.record(batch, f"{RESTORED}{uuid4().hex[:8]}.json", Restored(back))
        return told

    def purge(self, now_ms: int) -> TrashReport:
        """Deletes expired files that the ledger records as taken, and old records. Raises StorageRefused.

        Deletes what restored files have left in the trash as well, but does not count it. now_ms: the storage's time.
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
                    stayed = self._bin_of(batch).destroy(batch, recorded.left())
                    kept += [Kept(batch.entries[n].place, reason) for n, reason in stayed.items()]
                    if not any(isinstance(reason, Refused) for reason in stayed.values()):
                        self.ledger.record(batch, PURGED, Purged(_moment(now_ms), dict(stayed)))
                        gone += [batch.entries[n] for n in recorded.taken() if n not in stayed]
                    # Otherwise the next pass tries again, and counts it.
        return TrashReport(len(gone), sum(entry.size for entry in gone), tuple(kept))

    def _settle(self) -> None:
        """Records what is in the trash for each batch whose run recorded no result.

        Moves no file, as the run's decisions may be outdated. If the run still works, its own record replaces this one.
        """
        for recorded in self.ledger.unfinished():
            batch = recorded.batch
            is_held = self._bin_of(batch).is_held
            kept = {n: UNFINISHED for n, entry in enumerate(batch.entries) if not is_held(entry)}
            self._record_taken(batch, kept)

    def _record_taken(self, batch: Batch, kept: Mapping[int, str]) -> None:
        named = {n: (batch.entries[n].location, why) for n, why in kept.items()}
        self.ledger.record(batch, TAKEN, Taken(named))

    def _refusals(self, verb: str) -> AbstractContextManager[None]:
        return refusals(f"table {self.owner.identifier}", verb, self.place)

    @property
    def _folder(self) -> Place:
        return place_of(self.staging).child(f"collect/{self.owner.uuid}")

    @property
    def _files(self) -> Place:
        return self._folder.child("trash")

    @cached_property
    def _bin(self) -> Bin:
        """The bin for files of the place."""
        place, folder = self.place, self._files
        self._refuse_place()
        # A versioned bucket hides files in place, so its trash needs no folder on the same storage.
        has_versions = place.kind is StorageKind.S3 and (
            raw_client(self.properties).get_bucket_versioning(Bucket=place.bucket).get("Status") == "Enabled"
        )
        if place.kind is not folder.kind and not has_versions:
            raise StorageRefused(
                f"table {self.owner.identifier}: its files are at {place.location!r} and the trash would be "
                f"{folder.location!r}, but files can't be moved between these storages: set LAKEHOUSE_STAGING to a "
                "prefix on the table's kind of storage"
            )
        return LocalBin.beside(folder.key, place) if place.kind is StorageKind.FILE else self._s3_bin(has_versions)

    def _refuse_place(self) -> None:
        table, place, folder = self.owner.identifier, self.place, self._files
        if folder.is_within(place):
            raise StorageRefused(
                f"table {table}: the trash {folder.location!r} would be inside the table's own location "
                f"{place.location!r}, where its files would count as unneeded: set LAKEHOUSE_STAGING to a prefix "
                "outside all tables"
            )
        if place.bucket.endswith(TABLE_BUCKET):
            raise StorageRefused(
                f"table {table}: {place.location!r} is a table bucket of S3 Tables, which does not "
                "allow listing, copying or deleting single files; it removes by itself what no snapshot needs "
                "(unreferencedDays of its maintenance settings)"
            )

    def _bin_of(self, batch: Batch) -> Bin:
        # A ledger may have batches on two storages: the table's files lie at its location, and its runs' receipts,
        # which are collected too, in LAKEHOUSE_STAGING. A batch's files are on one storage: the first tells which.
        first = batch.entries[0]
        if first.place.kind is StorageKind.FILE:
            return LocalBin(self._files.key)
        return self._s3_bin(bool(first.version))

    def _s3_bin(self, has_versions: bool) -> Bin:
        from lakehouse_assets.maintenance.collect.s3_bins import PlainBin, VersionedBin

        client = raw_client(self.properties)
        if has_versions:
            return VersionedBin(client, self._compares)
        return PlainBin(client, self._compares, self._files)

    @cached_property
    def _compares(self) -> bool:
        """Whether S3 compares etags as it copies or deletes, found by a test in the trash's folder.

        False if the folder is not on S3, where this can't be tested. If False, the bin compares each object itself
        before it copies or deletes it.
        """
        from lakehouse_assets.maintenance.collect.s3_bins import compares

        folder = self._files
        return folder.kind is StorageKind.S3 and compares(raw_client(self.properties), folder)


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)

"""The trash of a bucket with versions: a delete marker hides the object, its version stays where it is, no bytes move.

To come back it is copied over the marker: as a new version, which no later purge of the old one can take away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from botocore.exceptions import ClientError

from lakehouse_assets.collect.bins import CHANGED, GONE
from lakehouse_assets.collect.ledger import Batch, Entry
from lakehouse_assets.collect.refusals import REFUSED, code_of, is_missing, stayed
from lakehouse_assets.collect.s3_objects import UNVERSIONED, S3Calls, delete_listed
from lakehouse_assets.collect.trash_s3 import bring_back, delete_same, is_held, is_listed
from lakehouse_assets.storage.raw_s3 import LARGEST_DELETE, at_once

CURRENT = "its version is the current one again"


@dataclass(frozen=True)
class VersionedBin:
    """The bin of a bucket with versions. All it takes stays in the table's own bucket."""

    s3: S3Calls

    @property
    def how(self) -> str:
        """Says for the ledger that a HEAD and then a delete marker were used, and whether If-Match is honoured."""
        if self.s3.is_conditional:
            return "head, then a delete marker with If-Match"
        # If the staging prefix is not on this server, there was no place to try it.
        return "head, then a delete marker: this server is not known to honour If-Match"

    def prepare(self, entries: Sequence[Entry], batch_id: str) -> list[Entry | str]:
        """Asks S3 for the version of each object; returns the reason for one that is gone or changed."""
        return at_once(self._prepare, entries)

    def _prepare(self, entry: Entry) -> Entry | str:
        found = self.s3.head(entry.place)
        if found is None or not is_listed(found, entry):
            return CHANGED if found else GONE
        return replace(entry, held=entry.location, version=found.version or UNVERSIONED)

    def take(self, batch: Batch) -> Mapping[int, str]:
        """Puts a delete marker over each object that is still what was listed; returns why the others stay."""
        return stayed(delete_same(self.s3, batch.entries))

    def is_held(self, entry: Entry) -> bool:
        """Tells whether the version is there and not the current one at its place."""
        return is_held(self.s3, entry)

    def give_back(self, entries: Sequence[Entry]) -> list[str]:
        """Copies each version over its delete marker, as a new version, where nothing is current."""
        return at_once(lambda entry: bring_back(self.s3, entry), entries)

    def destroy(self, batch: Batch, taken: Sequence[int]) -> Mapping[int, str]:
        """Deletes the versions and leaves their delete markers: removing one may bring an older version back.

        S3 removes markers that hide nothing by a lifecycle rule (ExpiredObjectDeleteMarker).
        """
        entries = [batch.entries[n] for n in taken]
        current = at_once(lambda entry: self.s3.head(entry.place), entries)
        kept = {
            n: CURRENT for n, entry, found in zip(taken, entries, current, strict=True) if is_listed(found, entry)
        }
        going = [n for n in taken if n not in kept]
        refused = self._delete([batch.entries[n] for n in going])
        return kept | {n: f"{REFUSED}{code}" for n, code in zip(going, refused, strict=True) if code}

    def _delete(self, entries: Sequence[Entry]) -> list[str | None]:
        """Deletes the versions.

        Returns for each None, or the code of the refusal if it stays for now, such as one that is locked.
        """
        errors: dict[str, ClientError] = {}
        for start in range(0, len(entries), LARGEST_DELETE):
            part = entries[start : start + LARGEST_DELETE]
            objects = [{"Key": entry.place.key, "VersionId": entry.version} for entry in part]
            errors |= delete_listed(self.s3.client, part[0].place.bucket, objects)
        found = [errors.get(entry.place.key) for entry in entries]
        return [None if error is None or is_missing(error) else code_of(error) for error in found]

"""The trash of a bucket without versions: the server copies the object below the staging prefix, then the object goes.

The copy is proved before, and the object is compared in the moment that it goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from botocore.exceptions import ClientError

from lakehouse_assets.collect.bins import CHANGED, GONE, LOST, OTHER, Back, held_at
from lakehouse_assets.collect.ledger import Batch, Entry
from lakehouse_assets.collect.refusals import is_changed, is_missing, is_of_one_file, stayed
from lakehouse_assets.collect.s3_objects import UNVERSIONED, FoundObject, S3Calls
from lakehouse_assets.storage.objects import delete_all
from lakehouse_assets.storage.place import Place
from lakehouse_assets.storage.raw_s3 import at_once, keys_below

Told: TypeAlias = str | ClientError | None
"""The answer for one object: None, the reason why it stays, or an error with is_of_one_file()."""


@dataclass(frozen=True)
class PlainBin:
    """The bin of a bucket without versions."""

    s3: S3Calls
    folder: Place
    """The folder of the trash, in a bucket of the same server."""

    @property
    def how(self) -> str:
        """Says for the ledger whether the server compares the object itself (If-Match), or a HEAD does before."""
        return "If-Match" if self.s3.is_conditional else "head, then delete: this server does not honour If-Match"

    def prepare(self, entries: Sequence[Entry], batch_id: str) -> list[Entry | str]:
        """Returns each entry with a key of its own below the batch's folder; S3 is not asked yet."""
        return held_at(entries, self.folder.child(batch_id).location)

    def take(self, batch: Batch) -> Mapping[int, str]:
        """Copies the objects to the trash, then deletes those that were copied and are still what was listed.

        Returns the ordinals of the objects that stay, with the reason.
        """
        told = at_once(self._copy, batch.entries)
        copied = [n for n, why in enumerate(told) if why is None]
        for n, why in zip(copied, self._delete([batch.entries[n] for n in copied]), strict=True):
            told[n] = why
        return stayed(told)

    def _copy(self, entry: Entry) -> Told:
        if not self.s3.is_conditional and (reason := self._difference(entry)):
            return reason
        try:
            self.s3.copy(entry.place, entry.held_place, entry.size, entry.etag)
        except ClientError as error:
            if is_changed(error) or is_missing(error):
                return CHANGED if is_changed(error) else GONE
            if is_of_one_file(error):
                return error
            raise
        return None

    def _delete(self, entries: Sequence[Entry]) -> list[Told]:
        if self.s3.is_conditional:
            return delete_same(self.s3, entries)
        return at_once(self._compare_and_delete, entries)

    def _compare_and_delete(self, entry: Entry) -> Told:
        if reason := self._difference(entry):
            return reason
        try:
            self.s3.client.delete_object(Bucket=entry.place.bucket, Key=entry.place.key)
        except ClientError as error:
            if is_of_one_file(error):
                return error
            raise
        return None

    def _difference(self, entry: Entry) -> str | None:
        found = self.s3.head(entry.place)
        if is_listed(found, entry):
            return None
        return CHANGED if found else GONE

    def is_held(self, entry: Entry) -> bool:
        """Tells whether the trash has the copy, and the object that was listed is not at its place any more."""
        return is_held(self.s3, entry)

    def give_back(self, entries: Sequence[Entry]) -> list[str]:
        """Copies the objects back to where nothing is; the trash keeps its copies until destroy()."""
        return at_once(lambda entry: bring_back(self.s3, entry), entries)

    def destroy(self, batch: Batch, taken: Sequence[int]) -> Mapping[int, str]:
        """Deletes all objects below the batch's folder; none has to stay."""
        folder = self.folder.child(f"{batch.id}/")
        delete_all(self.s3.client, folder.bucket, keys_below(self.s3.client, folder))
        return {}


def delete_same(s3: S3Calls, entries: Sequence[Entry]) -> list[Told]:
    """Deletes the objects that are still what was listed. Returns for each None, or why it stays.

    boto3 asks again when an answer is lost, and is then refused what it has done already: so an object counts as
    changed only while it is there.
    """
    errors = s3.delete([(entry.place, entry.etag) for entry in entries])

    def told(entry: Entry, error: ClientError | None) -> Told:
        if error is None or is_of_one_file(error):
            return error
        return CHANGED if s3.head(entry.place) else None

    return at_once(lambda both: told(*both), list(zip(entries, errors, strict=True)))


def is_listed(found: FoundObject | None, entry: Entry) -> bool:
    """Tells whether what was found is the object that was listed; of a bucket with versions, its version."""
    if found is None:
        return False
    if entry.version:
        return (found.version or UNVERSIONED) == entry.version
    return (found.size, found.etag) == (entry.size, entry.etag)


def is_held(s3: S3Calls, entry: Entry) -> bool:
    """Tells whether the trash has the object, and it is not at its place any more, whatever else is."""
    return not is_listed(s3.head(entry.place), entry) and s3.head(entry.held_place, entry.version) is not None


def bring_back(s3: S3Calls, entry: Entry) -> str:
    """Copies the object to where it was, if nothing is there. Returns a value of Back, or why it can't come back."""
    if not s3.can_compare(entry.size) and s3.head(entry.place):
        return _compare(s3, entry)
    try:
        s3.copy(entry.held_place, entry.place, entry.size, entry.etag, entry.version, new=True)
    except ClientError as error:
        if not is_changed(error) and not is_missing(error):
            raise
        return _compare(s3, entry)
    return Back.RESTORED


def _compare(s3: S3Calls, entry: Entry) -> str:
    """Returns what to say where the object can't be copied back: something is there, or the trash has nothing."""
    held, there = s3.head(entry.held_place, entry.version), s3.head(entry.place)
    if there is None:
        return LOST
    # Of an object in several parts the copy has another etag, and what was brought back has the copy's.
    same = (entry.size, entry.etag), (held and (held.size, held.etag))
    return Back.THERE if (there.size, there.etag) in same else OTHER

"""The trash of objects of S3: below the staging prefix as copies, or in a bucket with versions below delete markers.

What a bin must offer is in bins.py; what is taken, and what is written down of it, in trash.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from botocore.exceptions import ClientError

from lakehouse_assets.collect.bins import BACK, CHANGED, GONE, LOST, OTHER, THERE, held_at
from lakehouse_assets.collect.ledger import Batch, Entry
from lakehouse_assets.collect.report import Refused, is_changed, is_missing, is_of_one_file, stayed
from lakehouse_assets.environment.aws import error_code
from lakehouse_assets.storage.objects import LARGEST_COPY, LARGEST_DELETE, at_once, bare, delete_all, keys_below
from lakehouse_assets.storage.place import Place

ObjectOutcome: TypeAlias = str | ClientError | None
"""The answer for one object: None, the reason why it stays, or an error with is_of_one_file()."""
PART_BYTES = 256 * 2**20
"""The bytes of one part of a copy above LARGEST_COPY: S3 takes 10,000 parts of an object of at most 5 TiB."""
UNVERSIONED = "null"
"""The version of an object that is older than the bucket's versioning."""
CURRENT = "its version is the current one again"
NO_ETAG = '"00000000000000000000000000000000"'


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object as it is now."""

    size: int
    """The size in bytes."""
    etag: str
    version: str
    """The version; UNVERSIONED in a bucket that never had versions."""

    def is_entry(self, entry: Entry) -> bool:
        """Tells whether it is the object that was listed; of a bucket with versions, its version."""
        if entry.version:
            return self.version == entry.version
        return (self.size, self.etag) == (entry.size, entry.etag)


@dataclass(frozen=True)
class S3Bin:
    """The base of the bins of buckets with and without versions."""

    client: Any
    is_conditional: bool
    """Whether the server compares etags itself, in the same moment as it copies or deletes."""

    def is_held(self, entry: Entry) -> bool:
        """Tells whether the trash has the object, and it is not at its place any more, whatever else is."""
        found = self._head(entry.place)
        return not (found and found.is_entry(entry)) and self._head(entry.held_place, entry.version) is not None

    def give_back(self, entries: Sequence[Entry]) -> list[str]:
        """Copies the objects back to where nothing is; the trash keeps what it has until destroy().

        A version is copied over its delete marker: as a new version, which no later purge of the old one can take away.
        """
        return at_once(self._give_back, entries)

    def _give_back(self, entry: Entry) -> str:
        is_compared = self.is_conditional and entry.size <= LARGEST_COPY
        if not is_compared and self._head(entry.place):
            return self._why_not_back(entry)
        try:
            absent = {"IfNoneMatch": "*"} if is_compared else {}
            self._copy(entry, entry.held_place, entry.place, absent)
        except ClientError as error:
            if not is_changed(error) and not is_missing(error):
                raise
            return self._why_not_back(entry)
        return BACK

    def _why_not_back(self, entry: Entry) -> str:
        """Returns what to say where the object can't be copied back: something is there, or the trash has nothing."""
        held, there = self._head(entry.held_place, entry.version), self._head(entry.place)
        if there is None:
            return LOST
        # Of an object in several parts the copy has another etag, and what was brought back has the copy's.
        same = (entry.size, entry.etag), (held and (held.size, held.etag))
        return THERE if (there.size, there.etag) in same else OTHER

    def _head(self, place: Place, version: str | None = None) -> FoundObject | None:
        """Returns the object, or the version of it, that is at the place; None if there is none."""
        more = {"VersionId": version} if version else {}
        try:
            answer = self.client.head_object(Bucket=place.bucket, Key=place.key, **more)
        except ClientError as error:
            if is_missing(error):
                return None
            raise
        return FoundObject(answer["ContentLength"], bare(answer["ETag"]), answer.get("VersionId", UNVERSIONED))

    def _difference(self, entry: Entry) -> str | None:
        """Returns why the object at the entry's place is not the one that was listed; None if it is."""
        found = self._head(entry.place)
        if found and found.is_entry(entry):
            return None
        return CHANGED if found else GONE

    def _copy(self, entry: Entry, source: Place, target: Place, conditions: Mapping[str, str]) -> None:
        """Copies the entry's object within S3, under conditions for CopyObject.

        Raises ClientError, is_changed() or is_missing() where these don't hold or the source is gone; OSError where the
        copy is not as large as it should be.
        """
        origin = {"Bucket": source.bucket, "Key": source.key, **({"VersionId": entry.version} if entry.version else {})}
        if entry.size > LARGEST_COPY:
            from boto3.s3.transfer import TransferConfig

            config = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES)
            self.client.copy(origin, target.bucket, target.key, ExtraArgs=dict(conditions), Config=config)
        else:
            where = {"Bucket": target.bucket, "Key": target.key, "CopySource": origin}
            answer = self.client.copy_object(**where, **conditions)
            if bare(answer["CopyObjectResult"]["ETag"]) == entry.etag:
                return
        # The etag of an object in several parts, or encrypted by a key of its own, is not that of its copy.
        found = self._head(target)
        if found is None or found.size != entry.size:
            raise OSError(f"the copy {target.location!r} has {found and found.size} bytes, expected {entry.size}")

    def _delete_same(self, entries: Sequence[Entry]) -> list[ObjectOutcome]:
        """Deletes the objects that are still what was listed. Returns for each None, or why it stays.

        boto3 asks again when an answer is lost, and is then refused what it has done already: so an object counts as
        changed only while it is there.
        """
        errors = self._delete(entries, [{"ETag": f'"{entry.etag}"'} for entry in entries])

        def told(entry: Entry, error: ClientError | None) -> ObjectOutcome:
            if error is None or is_of_one_file(error):
                return error
            return CHANGED if self._head(entry.place) else None

        return at_once(lambda both: told(*both), list(zip(entries, errors, strict=True)))

    def _delete(self, entries: Sequence[Entry], which: Sequence[Mapping[str, str | None]]) -> list[ClientError | None]:
        """Deletes objects of one bucket. which: the version or the etag of each. Returns for each None, or the refusal.

        Raises OSError for an error that is neither is_changed(), is_missing() nor is_of_one_file().
        """
        errors: dict[str, ClientError] = {}
        objects = [{"Key": entry.place.key, **of} for entry, of in zip(entries, which, strict=True)]
        for start in range(0, len(objects), LARGEST_DELETE):
            part = {"Objects": objects[start : start + LARGEST_DELETE], "Quiet": True}
            answer = self.client.delete_objects(Bucket=entries[0].place.bucket, Delete=part)
            for found in answer.get("Errors", ()):
                error = errors[found["Key"]] = ClientError({"Error": found}, "DeleteObjects")
                if not (is_changed(error) or is_missing(error) or is_of_one_file(error)):
                    raise OSError(f"{found['Key']!r}: {error}")
        return [errors.get(entry.place.key) for entry in entries]


@dataclass(frozen=True)
class PlainBin(S3Bin):
    """The bin of a bucket without versions: the server copies the object below the staging prefix, then it goes.

    The copy is proved before, and the object is compared in the moment that it goes.
    """

    folder: Place
    """The folder of the trash, in a bucket of the same server."""

    def prepare(self, entries: Sequence[Entry], batch_id: str) -> list[Entry | str]:
        """Returns each entry with a key of its own below the batch's folder; S3 is not asked yet."""
        return held_at(entries, self.folder.child(batch_id).location)

    def take(self, batch: Batch) -> Mapping[int, str]:
        """Copies the objects to the trash, then deletes those that were copied and are still what was listed.

        Returns the ordinals of the objects that stay, with the reason.
        """
        told = at_once(self._copy_away, batch.entries)
        if not self.is_conditional:
            told = at_once(lambda n: told[n] or self._difference(batch.entries[n]), range(len(told)))
        going = [n for n, why in enumerate(told) if why is None]
        for n, why in zip(going, self._delete_same([batch.entries[n] for n in going]), strict=True):
            told[n] = why
        return stayed(told)

    def _copy_away(self, entry: Entry) -> ObjectOutcome:
        if not self.is_conditional and (reason := self._difference(entry)):
            return reason
        try:
            same = {"CopySourceIfMatch": f'"{entry.etag}"'} if self.is_conditional else {}
            self._copy(entry, entry.place, entry.held_place, same)
        except ClientError as error:
            if is_changed(error) or is_missing(error):
                return CHANGED if is_changed(error) else GONE
            if is_of_one_file(error):
                return error
            raise
        return None

    def destroy(self, batch: Batch, taken: Sequence[int]) -> Mapping[int, str]:
        """Deletes all objects below the batch's folder; none has to stay."""
        folder = self.folder.child(f"{batch.id}/")
        delete_all(self.client, folder.bucket, keys_below(self.client, folder))
        return {}


@dataclass(frozen=True)
class VersionedBin(S3Bin):
    """The bin of a bucket with versions: a delete marker hides the object, its version stays where it is.

    No bytes move, and all that it takes stays in the table's own bucket.
    """

    def prepare(self, entries: Sequence[Entry], batch_id: str) -> list[Entry | str]:
        """Asks S3 for the version of each object; returns the reason for one that is gone or changed."""
        return at_once(self._prepare, entries)

    def _prepare(self, entry: Entry) -> Entry | str:
        found = self._head(entry.place)
        if found is None or not found.is_entry(entry):
            return CHANGED if found else GONE
        return replace(entry, held=entry.location, version=found.version)

    def take(self, batch: Batch) -> Mapping[int, str]:
        """Puts a delete marker over each object that is still what was listed; returns why the others stay."""
        return stayed(self._delete_same(batch.entries))

    def destroy(self, batch: Batch, taken: Sequence[int]) -> Mapping[int, str]:
        """Deletes the versions and leaves their delete markers: removing one may bring an older version back.

        S3 removes markers that hide nothing by a lifecycle rule (ExpiredObjectDeleteMarker).
        """
        current = at_once(lambda n: self._head(batch.entries[n].place), taken)
        here = [n for n, found in zip(taken, current, strict=True) if found and found.is_entry(batch.entries[n])]
        kept = dict.fromkeys(here, CURRENT)
        going = [n for n in taken if n not in kept]
        entries = [batch.entries[n] for n in going]
        errors = self._delete(entries, [{"VersionId": entry.version} for entry in entries])
        # A version may have to stay for now, such as one that is locked.
        refused = {n: e for n, e in zip(going, errors, strict=True) if e and not is_missing(e)}
        return kept | {n: Refused.by(error_code(error)) for n, error in refused.items()}


def compares(client: Any, folder: Place) -> bool:
    """Tries on objects of our own in that folder whether the server compares etags by itself.

    Their names are always the same, so that runs that were killed leave no more than two; runs that meet there may take
    the server for one that compares nothing, which is slower and no less safe.
    """
    one, other = folder.child("probe-1"), folder.child("probe-2")
    try:
        client.put_object(Bucket=one.bucket, Key=one.key, Body=b"?")
        return _compares(client, one, other)
    finally:
        delete_all(client, one.bucket, [one.key, other.key])


def _compares(client: Any, one: Place, other: Place) -> bool:
    bucket, source = one.bucket, {"Bucket": one.bucket, "Key": one.key}
    for target, condition in ((other, {"CopySourceIfMatch": NO_ETAG}), (one, {"IfNoneMatch": "*"})):
        more = {"MetadataDirective": "REPLACE"} if target == one else {}  # else it may not be copied to itself
        try:
            client.copy_object(Bucket=bucket, Key=target.key, CopySource=source, **condition, **more)
        except ClientError as error:
            if is_changed(error):
                continue
            if error_code(error) not in ("NotImplemented", "501", "InvalidArgument", "InvalidRequest", "NoSuchKey"):
                raise
        return False
    answer = client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": one.key, "ETag": NO_ETAG}]})
    return [error["Code"] for error in answer.get("Errors", ())] == ["PreconditionFailed"]

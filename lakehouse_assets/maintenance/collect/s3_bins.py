"""The bins of S3: copies below the staging prefix, or delete markers in versioned buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from botocore.exceptions import ClientError

from lakehouse_assets.environment.aws import error_code
from lakehouse_assets.maintenance.collect.bins import BACK, CHANGED, GONE, LOST, OTHER, THERE, held_at
from lakehouse_assets.maintenance.collect.ledger import Batch, Entry
from lakehouse_assets.maintenance.collect.report import Refused, is_changed, is_missing, is_of_one_file, stayed
from lakehouse_assets.storage.objects import LARGEST_COPY, LARGEST_DELETE, at_once, bare, delete_all, keys_below
from lakehouse_assets.storage.place import Place

ObjectOutcome: TypeAlias = str | ClientError | None
"""None if the object went, else why it stays, or an error with is_of_one_file()."""
PART_BYTES = 256 * 2**20
"""The bytes of each part of a copy. S3 takes 10,000 parts: for more than 2.4 TiB, boto3 makes them larger."""
UNVERSIONED = "null"
"""The version of an object older than the bucket's versioning."""
# Why a version stays in the trash.
CURRENT = "its version is the current one again"
NO_ETAG = '"00000000000000000000000000000000"'
"""An etag that no object has, so that a server that compares must refuse."""


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object as it is now."""

    size: int
    etag: str
    version: str

    def is_entry(self, entry: Entry) -> bool:
        """Whether it is the listed object, by version if known."""
        if entry.version:
            return self.version == entry.version
        return (self.size, self.etag) == (entry.size, entry.etag)


@dataclass(frozen=True)
class S3Bin:
    """The base of both bins."""

    client: Any
    is_conditional: bool
    """Whether the server compares etags as it copies or deletes."""

    def is_held(self, entry: Entry) -> bool:
        """As Bin.is_held()."""
        found = self._head(entry.place)
        return not (found and found.is_entry(entry)) and self._head(entry.held_place, entry.version) is not None

    def give_back(self, entries: Sequence[Entry]) -> list[str]:
        """Copies objects to free places; the trash keeps them until destroy().

        A restored version is a new one, which purging the old one can't remove.
        """
        return at_once(self._give_back, entries)

    def _give_back(self, entry: Entry) -> str:
        # A larger object is copied in parts, without conditions.
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
        held, there = self._head(entry.held_place, entry.version), self._head(entry.place)
        if there is None:
            return LOST
        # The copy of a multipart object has another etag, and so has the restored object.
        same = (entry.size, entry.etag), (held and (held.size, held.etag))
        return THERE if (there.size, there.etag) in same else OTHER

    def _head(self, place: Place, version: str | None = None) -> FoundObject | None:
        more = {"VersionId": version} if version else {}
        try:
            answer = self.client.head_object(Bucket=place.bucket, Key=place.key, **more)
        except ClientError as error:
            if is_missing(error):
                return None
            raise
        return FoundObject(answer["ContentLength"], bare(answer["ETag"]), answer.get("VersionId", UNVERSIONED))

    def _difference(self, entry: Entry) -> str | None:
        found = self._head(entry.place)
        if found and found.is_entry(entry):
            return None
        return CHANGED if found else GONE

    def _copy(self, entry: Entry, source: Place, target: Place, conditions: Mapping[str, str]) -> None:
        """Raises ClientError if a condition fails or the source is gone; OSError for a wrong size."""
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
        # The copy of an object that is multipart, or encrypted with its own key, has another etag.
        found = self._head(target)
        if found is None or found.size != entry.size:
            raise OSError(f"the copy {target.location!r} has {found and found.size} bytes, expected {entry.size}")

    def _delete_same(self, entries: Sequence[Entry]) -> list[ObjectOutcome]:
        """Deletes unchanged objects. A missing object counts as deleted.

        After a lost answer, boto3 repeats a delete that has succeeded, and S3 refuses it. So only an object that is
        still there has changed.
        """
        outcomes: list[ObjectOutcome] = [None] * len(entries)
        if not self.is_conditional:
            # GONE is None, too: it counts as deleted.
            outcomes = [CHANGED if why is CHANGED else None for why in at_once(self._difference, entries)]
        going = [n for n, why in enumerate(outcomes) if why is None]
        same = [entries[n] for n in going]
        errors = self._delete(same, [{"ETag": f'"{entry.etag}"'} for entry in same])

        def outcome(entry: Entry, error: ClientError | None) -> ObjectOutcome:
            if error is None or is_of_one_file(error):
                return error
            return CHANGED if self._head(entry.place) else None

        found = at_once(lambda both: outcome(*both), list(zip(same, errors, strict=True)))
        for n, why in zip(going, found, strict=True):
            outcomes[n] = why
        return outcomes

    def _delete(self, entries: Sequence[Entry], which: Sequence[Mapping[str, str | None]]) -> list[ClientError | None]:
        """Returns None or the refusal for each object. which: versions or etags."""
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
    """Copies objects below the staging prefix, then deletes the unchanged ones."""

    folder: Place

    def prepare(self, entries: Sequence[Entry], batch_id: str) -> list[Entry | str]:
        """Returns entries with keys in the batch's folder."""
        return held_at(entries, self.folder.child(batch_id).location)

    def take(self, batch: Batch) -> Mapping[int, str]:
        """Copies all objects before it deletes any."""
        outcomes = at_once(self._copy_away, batch.entries)
        going = [n for n, why in enumerate(outcomes) if why is None]
        for n, why in zip(going, self._delete_same([batch.entries[n] for n in going]), strict=True):
            outcomes[n] = why
        return stayed(outcomes)

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
        """Deletes all objects in the batch's folder."""
        folder = self.folder.child(f"{batch.id}/")
        delete_all(self.client, folder.bucket, keys_below(self.client, folder))
        return {}


@dataclass(frozen=True)
class VersionedBin(S3Bin):
    """Hides objects of a versioned bucket by delete markers."""

    def prepare(self, entries: Sequence[Entry], batch_id: str) -> list[Entry | str]:
        """Asks S3 for each object's version."""
        return at_once(self._prepare, entries)

    def _prepare(self, entry: Entry) -> Entry | str:
        found = self._head(entry.place)
        if found is None or not found.is_entry(entry):
            return CHANGED if found else GONE
        return replace(entry, held=entry.location, version=found.version)

    def take(self, batch: Batch) -> Mapping[int, str]:
        """Puts a delete marker over each unchanged object."""
        return stayed(self._delete_same(batch.entries))

    def destroy(self, batch: Batch, taken: Sequence[int]) -> Mapping[int, str]:
        """Deletes the versions but not their delete markers: removing one may restore an older version.

        A lifecycle rule removes markers that hide nothing (ExpiredObjectDeleteMarker).
        """
        current = at_once(lambda n: self._head(batch.entries[n].place), taken)
        here = [n for n, found in zip(taken, current, strict=True) if found and found.is_entry(batch.entries[n])]
        kept = dict.fromkeys(here, CURRENT)
        going = [n for n in taken if n not in kept]
        entries = [batch.entries[n] for n in going]
        errors = self._delete(entries, [{"VersionId": entry.version} for entry in entries])
        # A version may be locked for now.
        refused = {n: e for n, e in zip(going, errors, strict=True) if e and not is_missing(e)}
        return kept | {n: Refused.by(error_code(error)) for n, error in refused.items()}


def compares(client: Any, folder: Place) -> bool:
    """Tests with two objects in the folder whether the server compares etags.

    Killed runs leave no more than these. Concurrent tests may wrongly return False, which is only slower.
    """
    one, other = folder.child("probe-1"), folder.child("probe-2")
    try:
        client.put_object(Bucket=one.bucket, Key=one.key, Body=b"?")
        return _compares(client, one, other)
    finally:
        delete_all(client, one.bucket, [one.key, other.key])


def _compares(client: Any, one: Place, other: Place) -> bool:
    # A server that compares refuses all three requests.
    bucket, source = one.bucket, {"Bucket": one.bucket, "Key": one.key}
    for target, condition in ((other, {"CopySourceIfMatch": NO_ETAG}), (one, {"IfNoneMatch": "*"})):
        more = {"MetadataDirective": "REPLACE"} if target == one else {}  # S3 requires it to copy an object to itself
        try:
            client.copy_object(Bucket=bucket, Key=target.key, CopySource=source, **condition, **more)
        except ClientError as error:
            if is_changed(error):
                continue
            # Servers without the condition refuse in these ways. A concurrent test may have deleted the object.
            if error_code(error) not in ("NotImplemented", "501", "InvalidArgument", "InvalidRequest", "NoSuchKey"):
                raise
        return False
    answer = client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": one.key, "ETag": NO_ETAG}]})
    return [error["Code"] for error in answer.get("Errors", ())] == ["PreconditionFailed"]

"""Asks S3 about one object what the trash needs: what it is now, a copy that is proved, a deletion of just that object.

Which objects, and in which order, is in trash_s3.py and trash_versions.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from lakehouse_assets.collect.refusals import code_of, is_changed, is_missing, is_of_one_file
from lakehouse_assets.storage.objects import delete_all
from lakehouse_assets.storage.place import Place
from lakehouse_assets.storage.raw_s3 import LARGEST_COPY, LARGEST_DELETE, bare

PART_BYTES = 256 * 2**20
"""The bytes of one part of a copy above LARGEST_COPY: S3 takes 10,000 parts of an object of at most 5 TiB."""
UNVERSIONED = "null"
"""The version of an object that is older than the bucket's versioning."""
NO_ETAG = '"00000000000000000000000000000000"'


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object as it is now."""

    size: int
    """The size in bytes."""
    etag: str
    version: str | None
    """The version; None in a bucket that never had versions."""


@dataclass(frozen=True)
class S3Calls:
    """The calls to one server."""

    client: Any
    is_conditional: bool
    """Whether the server compares etags itself, in the same moment as it copies or deletes."""

    def head(self, place: Place, version: str | None = None) -> FoundObject | None:
        """Returns the object, or the version of it, that is at the place; None if there is none."""
        more = {"VersionId": version} if version else {}
        try:
            answer = self.client.head_object(Bucket=place.bucket, Key=place.key, **more)
        except ClientError as error:
            if is_missing(error):
                return None
            raise
        return FoundObject(answer["ContentLength"], bare(answer["ETag"]), answer.get("VersionId"))

    def can_compare(self, size: int) -> bool:
        """Tells whether the server itself keeps the conditions of copy() for an object of that size (bytes)."""
        return self.is_conditional and size <= LARGEST_COPY

    def copy(
        self, source: Place, target: Place, size: int, etag: str, version: str | None = None, new: bool = False
    ) -> None:
        """Copies an object within S3: only if it has that etag or, with ``new``, only to a place where nothing is.

        With ``new`` the object is copied whatever its etag. The server checks the etag if is_conditional, and that
        nothing is there if can_compare(size); else the caller must have done so. Raises ClientError, is_changed() or
        is_missing() where the source is not that object or the target is taken; OSError where the copy is not as large
        as it should be.
        """
        origin = {"Bucket": source.bucket, "Key": source.key, **({"VersionId": version} if version else {})}
        same = {"CopySourceIfMatch": f'"{etag}"'} if self.is_conditional and not new else {}
        if size > LARGEST_COPY:
            self._copy_parts(origin, target, same)
        else:
            absent = {"IfNoneMatch": "*"} if self.is_conditional and new else {}
            answer = self.client.copy_object(Bucket=target.bucket, Key=target.key, CopySource=origin, **same, **absent)
            if bare(answer["CopyObjectResult"]["ETag"]) == etag:
                return
        # The etag of an object in several parts, or encrypted by a key of its own, is not that of its copy.
        found = self.head(target)
        if found is None or found.size != size:
            raise OSError(f"the copy {target.location!r} has {found and found.size} bytes, expected {size}")

    def _copy_parts(self, origin: Mapping[str, str], target: Place, same: Mapping[str, str]) -> None:
        from boto3.s3.transfer import TransferConfig

        config = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES)
        self.client.copy(dict(origin), target.bucket, target.key, ExtraArgs=dict(same), Config=config)

    def delete(self, objects: Sequence[tuple[Place, str]]) -> list[ClientError | None]:
        """Deletes objects of one bucket, each only if it has that etag. Returns for each None, or the refusal.

        Raises OSError for an error that is neither is_changed(), is_missing() nor is_of_one_file().
        """
        errors: dict[str, ClientError] = {}
        for start in range(0, len(objects), LARGEST_DELETE):
            part = objects[start : start + LARGEST_DELETE]
            listed = [{"Key": place.key, "ETag": f'"{etag}"'} for place, etag in part]
            errors |= delete_listed(self.client, part[0][0].bucket, listed)
        return [errors.get(place.key) for place, _ in objects]


def delete_listed(client: Any, bucket: str, objects: Sequence[Mapping[str, Any]]) -> dict[str, ClientError]:
    """Deletes some objects, at most LARGEST_DELETE. Returns the refusals by key. Raises as S3Calls.delete()."""
    answer = client.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
    errors = {found["Key"]: ClientError({"Error": found}, "DeleteObjects") for found in answer.get("Errors", ())}
    for key, error in errors.items():
        if not (is_changed(error) or is_missing(error) or is_of_one_file(error)):
            raise OSError(f"{key!r}: {error}")
    return errors


def calls(client: Any, folder: Place) -> S3Calls:
    """Returns the calls, after trying on objects of our own in that folder whether the server compares etags by itself.

    Their names are always the same, so that runs that were killed leave no more than two; runs that meet there may take
    the server for one that compares nothing, which is slower and no less safe.
    """
    one, other = folder.child("probe-1"), folder.child("probe-2")
    try:
        client.put_object(Bucket=one.bucket, Key=one.key, Body=b"?")
        return S3Calls(client, _compares(client, one, other))
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
            if code_of(error) not in ("NotImplemented", "501", "InvalidArgument", "InvalidRequest", "NoSuchKey"):
                raise
        return False
    answer = client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": one.key, "ETag": NO_ETAG}]})
    return [error["Code"] for error in answer.get("Errors", ())] == ["PreconditionFailed"]

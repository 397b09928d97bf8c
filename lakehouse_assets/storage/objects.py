"""Raw keys and small durable objects, in folders and on S3."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from lakehouse_assets.environment.aws import ARGUMENTS, READERS, S3_ATTEMPTS, TIMEOUTS
from lakehouse_assets.storage.place import Place, StorageKind

T = TypeVar("T")
R = TypeVar("R")
THREADS = READERS
LARGEST_COPY = 5 * 2**30
"""The most bytes that one CopyObject takes (https://docs.aws.amazon.com/AmazonS3/latest/API/API_CopyObject.html)."""
LARGEST_DELETE = 1000
"""The most objects that one DeleteObjects takes
(https://docs.aws.amazon.com/AmazonS3/latest/API/API_DeleteObjects.html)."""


def raw_client(properties: Mapping[str, str]) -> Any:
    """Returns a boto3 client of S3, the same one for the same endpoint and keys.

    Making one takes a quarter of a second. properties: PyIceberg's, of a FileIO; boto3 finds by itself what they don't
    give. boto3 takes keys raw, whatever characters are in them; PyArrow's file systems and URLs don't.
    """
    found = {argument: properties.get(f"s3.{n}", properties.get(f"client.{n}")) for n, argument in ARGUMENTS.items()}
    return _client(frozenset({"endpoint_url": properties.get("s3.endpoint"), **found}.items()), S3_ATTEMPTS)


@lru_cache(maxsize=16)  # as many as tables with keys of their own may be at work on; older ones have expired keys
def _client(arguments: frozenset[tuple[str, str | None]], attempts: int) -> Any:
    import boto3
    import botocore.session
    from botocore.config import Config

    session = botocore.session.get_session()
    # botocore's own parser of timestamps takes half the time of a listing.
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_timestamp)
    config = Config(
        retries={"mode": "standard", "total_max_attempts": attempts}, max_pool_connections=THREADS, **TIMEOUTS
    )
    return boto3.Session(botocore_session=session).client("s3", config=config, **dict(arguments))


def _timestamp(text: Any) -> datetime:
    from botocore.utils import parse_timestamp

    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):  # in headers: an HTTP date
        return parse_timestamp(text)  # type: ignore[no-any-return]


def milliseconds(moment: datetime) -> int:
    """Returns the milliseconds since the epoch."""
    return round(moment.timestamp() * 1000)


def bare(etag: str) -> str:
    """Returns an etag without its quotes: some servers leave them out of some answers."""
    return etag.strip('"')


def at_once(call: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Returns the results in order, of sixteen calls at a time. After an error, what has not begun does not begin."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="objects") as pool:
        return list(pool.map(call, items))


def keys_below(client: Any, folder: Place) -> list[str]:
    """Returns the keys of all objects that begin with the folder's, which ends with a slash."""
    listed = pages(client, "list_objects_v2", folder)
    return [found["Key"] for page in listed for found in page.get("Contents", ())]


def pages(client: Any, operation: str, place: Place, **more: Any) -> Iterator[dict[str, Any]]:
    """Gives the answers to a listing of all keys that begin with the place's. operation: list_objects_v2, say.

    Raises OSError for an answer that says that there is more and not where, or that is of something else.
    """
    for page in client.get_paginator(operation).paginate(Bucket=place.bucket, Prefix=place.key, **more):
        whole = "IsTruncated" in page and page.get("Name") == place.bucket and page.get("Prefix", "") == place.key
        token = page.get("NextContinuationToken") or page.get("NextKeyMarker")
        if not whole or (page["IsTruncated"] and not token):
            raise OSError(f"the listing of {place.location!r} broke off: an answer was incomplete or of something else")
        yield page


def objects_at(properties: Mapping[str, str], folder: Place) -> Objects:
    """Returns the objects below a folder. properties: PyIceberg's, of the FileIO."""
    return LocalObjects(folder.key) if folder.kind is StorageKind.FILE else S3Objects(raw_client(properties), folder)


def folders_in(properties: Mapping[str, str], folder: Place) -> list[str]:
    """Returns the names of the folders directly below; none where the folder is missing, as on S3.

    properties: PyIceberg's, of the FileIO. Raises what the storage raises.
    """
    if folder.kind is StorageKind.FILE:
        return sorted(next(os.walk(folder.key, onerror=_raise), ("", [], []))[1])
    below = folder.child("")
    found = pages(raw_client(properties), "list_objects_v2", below, Delimiter="/")
    prefixes = (one["Prefix"] for page in found for one in page.get("CommonPrefixes", ()))
    return sorted(prefix.removeprefix(below.key).rstrip("/") for prefix in prefixes)


@dataclass(frozen=True)
class LocalObjects:
    """Keeps objects as files."""

    folder: str
    """An absolute path."""

    def write(self, name: str, content: bytes) -> None:
        """Writes a part file, syncs it, and renames it; the folder is synced as well, so the name is durable too."""
        path = os.path.join(self.folder, name)
        make_folder(os.path.dirname(path))
        part = f"{path}.{uuid4().hex}.part"
        try:
            with open(part, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:  # on a full disk, what was written of it would stay
            with suppress(FileNotFoundError):
                os.unlink(part)
        sync(os.path.dirname(path))

    def read(self, name: str) -> bytes:
        """Reads the file. Raises FileNotFoundError if there is none."""
        with open(os.path.join(self.folder, name), "rb") as file:
            return file.read()

    def names(self) -> list[str]:
        """Returns the relative paths of all files but parts, in order; none where the folder is missing."""
        found = (os.path.join(top, name) for top, _, names in os.walk(self.folder, onerror=_raise) for name in names)
        return sorted(os.path.relpath(path, self.folder) for path in found if not path.endswith(".part"))

    def delete(self, folder: str) -> None:
        """Removes that folder with all that is in it, if it is there."""
        path = os.path.join(self.folder, folder)
        if os.path.lexists(path):
            shutil.rmtree(path)

    def remove(self, names: Sequence[str]) -> None:
        """Removes these files, not their folders; one that is not there is no error."""
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, name))


@dataclass(frozen=True)
class S3Objects:
    """Keeps objects in a bucket. S3 keeps what it has answered for."""

    client: Any
    folder: Place

    def write(self, name: str, content: bytes) -> None:
        """Puts the object; S3 keeps it once it has answered."""
        place = self.folder.child(name)
        self.client.put_object(Bucket=place.bucket, Key=place.key, Body=content)

    def read(self, name: str) -> bytes:
        """Gets the object. Raises FileNotFoundError where S3 has no such key."""
        place = self.folder.child(name)
        try:
            return bytes(self.client.get_object(Bucket=place.bucket, Key=place.key)["Body"].read())
        except self.client.exceptions.NoSuchKey as error:
            raise FileNotFoundError(place.location) from error

    def names(self) -> list[str]:
        """Returns the keys of all objects below the folder, relative to it, in order."""
        folder = self.folder.child("")
        return sorted(key.removeprefix(folder.key) for key in keys_below(self.client, folder))

    def delete(self, folder: str) -> None:
        """Deletes all objects below that folder. Raises as delete_all()."""
        delete_all(self.client, self.folder.bucket, keys_below(self.client, self.folder.child(f"{folder}/")))

    def remove(self, names: Sequence[str]) -> None:
        """Deletes these objects by their keys. Raises as delete_all()."""
        delete_all(self.client, self.folder.bucket, [self.folder.child(name).key for name in names])


Objects = LocalObjects | S3Objects
"""The objects below one folder, by their relative names. Every method raises what its storage raises."""


def delete_all(client: Any, bucket: str, keys: list[str]) -> None:
    """Deletes objects by their keys. Raises OSError that names the first one that can't be deleted."""
    for start in range(0, len(keys), LARGEST_DELETE):
        objects = [{"Key": key} for key in keys[start : start + LARGEST_DELETE]]
        answer = client.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
        for error in answer.get("Errors", ()):
            raise OSError(f"s3://{bucket}/{error['Key']}: {error['Code']}: {error.get('Message', '')}")


def make_folder(path: str) -> None:
    """Creates a folder with its parents, durably, where they are missing."""
    if not os.path.isdir(path):
        parent = os.path.dirname(path)
        make_folder(parent)
        try:
            os.mkdir(path)
        except FileExistsError:  # another process was first
            return
        sync(parent)


def sync(folder: str) -> None:
    """Makes the disk keep which files are in the folder (fsync)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def put_file(path: Path, content: bytes) -> bool:
    """Writes a file that people and steps read while it is replaced: they see the old or the new one, never a part.

    Its folder is made where that is missing, and nothing is written where it has this content. It need not outlive a
    crash of the machine. Returns whether it wrote. Raises OSError.

    Example:
        >>> from pathlib import Path
        >>> from lakehouse_assets import put_file
        >>> file = Path(folder, "orders", "2026-01-31.csv")
        >>> put_file(file, b"id,day"), put_file(file, b"id,day")
        (True, False)
    """
    if path.exists() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return True

"""Small durable objects, by raw keys, in folders and on S3."""

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
"""The most bytes in one CopyObject (https://docs.aws.amazon.com/AmazonS3/latest/API/API_CopyObject.html)."""
LARGEST_DELETE = 1000
"""The most objects in one DeleteObjects (https://docs.aws.amazon.com/AmazonS3/latest/API/API_DeleteObjects.html)."""


def raw_client(properties: Mapping[str, str]) -> Any:
    """Returns a boto3 client of S3, cached by endpoint and keys: a new one takes a quarter of a second.

    properties: PyIceberg's; boto3's own configuration replaces missing ones. Unlike PyArrow and URLs, boto3 takes keys
    with any characters.
    """
    found = {argument: properties.get(f"s3.{n}", properties.get(f"client.{n}")) for n, argument in ARGUMENTS.items()}
    return _client(frozenset({"endpoint_url": properties.get("s3.endpoint"), **found}.items()), S3_ATTEMPTS)


@lru_cache(maxsize=16)  # enough for tables with vended credentials in use at once; older ones have expired
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
    """Returns an etag without quotes, which some servers omit in some answers."""
    return etag.strip('"')


def at_once(call: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Makes THREADS calls at a time; returns results in order. After an error, starts no further calls."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="objects") as pool:
        return list(pool.map(call, items))


def keys_below(client: Any, folder: Place) -> list[str]:
    """Returns all objects' keys below the folder, whose own key must end with a slash."""
    listed = pages(client, "list_objects_v2", folder)
    return [found["Key"] for page in listed for found in page.get("Contents", ())]


def pages(client: Any, operation: str, place: Place, **more: Any) -> Iterator[dict[str, Any]]:
    """Yields the answers to a listing of the place's prefix. operation: such as list_objects_v2.

    Raises OSError for an answer that is incomplete or of another listing.
    """
    for page in client.get_paginator(operation).paginate(Bucket=place.bucket, Prefix=place.key, **more):
        whole = "IsTruncated" in page and page.get("Name") == place.bucket and page.get("Prefix", "") == place.key
        token = page.get("NextContinuationToken") or page.get("NextKeyMarker")
        if not whole or (page["IsTruncated"] and not token):
            raise OSError(f"the listing of {place.location!r} broke off: an answer was incomplete or of something else")
        yield page


def objects_at(properties: Mapping[str, str], folder: Place) -> Objects:
    """Returns the objects below a folder. properties: as raw_client()."""
    return LocalObjects(folder.key) if folder.kind is StorageKind.FILE else S3Objects(raw_client(properties), folder)


def folders_in(properties: Mapping[str, str], folder: Place) -> list[str]:
    """Returns direct subfolders' names; none if the folder is missing. Raises what the storage raises."""
    if folder.kind is StorageKind.FILE:
        # os.walk() first yields the folder itself: (path, subfolders, files); nothing if the folder is missing.
        return sorted(next(os.walk(folder.key, onerror=_raise), ("", [], []))[1])
    below = folder.child("")
    found = pages(raw_client(properties), "list_objects_v2", below, Delimiter="/")
    prefixes = (one["Prefix"] for page in found for one in page.get("CommonPrefixes", ()))
    return sorted(prefix.removeprefix(below.key).rstrip("/") for prefix in prefixes)


@dataclass(frozen=True)
class LocalObjects:
    """Keeps objects as files."""

    folder: str
    """Absolute."""

    def write(self, name: str, content: bytes) -> None:
        """Writes, syncs and renames a part file; syncs the folder to make the name durable."""
        path = os.path.join(self.folder, name)
        make_folder(os.path.dirname(path))
        part = f"{path}.{uuid4().hex}.part"
        try:
            with open(part, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:  # else a failed write, as on a full disk, would leave the part file
            with suppress(FileNotFoundError):
                os.unlink(part)
        sync(os.path.dirname(path))

    def read(self, name: str) -> bytes:
        """Returns the content. Raises FileNotFoundError if there is no file."""
        with open(os.path.join(self.folder, name), "rb") as file:
            return file.read()

    def names(self) -> list[str]:
        """Returns the files' sorted relative paths, without part files; none if the folder is missing."""
        found = (os.path.join(top, name) for top, _, names in os.walk(self.folder, onerror=_raise) for name in names)
        return sorted(os.path.relpath(path, self.folder) for path in found if not path.endswith(".part"))

    def delete(self, folder: str) -> None:
        """Removes a folder, if it exists."""
        path = os.path.join(self.folder, folder)
        if os.path.lexists(path):
            shutil.rmtree(path)

    def remove(self, names: Sequence[str]) -> None:
        """Removes files, not their folders; ignores missing ones."""
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, name))


@dataclass(frozen=True)
class S3Objects:
    """Keeps objects in a bucket."""

    client: Any
    folder: Place

    def write(self, name: str, content: bytes) -> None:
        """Puts the object, which is durable once S3 has answered."""
        place = self.folder.child(name)
        self.client.put_object(Bucket=place.bucket, Key=place.key, Body=content)

    def read(self, name: str) -> bytes:
        """Returns the content. Raises FileNotFoundError if S3 has no such key."""
        place = self.folder.child(name)
        try:
            return bytes(self.client.get_object(Bucket=place.bucket, Key=place.key)["Body"].read())
        except self.client.exceptions.NoSuchKey as error:
            raise FileNotFoundError(place.location) from error

    def names(self) -> list[str]:
        """Returns all objects' sorted relative keys."""
        folder = self.folder.child("")
        return sorted(key.removeprefix(folder.key) for key in keys_below(self.client, folder))

    def delete(self, folder: str) -> None:
        """Deletes all objects below a folder. Raises as delete_all()."""
        delete_all(self.client, self.folder.bucket, keys_below(self.client, self.folder.child(f"{folder}/")))

    def remove(self, names: Sequence[str]) -> None:
        """Deletes objects; ignores missing ones. Raises as delete_all()."""
        delete_all(self.client, self.folder.bucket, [self.folder.child(name).key for name in names])


Objects = LocalObjects | S3Objects
"""Objects below a folder, by relative name. Methods raise what the storage raises."""


def delete_all(client: Any, bucket: str, keys: list[str]) -> None:
    """Deletes objects. Raises OSError that names the first failure."""
    for start in range(0, len(keys), LARGEST_DELETE):
        objects = [{"Key": key} for key in keys[start : start + LARGEST_DELETE]]
        answer = client.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
        # Raises at the first one.
        for error in answer.get("Errors", ()):
            raise OSError(f"s3://{bucket}/{error['Key']}: {error['Code']}: {error.get('Message', '')}")


def make_folder(path: str) -> None:
    """Creates missing folders, durably."""
    if not os.path.isdir(path):
        parent = os.path.dirname(path)
        make_folder(parent)
        try:
            os.mkdir(path)
        except FileExistsError:  # another process was first
            return
        sync(parent)


def sync(folder: str) -> None:
    """Makes the folder's entries durable (fsync)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise(error: OSError) -> None:
    """Raises an error of os.walk(), which would ignore it; a missing folder is no error."""
    if not isinstance(error, FileNotFoundError):
        raise error


def put_file(path: Path, content: bytes) -> bool:
    """Replaces a file atomically: readers see the old or the new one, never a part.

    Creates the folder; writes nothing if the content is the same. A crash of the machine may lose the file. Returns
    whether it wrote. Raises OSError.

    Examples:
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

"""Makes a client of S3 for raw keys and many objects: quick timestamps, and more connections than other clients have.

What is asked of S3 is in objects.py, in collect/ (whole tables are listed, files taken) and in hand_off/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

from lakehouse_assets.environment.aws import ARGUMENTS, READERS, S3_ATTEMPTS, TIMEOUTS
from lakehouse_assets.storage.place import Place

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

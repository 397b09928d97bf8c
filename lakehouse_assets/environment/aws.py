"""Makes AWS clients, and tells which errors are transient."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from lakehouse_assets.environment.env_reader import SettingsError

if TYPE_CHECKING:
    from botocore.client import BaseClient

T = TypeVar("T")
# PyIceberg's property without its prefix (client. or s3.) → boto3's argument.
ARGUMENTS = {
    "region": "region_name",
    "access-key-id": "aws_access_key_id",
    "secret-access-key": "aws_secret_access_key",
    "session-token": "aws_session_token",
}
# Seconds. One thread polls all workers of a run, and *Terminate* waits for it: botocore's default of 60 is too long.
TIMEOUTS: dict[str, Any] = {"connect_timeout": 5, "read_timeout": 20}
# With botocore's jitter, this many attempts outlast about 55 s of 503 SlowDown, hardly ever less than 20 s; about 12 s
# if connections are refused or break, minutes if they hang.
S3_ATTEMPTS = 10
READERS = 16
"""Threads that read small objects; more would queue for connections."""
# How codes of errors begin that pass by themselves.
THROTTLED = ("Throttl", "TooManyRequests", "RequestLimitExceeded", "SlowDown", "ServiceUnavailable", "InternalFailure")


def client(service: str, attempts: int = 6, read_timeout: int = TIMEOUTS["read_timeout"]) -> BaseClient:
    """Makes a boto3 client of a service other than S3. Raises SettingsError without a region.

    attempts: the most tries of each call. read_timeout: seconds.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import NoRegionError

    # botocore repeats throttled calls, with jitter.
    timeouts = TIMEOUTS | {"read_timeout": read_timeout}
    config = Config(retries={"mode": "standard", "total_max_attempts": attempts}, **timeouts)
    try:
        return boto3.client(service, config=config)
    except NoRegionError as error:
        raise SettingsError(f"AWS_DEFAULT_REGION is not set; boto3 needs it for {service}") from error


def is_transient(error: Exception) -> bool:
    """Whether the call may succeed later: throttling, or a failure of network or service."""
    from botocore.exceptions import (
        ClientError,
        ConnectionError,
        CredentialRetrievalError,
        HTTPClientError,
        IncompleteReadError,
        MetadataRetrievalError,
    )

    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return bool(status >= 500 or error.response["Error"]["Code"].startswith(THROTTLED))
    # botocore's other errors are about settings, which will be missing at the next attempt too.
    unreachable = (ConnectionError, HTTPClientError, IncompleteReadError, CredentialRetrievalError)
    return isinstance(error, (*unreachable, MetadataRetrievalError))


def error_code(error: Exception) -> str:
    """Returns an answer's code, such as ``NoSuchKey``; "" for network errors. For HEAD, S3 has only the status: 404."""
    answer: Mapping[str, Any] = getattr(error, "response", None) or {}  # None if no answer came
    return str(answer.get("Error", {}).get("Code", ""))


def batches(items: Sequence[T], size: int) -> list[list[T]]:
    """Cuts the items into parts of at most ``size``, in order."""
    return [list(items[start : start + size]) for start in range(0, len(items), size)]


def find_in_time(find: Callable[[], T | None], waits: Sequence[float]) -> T | None:
    """Calls ``find`` after each of the waits (seconds) until its result is not None.

    AWS's lists show new items only seconds later.
    """
    for wait in waits:
        time.sleep(wait)
        if (found := find()) is not None:
            return found
    return None


def region_problems() -> list[str]:
    """Says why client() finds no valid region, or boto3 is unusable."""
    if find_spec("boto3") is None:
        return ["boto3 is not installed, but AWS needs it: install lakehouse-assets[aws]"]
    import botocore.session
    from botocore.exceptions import BotoCoreError, InvalidRegionError
    from botocore.utils import validate_region_name

    session = botocore.session.get_session()
    try:
        session.get_scoped_config()  # raises if the profile does not exist
        found = session.get_config_variable("region")
        validate_region_name(found)
    except InvalidRegionError as error:
        return [f"AWS_DEFAULT_REGION (or the profile's region): {error}"]
    except BotoCoreError as error:
        return [f"AWS_PROFILE: {error}"]
    missing = "AWS_DEFAULT_REGION is not set (boto3 needs it for AWS's services; it doesn't read AWS_REGION)"
    return [] if found else [missing]


def bucket_and_key(location: str) -> tuple[str, str]:
    """Splits ``s3://bucket/some/key`` into bucket and bare key; also with ``s3a`` and ``s3n``."""
    bucket, _, key = re.sub("^s3[an]?://", "", location).partition("/")
    return bucket, key.strip("/")


def s3_client(properties: Mapping[str, str], attempts: int = S3_ATTEMPTS) -> BaseClient:
    """Makes a boto3 client of S3 with the endpoint and keys of PyIceberg's FileIO.

    properties: PyIceberg's; s3.* wins over client.*. boto3 finds missing ones in its own configuration. attempts: the
    most tries of each call.
    """
    import boto3
    from botocore.config import Config

    config = Config(retries={"mode": "standard", "total_max_attempts": attempts}, **TIMEOUTS)
    found = {argument: properties.get(f"s3.{n}", properties.get(f"client.{n}")) for n, argument in ARGUMENTS.items()}
    return boto3.client("s3", config=config, endpoint_url=properties.get("s3.endpoint"), **found)

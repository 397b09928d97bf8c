"""Clients of AWS's services, which of their errors are transient, and waiting for what their lists don't show yet.
boto3 is imported when a client is made: it is slow. What is asked of a service is its launcher's business."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from resources.settings import SettingsError

if TYPE_CHECKING:
    from botocore.client import BaseClient

T = TypeVar("T")
# PyIceberg's property → boto3's argument. s3.* wins over client.*; what neither gives, boto3 finds by itself.
ARGUMENTS = {
    "client.region": "region_name",
    "client.access-key-id": "aws_access_key_id",
    "client.secret-access-key": "aws_secret_access_key",
    "client.session-token": "aws_session_token",
    "s3.region": "region_name",
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "s3.endpoint": "endpoint_url",
}
# Seconds. One thread polls all workers of a run, and *Terminate* waits for it: botocore's default of 60 is too long.
TIMEOUTS: dict[str, Any] = {"connect_timeout": 5, "read_timeout": 20}
# How often a call to S3 is made. With botocore's jitter this outlasts about 55 s of 503 SlowDown, hardly ever less than
# 20 s; about 12 s where connections are refused or break, minutes where they hang.
S3_ATTEMPTS = 10
THROTTLED = ("Throttl", "TooManyRequests", "RequestLimitExceeded", "SlowDown", "ServiceUnavailable", "InternalFailure")


def client(service: str, attempts: int = 6) -> BaseClient:
    """A boto3 client of a service that runs workers or keeps their logs, configured by AWS's own environment variables.

    attempts: how often a call is made at most; 1 for calls that must not be repeated.
    Raises SettingsError without a region.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import NoRegionError

    # botocore repeats throttled calls, with jitter; what to do about one that still fails is the caller's decision.
    config = Config(retries={"mode": "standard", "total_max_attempts": attempts}, **TIMEOUTS)
    try:
        return boto3.client(service, config=config)
    except NoRegionError as error:
        raise SettingsError(f"AWS_DEFAULT_REGION is not set; boto3 needs it for {service}") from error


def is_transient(error: Exception) -> bool:
    """Whether the same call of boto3's may well succeed later: after throttling, or a fault of the network
    or of the service itself."""
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
        code: str = error.response["Error"]["Code"]
        return status >= 500 or code.startswith(THROTTLED)
    # botocore's other errors are about settings that will be missing next time as well.
    unreachable = (ConnectionError, HTTPClientError, IncompleteReadError, CredentialRetrievalError)
    return isinstance(error, (*unreachable, MetadataRetrievalError))


def find_in_time(find: Callable[[], T | None], waits: Sequence[float]) -> T | None:
    """What ``find`` returns, called after each of the waits (seconds, two or more) until it is not None.

    For AWS's lists, which show what was just created only a few seconds later.
    """
    from tenacity import Retrying, retry_if_result, stop_after_attempt, wait_chain, wait_fixed

    first, *others = waits
    time.sleep(first)
    retrying = Retrying(
        retry=retry_if_result(lambda found: found is None),
        wait=wait_chain(*map(wait_fixed, others)),
        stop=stop_after_attempt(len(waits)),
        retry_error_callback=lambda _: None,
    )
    return retrying(find)


def region_problems() -> list[str]:
    """Why client() would find no valid region; empty where it finds one."""
    import botocore.session
    from botocore.exceptions import BotoCoreError, InvalidRegionError
    from botocore.utils import validate_region_name

    session = botocore.session.get_session()
    try:
        session.get_scoped_config()
        found = session.get_config_variable("region")
        validate_region_name(found)
    except InvalidRegionError as error:
        return [f"AWS_DEFAULT_REGION (or the profile's region): {error}"]
    except BotoCoreError as error:
        return [f"AWS_PROFILE: {error}"]
    return (
        [] if found else ["AWS_DEFAULT_REGION is not set (boto3 needs it for workers on AWS, and reads no AWS_REGION)"]
    )


def bucket_and_key(location: str) -> tuple[str, str]:
    """``s3://bucket/some/key`` as (bucket, key), the key without slashes around it; it may be empty."""
    bucket, _, key = location.removeprefix("s3://").partition("/")
    return bucket, key.strip("/")


def s3_client(properties: Mapping[str, str], attempts: int = S3_ATTEMPTS) -> BaseClient:
    """A boto3 client of S3, for the same endpoint and keys as PyIceberg's FileIO.

    properties: PyIceberg's, of the catalog. attempts: how often a call is made at most.
    """
    import boto3
    from botocore.config import Config

    config = Config(retries={"mode": "standard", "total_max_attempts": attempts}, **TIMEOUTS)
    given = {theirs: properties[name] for name, theirs in ARGUMENTS.items() if name in properties}
    return boto3.client("s3", config=config, **given)

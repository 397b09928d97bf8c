"""Clients of AWS's services, configured as PyIceberg's FileIO is: one set of properties for every reader and writer.
boto3 is imported when a client is asked for; nothing is called here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from resources.settings import SettingsError

if TYPE_CHECKING:
    from botocore.client import BaseClient

# PyIceberg's property → boto3's argument; s3.* over client.*, and what neither gives boto3 finds by itself.
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
# Seconds. One thread asks for all workers of a run, and *Terminate* waits behind it: botocore's own minute is too long.
PATIENCE: dict[str, Any] = {"connect_timeout": 5, "read_timeout": 20}
# Of a call to S3. Jitter makes it about 55 s of 503 SlowDown, hardly ever less than 20 s; about 12 s where a connection
# is refused or breaks, minutes where it hangs.
S3_ATTEMPTS = 10
THROTTLED = ("Throttl", "TooManyRequests", "RequestLimitExceeded", "SlowDown", "ServiceUnavailable", "InternalFailure")


def client(service: str, attempts: int = 6) -> BaseClient:
    """A boto3 client of a service that runs workers or keeps their logs, by AWS's own environment and its chain.

    attempts: how often a call is made at most; 1 for those that must not be made twice.
    Raises SettingsError without a region.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import NoRegionError

    # Throttled calls are made again by botocore, with jitter; what is still refused then is judged by the caller.
    config = Config(retries={"mode": "standard", "total_max_attempts": attempts}, **PATIENCE)
    try:
        return boto3.client(service, config=config)
    except NoRegionError as error:
        raise SettingsError(f"AWS_DEFAULT_REGION is not set; boto3 needs it for {service}") from error


def passing(error: Exception) -> bool:
    """Whether the same call of boto3's may well succeed later: the network, throttling, the service's own trouble."""
    from botocore.exceptions import ClientError

    if isinstance(error, ClientError):
        told = error.response
        status = told.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status >= 500 or told["Error"]["Code"].startswith(THROTTLED)
    return isinstance(error, _unreached())


def _unreached() -> tuple[type[Exception], ...]:
    """Of botocore's own errors; the others are settings that will be missing next time as well."""
    from botocore.exceptions import (
        ConnectionError,
        CredentialRetrievalError,
        HTTPClientError,
        IncompleteReadError,
        MetadataRetrievalError,
    )

    return ConnectionError, HTTPClientError, IncompleteReadError, CredentialRetrievalError, MetadataRetrievalError


def region_problems() -> list[str]:
    """Why client() would find no region, or take none; nothing where it does."""
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
    """A boto3 client of S3. properties: the catalog's, as PyIceberg takes them. attempts: how often a call is made."""
    import boto3
    from botocore.config import Config

    config = Config(retries={"mode": "standard", "total_max_attempts": attempts}, **PATIENCE)
    given = {theirs: properties[name] for name, theirs in ARGUMENTS.items() if name in properties}
    return boto3.client("s3", config=config, **given)

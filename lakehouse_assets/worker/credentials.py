"""The credentials that a catalog vends with a table: how they are renewed, and when a refusal means they expired.

Which properties they are, and how Java renews them, is in lakehouse_assets/environment/catalog_in_spark.py.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lakehouse_assets.environment.catalog import table_io, with_retries
from lakehouse_assets.environment.catalog_in_spark import EXPIRES_AT, KEYS, REFRESH_ENDPOINT
from lakehouse_assets.worker.failure import CredentialsExpired, root_message

# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html; the SDKs have the message, not always the code.
EXPIRED = re.compile(r"ExpiredToken|provided token has expired|security token included in the request is expired")
# An answer to HEAD has no words, and other servers than AWS's have their own.
REFUSED = re.compile(
    r"Service: S3, Status Code: 40[03]|AWS Error (?:ACCESS_DENIED|INVALID_ACCESS_KEY_ID|UNKNOWN \(HTTP status 40[03]\))"
)


class TableCredentials:
    """The credentials for one table's files, fetched from the catalog at once. Raises as table_io() does.

    catalog: PyIceberg's properties of the catalog. properties: those of a FileIO for the table's files, as the catalog
    first gave them.
    """

    def __init__(self, catalog: Mapping[str, str], identifier: str) -> None:
        self.catalog, self._identifier = catalog, identifier
        self._given_at = time.monotonic()
        self.properties: Mapping[str, Any] = table_io(catalog, identifier)

    @property
    def vended(self) -> bool:
        """Whether the catalog gave other keys than those in its configuration."""
        return any(self.properties.get(f"s3.{key}") != self.catalog.get(f"s3.{key}") for key in KEYS)

    def renewed(self) -> Mapping[str, Any]:
        """Returns the properties as the catalog gives them now, or, while it is out of reach, as it gave them first."""
        if not self.vended:
            return self.properties
        try:
            return with_retries(lambda: table_io(self.catalog, self._identifier))
        except OSError:  # requests' errors as well
            return self.properties

    @contextmanager
    def expiry_explained(self) -> Iterator[None]:
        """Raises CredentialsExpired in place of the error that S3 gives to expired keys."""
        try:
            yield
        except Exception as error:
            if not self._expired(str(error)):
                raise
            worked = time.monotonic() - self._given_at
            raise CredentialsExpired(
                f"the keys for S3 that the catalog vended with {self._identifier} expired before its worker was done, "
                f"{worked / 60:.0f} minutes after the worker got them ({root_message(str(error))}): give a worker "
                "fewer partitions (partitions_per_worker), or let the catalog's keys live longer, or let the catalog "
                "name the endpoint that renews them (client.refresh-credentials-endpoint)",
                transient=self._would_last(worked),
            ) from error

    def _expired(self, message: str) -> bool:
        left = _seconds_left(self.properties)
        # Java has renewed its keys where the catalog has a refresh endpoint: a refusal has another cause.
        over = left is not None and left <= 0 and REFRESH_ENDPOINT not in self.properties
        return self.vended and bool(EXPIRED.search(message) or (over and REFUSED.search(message)))

    def _would_last(self, seconds: float) -> bool:
        """Tells whether keys vended now would live that long. Some catalogs vend one set of keys to several clients."""
        try:
            left = _seconds_left(self.renewed())
        except Exception:  # the expired keys are the failure to report
            return False
        return left is not None and left > seconds


def _seconds_left(files: Mapping[str, Any]) -> float | None:
    """Returns the seconds until the keys expire; None where the catalog does not say when."""
    expires_at = str(files.get(EXPIRES_AT, ""))
    return int(expires_at) / 1000 - time.time() if expires_at.isdecimal() else None

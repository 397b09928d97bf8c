"""The keys for a table's files that a catalog vends with it: renewed, and what a refusal means when they have expired.
Which properties they are, and how Java renews them by itself, is resources/spark_catalog.py's."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from resources.catalog import outlasting, table_io
from resources.spark_names import EXPIRES_AT, KEYS, REFRESH_ENDPOINT

from lakehouse_assets.worker.failure import KeysExpired, root_message

# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html; the SDKs have the message, not always the code.
EXPIRED = re.compile(r"ExpiredToken|provided token has expired|security token included in the request is expired")
# An answer to HEAD has no words, and other servers than AWS's have their own.
REFUSED = re.compile(
    r"Service: S3, Status Code: 40[03]|AWS Error (?:ACCESS_DENIED|INVALID_ACCESS_KEY_ID|UNKNOWN \(HTTP status 40[03]\))"
)


class TableKeys:
    """The keys for one table's files; the catalog is asked at once.

    properties: PyIceberg's, of the catalog. identifier: the table's.
    given: properties of a FileIO for the table's files, as the catalog answered at first.
    Raises as table_io() does.
    """

    def __init__(self, properties: Mapping[str, str], identifier: str) -> None:
        self._properties, self._identifier = properties, identifier
        self._asked = time.monotonic()
        self.given: Mapping[str, Any] = table_io(properties, identifier)

    @property
    def vended(self) -> bool:
        """Whether the catalog gave keys of the table's own, other than those in its configuration."""
        return any(self.given.get(f"s3.{key}") != self._properties.get(f"s3.{key}") for key in KEYS)

    def renewed(self) -> Mapping[str, Any]:
        """The properties as the catalog gives them now; ``given`` while it is out of reach: they may still be valid."""
        if not self.vended:
            return self.given
        try:
            return outlasting(lambda: table_io(self._properties, self._identifier))
        except OSError:  # requests' errors as well
            return self.given

    @contextmanager
    def expiry_explained(self) -> Iterator[None]:
        """Raise KeysExpired in place of the error that S3 gives to expired keys."""
        try:
            yield
        except Exception as error:
            if not self._expired(str(error)):
                raise
            raise self._failure(error) from error

    def _expired(self, message: str) -> bool:
        left = _seconds_left(self.given)
        # Where the catalog has a refresh endpoint, Java has renewed its keys: a refusal has another cause.
        over = left is not None and left <= 0 and REFRESH_ENDPOINT not in self.given
        return self.vended and bool(EXPIRED.search(message) or (over and REFUSED.search(message)))

    def _failure(self, error: Exception) -> KeysExpired:
        worked = time.monotonic() - self._asked
        return KeysExpired(
            f"the keys for S3 that the catalog vended with {self._identifier} expired before its worker was done, "
            f"{worked / 60:.0f} minutes after the worker got them ({root_message(str(error))}): give a worker fewer "
            "partitions (partitions_per_worker), or let the catalog's keys live longer, or let the catalog name the "
            "endpoint that renews them (client.refresh-credentials-endpoint)",
            transient=self._would_last(worked),
        )

    def _would_last(self, seconds: float) -> bool:
        """Whether keys vended now would live that long. Some catalogs vend one set of keys to several clients."""
        try:
            left = _seconds_left(self.renewed())
        except Exception:  # the expired keys are the failure to report
            return False
        return left is not None and left > seconds


def _seconds_left(files: Mapping[str, Any]) -> float | None:
    """Until the keys expire; None where the catalog does not say when."""
    expires_at = str(files.get(EXPIRES_AT, ""))
    return int(expires_at) / 1000 - time.time() if expires_at.isdecimal() else None

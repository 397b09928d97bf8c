"""The keys for a table's files that a catalog gave out with it: had anew, and what a refusal means when they ran out.
Which properties they are, and how Java keeps them fresh by itself, is resources/spark_catalog.py's."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from resources.catalog import outlasting, table_io
from resources.spark_names import EXPIRES_AT, KEYS, REFRESH_ENDPOINT

from lakehouse_assets.worker.failure import root_message

# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html; the SDKs have the message, not always the code.
EXPIRED = re.compile(r"ExpiredToken|provided token has expired|security token included in the request is expired")
# An answer to HEAD has no words, and other servers than AWS's have their own.
REFUSED = re.compile(
    r"Service: S3, Status Code: 40[03]|AWS Error (?:ACCESS_DENIED|INVALID_ACCESS_KEY_ID|UNKNOWN \(HTTP status 40[03]\))"
)


class KeysRanOut(RuntimeError):
    """The keys that the catalog gave out with the table ran out before the work was done.

    passing: whether the same work may well succeed with those that it gives now.
    """

    def __init__(self, message: str, *, passing: bool) -> None:
        super().__init__(message)
        self.passing = passing


class TableKeys:
    """properties: PyIceberg's, of the catalog. identifier: the table's. Asks the catalog at once.

    given: properties of a FileIO for the table's files, as the catalog answered then.
    Raises what table_io does.
    """

    def __init__(self, properties: Mapping[str, str], identifier: str) -> None:
        self._properties, self._identifier = properties, identifier
        self._asked = time.monotonic()
        self.given: Mapping[str, Any] = table_io(properties, identifier)

    @property
    def vended(self) -> bool:
        """Whether the catalog gave out keys, other than everybody is configured with."""
        return any(self.given.get(f"s3.{key}") != self._properties.get(f"s3.{key}") for key in KEYS)

    def anew(self) -> Mapping[str, Any]:
        """As given, asked for now; as given then where the catalog stays out of reach: these may be good yet."""
        if not self.vended:
            return self.given
        try:
            return outlasting(lambda: table_io(self._properties, self._identifier))
        except OSError:  # requests' errors as well
            return self.given

    @contextmanager
    def told(self) -> Iterator[None]:
        """Raise KeysRanOut in place of what S3 says to keys that ran out."""
        try:
            yield
        except Exception as error:
            if not self._ran_out(str(error)):
                raise
            raise self._failure(error) from error

    def _ran_out(self, said: str) -> bool:
        left = _seconds_left(self.given)
        # Those that Java asks for anew were others by then.
        over = left is not None and left <= 0 and REFRESH_ENDPOINT not in self.given
        return self.vended and bool(EXPIRED.search(said) or (over and REFUSED.search(said)))

    def _failure(self, error: Exception) -> KeysRanOut:
        worked = time.monotonic() - self._asked
        return KeysRanOut(
            f"the keys for S3 that the catalog gave out with {self._identifier} ran out before its worker was done, "
            f"{worked / 60:.0f} minutes after it was given them ({root_message(str(error))}): give a worker fewer "
            "partitions (partitions_per_worker), or let the catalog's keys live longer, or have it tell where they are "
            "given anew (client.refresh-credentials-endpoint)",
            passing=self._would_last(worked),
        )

    def _would_last(self, seconds: float) -> bool:
        """Whether keys asked for now live longer. Some catalogs give out again what they gave somebody else before."""
        try:
            left = _seconds_left(self.anew())
        except Exception:  # the keys are the trouble to tell of
            return False
        return left is not None and left > seconds


def _seconds_left(files: Mapping[str, Any]) -> float | None:
    """None where the catalog says nothing of it."""
    expires_at = str(files.get(EXPIRES_AT, ""))
    return int(expires_at) / 1000 - time.time() if expires_at.isdecimal() else None

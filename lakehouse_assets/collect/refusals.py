"""Tells a person why storage refused: the table, the place, what was found, what to do about it.

Errors are told apart here; nothing is tried again but what the clients try by themselves.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lakehouse_assets.environment.aws import error_code, is_transient
from lakehouse_assets.errors import StorageRefused
from lakehouse_assets.storage.place import Place

NEXT = "then run it again: what was done is in the ledger, and the next run goes on from there"
DENIED = {"AccessDenied", "403", "Forbidden", "AllAccessDisabled", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
OF_ONE_OBJECT = {"AccessDenied", "403", "InvalidObjectState"}
"""The codes that S3 may have for a single object: one that is locked, denied by a policy, or archived."""
REFUSED = "the storage refuses it: "
PERMISSIONS = (
    "the collector needs s3:ListBucket, s3:GetBucketVersioning, s3:GetObject, s3:PutObject and s3:DeleteObject (of a "
    "versioned bucket also s3:GetObjectVersion and s3:DeleteObjectVersion) on the table's bucket and the staging prefix"
)
ADVICE = {
    errno.EACCES: "give this process's user the right to read, write and delete there",
    errno.EPERM: "give this process's user the right to read, write and delete there",
    errno.EROFS: "the file system is mounted read-only: mount it writable",
    errno.ENOSPC: "the disk is full: make room on it",
    errno.EDQUOT: "a quota is used up: make room",
    errno.EXDEV: (
        "the trash must be on the same file system as the table, as files are moved and never copied: let "
        "LAKEHOUSE_STAGING be a folder on that file system"
    ),
}


@dataclass(frozen=True, slots=True)
class Kept:
    """A file that stays where it is."""

    place: Place
    reason: str
    """A sentence for a person."""


@contextmanager
def refusals(subject: str, verb: str, place: Place) -> Iterator[None]:
    """Turns errors of the file system and of S3 into StorageRefused.

    subject: whose place it is, as in "table nyc.flights". verb: what was about to be done to it, as in "be listed".
    """
    try:
        yield
    except StorageRefused:
        raise
    except Exception as error:
        advice = _advice(error)
        if advice is None:
            raise
        raise StorageRefused(f"{subject}: {place.location!r} can't {verb}: {error}: {advice}; {NEXT}") from error


def _advice(error: Exception) -> str | None:
    """Returns what to do about the error; None if it is no storage's."""
    if isinstance(error, OSError):
        return ADVICE.get(error.errno or 0, "see to that storage")
    if "botocore" not in sys.modules:
        return None
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    if is_transient(error):
        return "the storage is busy or out of reach: see that it answers again"
    if isinstance(error, ClientError):
        return PERMISSIONS if error_code(error) in DENIED else "see to that storage"
    return "see to that storage" if isinstance(error, (BotoCoreError, Boto3Error)) else None


def is_of_one_file(error: Exception) -> bool:
    """Tells whether the error may be about this file only, so that others can go on."""
    return isinstance(error, PermissionError) or error_code(error) in OF_ONE_OBJECT


def stayed(told: Sequence[str | Exception | None]) -> dict[int, str]:
    """Returns the files of a batch that stay, by ordinal, with the reason.

    told: for each file None, why it stays, or an error with is_of_one_file(). Raises the first error where all files
    have the same one: then it is about no single file.
    """
    reasons = [_refused(why) if isinstance(why, Exception) else why for why in told]
    if told and isinstance(told[0], Exception) and len(set(reasons)) == 1:
        raise told[0]
    return {n: reason for n, reason in enumerate(reasons) if reason}


def _refused(error: Exception) -> str:
    return f"{REFUSED}{error.strerror if isinstance(error, OSError) else error_code(error)}"


def is_missing(error: Exception) -> bool:
    """Tells whether S3 says that the object or its version is not there."""
    return error_code(error) in ("NoSuchKey", "404", "NotFound", "NoSuchVersion")


def is_changed(error: Exception) -> bool:
    """Tells whether S3 says that the object is not the one that was meant, or is there already."""
    return error_code(error) in ("PreconditionFailed", "412", "ConditionalRequestConflict", "409")

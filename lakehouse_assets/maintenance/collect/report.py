"""Reports of collections, and what to do if the storage refuses something."""

from __future__ import annotations

import errno
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from uuid import UUID

from pyiceberg.io import FileIO

from lakehouse_assets.environment.aws import error_code, is_transient
from lakehouse_assets.errors import StorageRefused
from lakehouse_assets.storage.place import Place
from lakehouse_assets.wire.receipts import read_json
from lakehouse_assets.wire.work import Durable

NEXT = "then run it again: the ledger records what was done, and the next run continues from there"
# Error codes of S3 for which PERMISSIONS helps.
DENIED = {"AccessDenied", "403", "Forbidden", "AllAccessDisabled", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
OF_ONE_OBJECT = {"AccessDenied", "403", "InvalidObjectState"}
"""Codes for a locked, denied or archived object."""


class Refused(str):
    """Why the storage refused to remove a file. Its type tells purge() to try again."""

    __slots__ = ()

    @classmethod
    def by(cls, said: str | None) -> Refused:
        """said: the storage's words or code."""
        return cls(f"the storage refused it: {said}")


PERMISSIONS = (
    "the collector needs s3:ListBucket, s3:GetBucketVersioning, s3:GetObject, s3:PutObject and s3:DeleteObject (of a "
    "versioned bucket also s3:GetObjectVersion and s3:DeleteObjectVersion) on the table's bucket and the staging prefix"
)
ADVICE = {
    errno.EACCES: "give this process's user the right to read, write and delete there",
    errno.EPERM: "give this process's user the right to read, write and delete there",
    errno.EROFS: "the file system is mounted read-only: mount it writable",
    errno.ENOSPC: "the disk is full: free up space on it",
    errno.EDQUOT: "a quota is used up: free up space",
    errno.EXDEV: (
        "the trash must be on the same file system as the table, because files are moved and never copied: set "
        "LAKEHOUSE_STAGING to a folder on that file system"
    ),
}


@dataclass(frozen=True, slots=True)
class Kept:
    """A file that stays where it is."""

    place: Place
    reason: str


@contextmanager
def refusals(subject: str, verb: str, place: Place) -> Iterator[None]:
    """Turns errors of the file system and of S3 into StorageRefused. verb: such as "be listed"."""
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
    """Returns what to do; None if neither the file system nor S3 raised the error."""
    if isinstance(error, OSError):
        return ADVICE.get(error.errno or 0, "see to that storage")
    if "botocore" not in sys.modules:  # then no error is S3's; don't import it here
        return None
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    if is_transient(error):
        return "the storage is busy or can't be reached: make sure that it answers again"
    if isinstance(error, ClientError):
        return PERMISSIONS if error_code(error) in DENIED else "see to that storage"
    return "see to that storage" if isinstance(error, (BotoCoreError, Boto3Error)) else None


def is_of_one_file(error: Exception) -> bool:
    """Whether the error may be about this file only."""
    return isinstance(error, PermissionError) or error_code(error) in OF_ONE_OBJECT


def stayed(outcomes: Sequence[str | Exception | None]) -> dict[int, str]:
    """Returns why files stay, by index.

    outcomes: for each file None if it does not stay, a reason, or an error of is_of_one_file(). If several files all
    meet the same error, it is not about one file: raises it.
    """
    reasons = [_refused(why) if isinstance(why, Exception) else why for why in outcomes]
    if len(outcomes) > 1 and isinstance(outcomes[0], Exception) and len(set(reasons)) == 1:
        raise outcomes[0]
    return {n: reason for n, reason in enumerate(reasons) if reason}


def _refused(error: Exception) -> str:
    return Refused.by(error.strerror if isinstance(error, OSError) else error_code(error))


def is_missing(error: Exception) -> bool:
    """Whether the object or version does not exist."""
    return error_code(error) in ("NoSuchKey", "404", "NotFound", "NoSuchVersion")


def is_changed(error: Exception) -> bool:
    """Whether the object differs from the expected one, or exists already."""
    return error_code(error) in ("PreconditionFailed", "412", "ConditionalRequestConflict", "409")


EXAMPLES = 20
"""The most due files that a report names."""
LOOK = "look"
"""The name of a table's LastLook among its notes()."""


@dataclass
class Tally:
    """A number of files and their bytes."""

    files: int = 0
    size: int = 0

    def add(self, size: int) -> None:
        """Counts one file."""
        self.files += 1
        self.size += size

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.files + other.files, self.size + other.size)


@dataclass
class Report:
    """The report of one pass over one table."""

    identifier: str
    dry_run: bool
    judged_ms: int | None = None
    """By the storage's clock; None if no file could be judged."""
    listed: Tally = field(default_factory=Tally)
    """In the table's folders, so without receipts."""
    kept: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    """By reason."""
    unneeded: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    """By reason, including receipts."""
    due: Tally = field(default_factory=Tally)
    """Unneeded files whose wait is over."""
    examples: list[tuple[str, int, str]] = field(default_factory=list)
    """Location, bytes and reason."""
    trashed: Tally = field(default_factory=Tally)
    purged: Tally = field(default_factory=Tally)
    refused: list[Kept] = field(default_factory=list)
    """Due files that stayed in the table, and expired ones that stayed in the trash."""
    problems: list[str] = field(default_factory=list)
    is_large: bool = False
    """Whether a person must allow the move."""

    @property
    def unreachable(self) -> Tally:
        """All unneeded files, due or not."""
        return sum(self.unneeded.values(), Tally())


def notes(staging: str, uuid: UUID, name: str) -> str:
    """Returns where the collector's notes about a table are."""
    return f"{staging}/collect/{uuid}/{name}"


@dataclass(frozen=True)
class LastLook(Durable):
    """The last pass that could judge files; ``problems`` are of the last pass, whether it could or not."""

    at_ms: int | None = None
    files: int = 0
    """Unneeded files that it left in place."""
    size: int = 0
    due: int = 0
    """Those whose wait is over."""
    problems: tuple[str, ...] = ()

    def after(self, report: Report) -> LastLook:
        """Returns the result after one more pass."""
        problems = tuple(report.problems)
        if report.judged_ms is None:
            return replace(self, problems=problems)
        found, gone = report.unreachable, report.trashed
        files, size, due = found.files - gone.files, found.size - gone.size, report.due.files - gone.files
        return LastLook(report.judged_ms, files, size, due, problems)

    @classmethod
    def read(cls, io: FileIO, location: str) -> LastLook | None:
        """Reads a stored look; None if it is missing, torn or of another version. Raises OSError."""
        return read_json(io, location, cls.from_json)

"""What a collection reports, and why it refuses a table."""

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

NEXT = "then run it again: what was done is in the ledger, and the next run goes on from there"
DENIED = {"AccessDenied", "403", "Forbidden", "AllAccessDisabled", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
OF_ONE_OBJECT = {"AccessDenied", "403", "InvalidObjectState"}
"""The codes that S3 may have for a single object: one that is locked, denied by a policy, or archived."""


class Refused(str):
    """The reason of a file that stays because the storage refuses to remove it, for now."""

    __slots__ = ()

    @classmethod
    def by(cls, said: str | None) -> Refused:
        """said: the words or the code of the storage."""
        return cls(f"the storage refuses it: {said}")


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
    return Refused.by(error.strerror if isinstance(error, OSError) else error_code(error))


def is_missing(error: Exception) -> bool:
    """Tells whether S3 says that the object or its version is not there."""
    return error_code(error) in ("NoSuchKey", "404", "NotFound", "NoSuchVersion")


def is_changed(error: Exception) -> bool:
    """Tells whether S3 says that the object is not the one that was meant, or is there already."""
    return error_code(error) in ("PreconditionFailed", "412", "ConditionalRequestConflict", "409")


EXAMPLES = 20
"""The number of due files that a report names, each with the reason."""
LOOK = "look"
"""The name of what a pass leaves for the health of its table (notes())."""


@dataclass
class Tally:
    """A number of files and their bytes."""

    files: int = 0
    size: int = 0
    """The sum of their sizes, in bytes."""

    def add(self, size: int) -> None:
        """Counts one more file. size: its bytes."""
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
    """The time for which the files were judged, by the storage's clock; None if none was judged."""
    listed: Tally = field(default_factory=Tally)
    """The files in the table's folders; receipts don't count."""
    kept: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    """The files that stay, by the reason."""
    unneeded: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    """The files that may go, by the reason, receipts included; only the first of them are marked where there are very
    many."""
    due: Tally = field(default_factory=Tally)
    """The unneeded files that were marked long enough."""
    examples: list[tuple[str, int, str]] = field(default_factory=list)
    """The first of the due files: the location, the size in bytes, and why it is due, a sentence for a person."""
    trashed: Tally = field(default_factory=Tally)
    """The files that this pass moved to the trash."""
    purged: Tally = field(default_factory=Tally)
    """The files that are gone for good after their time in the trash."""
    refused: list[Kept] = field(default_factory=list)
    """The due files that were not moved to the trash, and those that were not deleted from it, each with the reason."""
    problems: list[str] = field(default_factory=list)
    """What a person has to see to: texts that name the table, what was found, and what to do next."""
    is_large: bool = False
    """Whether so much is due that a person has to allow it before anything is moved."""

    @property
    def unreachable(self) -> Tally:
        """All files that nobody needs."""
        return sum(self.unneeded.values(), Tally())


def notes(staging: str, uuid: UUID, name: str) -> str:
    """Returns the location at which the collector keeps something about a table. staging: LAKEHOUSE_STAGING."""
    return f"{staging}/collect/{uuid}/{name}"


@dataclass(frozen=True)
class LastLook(Durable):
    """The result of the last passes, for the check ``storage``.

    ``problems`` are the last pass's. The rest is of the last pass that could judge the table's files; 0 and None where
    there was none.
    """

    at_ms: int | None = None
    """The time of that pass, by the storage's clock."""
    files: int = 0
    """The number of files that nobody needs and that are still there."""
    size: int = 0
    """Their size in bytes."""
    due: int = 0
    """The number of those that were marked long enough."""
    problems: tuple[str, ...] = ()
    """Messages for a person."""

    def after(self, report: Report) -> LastLook:
        """Returns what is to be kept once there was one more pass."""
        problems = tuple(report.problems)
        if report.judged_ms is None:
            return replace(self, problems=problems)
        found, gone = report.unreachable, report.trashed
        files, size, due = found.files - gone.files, found.size - gone.size, report.due.files - gone.files
        return LastLook(report.judged_ms, files, size, due, problems)

    @classmethod
    def read(cls, io: FileIO, location: str) -> LastLook | None:
        """Reads what the last passes left; None where there was no pass, or the file is torn or another version's.

        Raises OSError.
        """
        return read_json(io, location, cls.from_json)

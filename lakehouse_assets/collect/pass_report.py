"""Holds what a pass of the collector found and did, and keeps a part of it for the health of the table.

How it is shown is not known here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from uuid import UUID

from pyiceberg.io import FileIO

from lakehouse_assets.collect.refusals import Kept
from lakehouse_assets.wire.receipts import read_json
from lakehouse_assets.wire.work import Durable

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

"""What a pass of the collector found and did, and what stays of it for the health of a table.
How it is shown is not known here."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any
from uuid import UUID

from pyiceberg.io import FileIO

from lakehouse_assets.collect.trash import Kept
from lakehouse_assets.protocol.versions import with_version, without_version

EXAMPLES = 20
"""So many files that are due are named, each with the reason."""
LOOK = "look"
"""The name of what a pass leaves for the health of its table (notes())."""


@dataclass
class Tally:
    """files, size: their number and bytes."""

    files: int = 0
    size: int = 0

    def add(self, size: int) -> None:
        self.files += 1
        self.size += size


class Rule(StrEnum):
    """Why the collector did not do what it could have done; each is an error for a person to see to."""

    PLACE = "place"
    """The table lies so, or another one, that nobody can tell whose file a file is."""
    UNREADABLE = "unreadable"
    """What the table needs can't be read."""
    OWNER = "owner"
    """Another catalog has the table as well, or has had it since."""
    CHANGED = "changed"
    """Another table took its place during the pass."""
    ENDED = "ended"
    """An error ended the pass; it may have passed by the next one."""
    SHARE = "share"
    """So much is due that a person has to allow it."""


@dataclass(frozen=True)
class Problem:
    """message: names the table, what was found, what to do next."""

    rule: Rule
    message: str


@dataclass(frozen=True)
class Example:
    """A file that is due. size: bytes. why: for a person."""

    location: str
    size: int
    why: str


@dataclass
class Report:
    """One pass over one table.

    listed: in the table's folders. kept: why files stay. unneeded: why the others may go, receipts included; only the
    first of them are marked where there are very many. due: those of them that were marked long enough. examples: the
    first of those. trashed: that are in the trash now. refused: that are not, and why. purged: that are gone for good
    after their time in the trash. judged_ms: when the files were judged, by the storage's clock; None if none was.
    seconds: of each step.
    """

    identifier: str
    dry_run: bool
    judged_ms: int | None = None
    listed: Tally = field(default_factory=Tally)
    kept: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    unneeded: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    due: Tally = field(default_factory=Tally)
    examples: list[Example] = field(default_factory=list)
    trashed: Tally = field(default_factory=Tally)
    purged: Tally = field(default_factory=Tally)
    refused: list[Kept] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def add_due(self, file: Example) -> None:
        self.due.add(file.size)
        if len(self.examples) < EXAMPLES:
            self.examples.append(file)

    @property
    def unreachable(self) -> Tally:
        """All that nobody needs."""
        return Tally(sum(t.files for t in self.unneeded.values()), sum(t.size for t in self.unneeded.values()))

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure a step's seconds."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started


def notes(staging: str, uuid: UUID, name: str) -> str:
    """Where the collector keeps something about a table. staging: LAKEHOUSE_STAGING."""
    return f"{staging}/collect/{uuid}/{name}"


@dataclass(frozen=True)
class LastLook:
    """What the last passes found, for the check ``storage``. problems: of the last one, messages for a person.

    The rest is of the last pass that could judge the table's files; 0 and None where there was none. at_ms: when, by
    the storage's clock. files, size: that nobody needs and that are still there. due: how many of them were marked
    long enough.
    """

    at_ms: int | None = None
    files: int = 0
    size: int = 0
    due: int = 0
    problems: tuple[str, ...] = ()

    def after(self, report: Report) -> LastLook:
        """What is to be kept when there was one more pass."""
        found, gone = report.unreachable, report.trashed
        messages = tuple(problem.message for problem in report.problems)
        if report.judged_ms is None:
            return replace(self, problems=messages)
        left = (found.files - gone.files, found.size - gone.size, report.due.files - gone.files)
        return LastLook(report.judged_ms, *left, messages)

    def write(self, io: FileIO, location: str) -> None:
        """Raises OSError."""
        with io.new_output(location).create(overwrite=True) as stream:
            stream.write(json.dumps(with_version(asdict(self))).encode())

    @classmethod
    def read(cls, io: FileIO, location: str) -> LastLook | None:
        """None where there was no pass, or what it left is torn or another version's. Raises OSError."""
        try:
            with io.new_input(location).open() as stream:
                fields: Mapping[str, Any] = without_version(json.loads(stream.read()))
            return cls(**{**fields, "problems": tuple(fields["problems"])})
        except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
            return None

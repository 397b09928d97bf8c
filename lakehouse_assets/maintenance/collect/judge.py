"""Decides which files may go. A mark notes since when a file is unneeded.

Broken marks count as none, which only costs another grace period.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

from pyiceberg.io import FileIO

from lakehouse_assets.maintenance.collect.listing import Listed
from lakehouse_assets.maintenance.collect.needed import (
    HELD,
    Periods,
    PlaceSet,
    RunState,
    StagedFiles,
    digest,
    is_over,
    token_of_base,
)
from lakehouse_assets.storage.place import crc_owner
from lakehouse_assets.wire.receipts import read_json
from lakehouse_assets.wire.work import Durable


class Keep(StrEnum):
    """Why a file stays."""

    LIVE = "live"
    HELD = "held by a run that may still need it"
    YOUNG = "too young: a worker or another writer may still name it"
    FOREIGN = "named by metadata that the catalog lacks: of an earlier table in this place, or of a competing commit"
    AMBIGUOUS = "its name means different files to different clients"
    TWIN = "differs from a live file's name only by case or Unicode normalisation"


class WhyUnneeded(StrEnum):
    """Why a file may go."""

    UNNAMED = "no snapshot and no run names it"
    STAGED = "staged by a run"
    FORK = "fork base of a run"
    RECEIPT = "receipt of a run"


class Judgement(NamedTuple):
    """The verdict on one file."""

    keep: Keep | None
    """None if the file may go."""
    why: WhyUnneeded = WhyUnneeded.UNNAMED
    token: str | None = None


LIVE = Judgement(Keep.LIVE)


@dataclass(frozen=True)
class Knowledge:
    """What decides about files."""

    live: PlaceSet
    staged: StagedFiles
    foreign: PlaceSet
    """Places that metadata unknown to the catalog names; somebody may need them."""
    states: Mapping[str, RunState]
    """Of all runs that left files, by token."""
    now_ms: int
    periods: Periods

    def judge(self, file: Listed, marked: str | None) -> Judgement:
        """Judges a file by the first rule that fits. marked: the token in its mark, which outlives receipts."""
        # Rules that keep come first; then a run's state decides, or else the file's age. Fork bases are an exception,
        # before FOREIGN: a fork is no table that somebody may need.
        place, owner = file.place, crc_owner(file.place)
        # A Hadoop checksum stays with its file, named or not.
        keys = (digest(place),) if owner is place else (digest(owner), digest(place))
        if any(map(self.live.has, keys)):
            return LIVE
        if place.is_ambiguous:
            return Judgement(Keep.AMBIGUOUS)
        if any(map(self.staged.held.has, keys)):
            return Judgement(Keep.HELD)
        if self.live.has_twin(owner) or self.staged.held.has_twin(owner):
            return Judgement(Keep.TWIN)
        if base := token_of_base(owner):
            return self._of_run(base, WhyUnneeded.FORK)
        if any(map(self.foreign.has, keys)):  # also files that runs staged and the other table published
            return Judgement(Keep.FOREIGN)
        if token := self.staged.free.get(keys[0]) or marked:
            return self._of_run(token, WhyUnneeded.STAGED)
        return Judgement(None if is_over(self.periods.unnamed, file.modified_ms, self.now_ms) else Keep.YOUNG)

    def judge_receipt(self, token: str) -> Judgement:
        """Judges a receipt of a run."""
        return self._of_run(token, WhyUnneeded.RECEIPT)

    def _of_run(self, token: str, why: WhyUnneeded) -> Judgement:
        # A token that was not looked up counts as alive.
        return Judgement(Keep.HELD if self.states.get(token, RunState.ALIVE) in HELD else None, why, token)


MOST = 250_000
"""The most marks of a pass, for the files modified first; each takes 150 bytes of memory."""
DIGEST_BYTES = 16


class Mark(NamedTuple):
    """When a file was first seen unneeded, and the run that named it."""

    first_seen_ms: int
    token: str | None = None


@dataclass(frozen=True)
class MarkedFiles:
    """The files that share one mark."""

    mark: Mark
    files: str
    """Concatenated digests in hexadecimal."""


@dataclass(frozen=True)
class MarksOfTable(Durable):
    """A table's serialized marks."""

    newest_ms: tuple[tuple[str, int], ...]
    """As in Marks."""
    groups: tuple[MarkedFiles, ...]


@dataclass(frozen=True)
class Marks:
    """The marks of an earlier pass."""

    newest_ms: Mapping[str, int] = field(default_factory=dict)
    """When each run's last file was written, by token."""
    by_digest: Mapping[bytes, Mark] = field(default_factory=dict)

    def of(self, file: Listed) -> Mark | None:
        """Returns the mark of an unchanged file."""
        return self.by_digest.get(_file_digest(file))


@dataclass(frozen=True)
class MarkStore:
    """Reads and writes a table's marks."""

    io: FileIO
    location: str

    def read(self) -> Marks:
        """Returns no marks if the file is missing, torn or of another version.

        Raises OSError if the storage fails: without marks, every file would wait for another grace period.
        """
        found = read_json(self.io, self.location, MarksOfTable.from_json)
        if found is None:
            return Marks()
        return Marks(
            dict(found.newest_ms), {of_file: group.mark for group in found.groups for of_file in _split(group.files)}
        )

    def write(self, marks: Iterable[tuple[Listed, Mark]], newest_ms: Mapping[str, int]) -> None:
        """Replaces the marks. Raises OSError."""
        files: dict[Mark, bytearray] = defaultdict(bytearray)
        for file, mark in marks:
            files[mark] += _file_digest(file)
        groups = tuple(MarkedFiles(mark, digests.hex()) for mark, digests in files.items())
        MarksOfTable(tuple(newest_ms.items()), groups).write(self.io, self.location)


def _split(digests: str) -> Iterator[bytes]:
    together = bytes.fromhex(digests)
    return (together[start : start + DIGEST_BYTES] for start in range(0, len(together), DIGEST_BYTES))


def _file_digest(file: Listed) -> bytes:
    like = f"\0{file.size}\0{file.modified_ms}\0{file.etag}".encode()
    return blake2b(file.place.raw + like, digest_size=DIGEST_BYTES).digest()

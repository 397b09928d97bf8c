"""What every kind of storage must be able to do, so that a file can be taken from a table and given back.
Each kind has its own file; what is taken, and what is written down of it, is decided in trash.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from lakehouse_assets.collect.ledger import Batch, Entry
from lakehouse_assets.storage.place import Place


class Back(StrEnum):
    """What became of a file that was to come back; any other text is the reason why it could not."""

    RESTORED = "restored"
    THERE = "there already"


GONE = "it is not there any more"
CHANGED = "it is not the file that was listed"
OTHER = "another file is there by now, which is not overwritten; move it away to get this one back"
LOST = "the trash does not have it"


@dataclass(frozen=True, slots=True)
class Kept:
    """A file that stays where it is. reason: for a person."""

    place: Place
    reason: str


class Bin(Protocol):
    """Takes and gives back files of one storage. All methods are safe to repeat after they were killed anywhere, and
    raise what their storage raises."""

    @property
    def how(self) -> str:
        """The way files are compared right before they are taken."""

    def prepare(self, entries: Sequence[Entry], batch_id: str) -> list[Entry | str]:
        """The entries as the ledger needs them to bring the files back; the reason for those that can't be taken."""

    def take(self, batch: Batch) -> Mapping[int, str]:
        """Move the batch's files into the trash; the ordinals of those that stay where they are, with the reason."""

    def is_held(self, entry: Entry) -> bool:
        """Whether the trash has the file and the table has not."""

    def give_back(self, entries: Sequence[Entry]) -> list[str]:
        """Of each: Back, or why not."""

    def destroy(self, batch: Batch, taken: Sequence[int]) -> Mapping[int, str]:
        """Delete for good what the trash has of a batch. taken: the ordinals that are known to be taken. Returns the
        ordinals of those that had to stay, with the reason."""


BinOf = Callable[[Batch], Bin]
"""By which trash a batch was taken."""


def held_at(entries: Sequence[Entry], folder: str) -> list[Entry | str]:
    """The entries, each with a place of its own in that folder of the trash."""
    return [replace(entry, held=f"{folder}/{n:05d}") for n, entry in enumerate(entries)]

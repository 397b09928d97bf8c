"""The operations that every kind of storage must offer, so that a file can be taken from a table and given back.

Each kind has its own file; what is taken, and what is written down of it, is decided in trash.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from lakehouse_assets.collect.ledger import Batch, Entry
from lakehouse_assets.storage.place import Place


class Back(StrEnum):
    """The file is in the table again. Bin.give_back() returns any other text as the reason why it is not."""

    RESTORED = "restored"
    """It was brought back."""
    THERE = "there already"
    """The same file was there already."""


GONE = "it is not there any more"
CHANGED = "it is not the file that was listed"
OTHER = "another file is there by now, which is not overwritten; move it away to get this one back"
LOST = "the trash does not have it"


@dataclass(frozen=True, slots=True)
class Kept:
    """A file that stays where it is."""

    place: Place
    reason: str
    """A sentence for a person."""


class Bin(Protocol):
    """Takes files of one storage and gives them back.

    All methods are safe to repeat after the process was killed at any point, and raise what their storage raises.
    """

    @property
    def how(self) -> str:
        """The way files are compared right before they are taken, in words for the ledger."""

    def prepare(self, entries: Sequence[Entry], batch_id: str) -> list[Entry | str]:
        """Returns each entry as the ledger needs it to bring the file back, or the reason why it can't be taken."""

    def take(self, batch: Batch) -> Mapping[int, str]:
        """Moves the batch's files into the trash.

        Returns the ordinals of those that stay where they are, with the reason.
        """

    def is_held(self, entry: Entry) -> bool:
        """Tells whether the trash has the file and the table does not have it."""

    def give_back(self, entries: Sequence[Entry]) -> list[str]:
        """Brings files back to where they were.

        Returns for each a value of Back, or the reason why it can't come back.
        """

    def destroy(self, batch: Batch, taken: Sequence[int]) -> Mapping[int, str]:
        """Deletes for good what the trash has of a batch.

        taken: the ordinals of the files that are known to be taken. Returns the ordinals of those that had to stay,
        with the reason.
        """


BinOf = Callable[[Batch], Bin]
"""Finds the bin by which a batch was taken."""


def held_at(entries: Sequence[Entry], folder: str) -> list[Entry | str]:
    """Returns the entries, each with a place of its own in that folder of the trash."""
    return [replace(entry, held=f"{folder}/{n:05d}") for n, entry in enumerate(entries)]

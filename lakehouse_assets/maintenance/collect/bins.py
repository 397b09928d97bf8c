"""A bin is the way in which one kind of storage takes files into the trash, and gives them back."""

from __future__ import annotations

import errno
import filecmp
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from stat import S_ISREG
from typing import Protocol

from lakehouse_assets.maintenance.collect.ledger import Batch, Entry
from lakehouse_assets.maintenance.collect.listing import local_listed
from lakehouse_assets.maintenance.collect.report import stayed
from lakehouse_assets.storage.objects import (
    make_folder,
    sync,
)
from lakehouse_assets.storage.place import Place

# BACK and THERE: the file is in its place again. GONE, CHANGED: why it was not taken. OTHER, LOST: why it is not back.
BACK = "restored"
THERE = "there already"
GONE = "it no longer exists"
CHANGED = "it is no longer the file that was listed"
OTHER = "another file is now in its place and is not overwritten; move it away to get this one back"
LOST = "the trash does not have it"


class Bin(Protocol):
    """Takes files and gives them back. Each method can be repeated after a kill at any point."""

    def prepare(self, entries: Sequence[Entry], batch_id: str) -> list[Entry | str]:
        """Returns entries with ``held`` and ``version``, or why they can't be taken."""

    def take(self, batch: Batch) -> Mapping[int, str]:
        """Moves files into the trash. Returns why files stay, by ordinal."""

    def is_held(self, entry: Entry) -> bool:
        """Whether only the trash has the file."""

    def give_back(self, entries: Sequence[Entry]) -> list[str]:
        """Moves files back. Returns for each BACK, THERE, or a reason."""

    def destroy(self, batch: Batch, taken: Sequence[int]) -> Mapping[int, str]:
        """Deletes a batch for good. Returns why files stay, by ordinal. taken: ordinals of files in the trash."""


def held_at(entries: Sequence[Entry], folder: str) -> list[Entry | str]:
    """Gives each entry a distinct location in the folder."""
    return [replace(entry, held=f"{folder}/{n:05d}") for n, entry in enumerate(entries)]


@dataclass(frozen=True)
class LocalBin:
    """Renames files, which keeps their bytes, inodes and times."""

    folder: str

    @classmethod
    def beside(cls, folder: str, table: Place) -> LocalBin:
        """Returns the bin. Raises OSError (EXDEV) if the table is on another file system than the trash."""
        make_folder(folder)
        if os.path.exists(table.key) and os.stat(table.key).st_dev != os.stat(folder).st_dev:
            raise OSError(errno.EXDEV, f"{os.strerror(errno.EXDEV)}: it and the trash {folder}")
        return cls(folder)

    def prepare(self, entries: Sequence[Entry], batch_id: str) -> list[Entry | str]:
        """Returns entries with paths in the batch's folder."""
        return held_at(entries, f"{self.folder}/{batch_id}")

    def take(self, batch: Batch) -> Mapping[int, str]:
        """Renames each unchanged file."""
        folder = os.path.join(self.folder, batch.id)
        make_folder(folder)
        told = [_take(entry) for entry in batch.entries]
        sync(folder)
        return stayed(told)

    def is_held(self, entry: Entry) -> bool:
        """As Bin.is_held()."""
        return os.path.lexists(entry.held) and not _is_same(entry, entry.location)

    def give_back(self, entries: Sequence[Entry]) -> list[str]:
        """A file with the same bytes counts as THERE."""
        told = [_give_back(entry) for entry in entries]
        for folder in {os.path.dirname(e.location) for e, t in zip(entries, told, strict=True) if t == BACK}:
            sync(folder)
        return told

    def destroy(self, batch: Batch, taken: Sequence[int]) -> Mapping[int, str]:
        """Removes the batch's folder."""
        folder = os.path.join(self.folder, batch.id)
        if os.path.lexists(folder):
            shutil.rmtree(folder)
        return {}


def _take(entry: Entry) -> str | PermissionError | None:
    """Renames a file. Returns why it stays, or the error for stayed(); None if it went."""
    if not os.path.lexists(entry.location):
        return GONE
    if not _is_same(entry, entry.location):
        return CHANGED
    try:
        os.rename(entry.location, entry.held)
    except FileNotFoundError:
        return GONE
    except PermissionError as error:
        return error
    if _is_same(entry, entry.held):
        return None
    _move(entry.held, entry.location)  # rewritten between the comparison and the rename
    return CHANGED


def _is_same(entry: Entry, path: str) -> bool:
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    found = local_listed(entry.place, status)
    return S_ISREG(status.st_mode) and (found.size, found.etag) == (entry.size, entry.etag)


def _give_back(entry: Entry) -> str:
    if not os.path.lexists(entry.held):
        if _is_same(entry, entry.location):
            return THERE
        return OTHER if os.path.lexists(entry.location) else LOST
    make_folder(os.path.dirname(entry.location))
    try:
        _move(entry.held, entry.location)
    except FileExistsError:
        if not os.path.isfile(entry.location) or not filecmp.cmp(entry.held, entry.location, shallow=False):
            return OTHER
        was_killed = os.path.samefile(entry.held, entry.location)  # between the two halves of _move
        os.unlink(entry.held)
        return BACK if was_killed else THERE
    return BACK


def _move(source: str, target: str) -> None:
    """Renames by a hard link, as rename() overwrites. Raises FileExistsError if the target exists.

    Without hard links, overwrites a target that appears meanwhile.
    """
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        # EPERM: another user's file (fs.protected_hardlinks), or, like EOPNOTSUPP, a file system without hard links.
        # EMLINK: the file has too many links.
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from error
        os.rename(source, target)
    else:
        os.unlink(source)

"""Where collected files wait: in bins beside the table. On a disk, files are renamed."""

from __future__ import annotations

import errno
import filecmp
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from stat import S_ISREG
from typing import Protocol

from lakehouse_assets.collect.ledger import Batch, Entry
from lakehouse_assets.collect.listing import local_listed
from lakehouse_assets.collect.report import stayed
from lakehouse_assets.storage.objects import (
    make_folder,
    sync,
)
from lakehouse_assets.storage.place import Place

BACK = "restored"
"""The file was brought back."""
THERE = "there already"
"""The same file was there already."""
GONE = "it is not there any more"
CHANGED = "it is not the file that was listed"
OTHER = "another file is there by now, which is not overwritten; move it away to get this one back"
LOST = "the trash does not have it"


class Bin(Protocol):
    """Takes files of one storage and gives them back.

    All methods are safe to repeat after the process was killed at any point, and raise what their storage raises.
    """

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

        Returns for each BACK or THERE, or the reason why it can't come back.
        """

    def destroy(self, batch: Batch, taken: Sequence[int]) -> Mapping[int, str]:
        """Deletes for good what the trash has of a batch.

        taken: the ordinals of the files that are known to be taken. Returns the ordinals of those that had to stay,
        with the reason.
        """


def held_at(entries: Sequence[Entry], folder: str) -> list[Entry | str]:
    """Returns the entries, each with a place of its own in that folder of the trash."""
    return [replace(entry, held=f"{folder}/{n:05d}") for n, entry in enumerate(entries)]


@dataclass(frozen=True)
class LocalBin:
    """The bin of a file system: files are renamed, so that their bytes, inodes and times stay what they are.

    Nothing is copied, so it must be the table's own file system.
    """

    folder: str
    """The folder of the trash, an absolute path."""

    @classmethod
    def beside(cls, folder: str, table: Place) -> LocalBin:
        """Returns the bin for a table's files.

        Raises OSError (EXDEV) where they are on another file system than the folder.
        """
        make_folder(folder)
        if os.path.exists(table.key) and os.stat(table.key).st_dev != os.stat(folder).st_dev:
            raise OSError(errno.EXDEV, f"{os.strerror(errno.EXDEV)}: it and the trash {folder}")
        return cls(folder)

    def prepare(self, entries: Sequence[Entry], batch_id: str) -> list[Entry | str]:
        """Returns each entry with a path of its own in the batch's folder; no file is looked at yet."""
        return held_at(entries, f"{self.folder}/{batch_id}")

    def take(self, batch: Batch) -> Mapping[int, str]:
        """Renames each file that is still what was listed into the batch's folder; returns why the others stay."""
        folder = os.path.join(self.folder, batch.id)
        make_folder(folder)
        told = [_take(entry) for entry in batch.entries]
        sync(folder)
        return stayed(told)

    def is_held(self, entry: Entry) -> bool:
        """Tells whether a file is at the entry's path in the trash, and the listed one is not in the table."""
        return os.path.lexists(entry.held) and not _is_same(entry, entry.location)

    def give_back(self, entries: Sequence[Entry]) -> list[str]:
        """Moves files back, into new folders where theirs are gone; a file of the same bytes counts as there."""
        told = [_give_back(entry) for entry in entries]
        for folder in {os.path.dirname(e.location) for e, t in zip(entries, told, strict=True) if t == BACK}:
            sync(folder)
        return told

    def destroy(self, batch: Batch, taken: Sequence[int]) -> Mapping[int, str]:
        """Removes the batch's folder with all that is in it; no file has to stay."""
        folder = os.path.join(self.folder, batch.id)
        if os.path.lexists(folder):
            shutil.rmtree(folder)
        return {}


def _take(entry: Entry) -> str | PermissionError | None:
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
    _move(entry.held, entry.location)  # written anew between the comparison and the rename
    return CHANGED


def _is_same(entry: Entry, path: str) -> bool:
    """Tells whether the file that was listed is at that path."""
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
    """Renames a file like os.rename, but raises FileExistsError where the target exists.

    That is atomic only where hard links can be made; elsewhere a file that comes in the same moment is overwritten.
    """
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        # EPERM: a file of another user (fs.protected_hardlinks), or a file system without hard links, as EOPNOTSUPP.
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from error
        os.rename(source, target)
    else:
        os.unlink(source)

"""Moves files to the trash on a file system by renaming them, so that their bytes, inodes and times stay what they are.

Nothing is copied, so it must be the table's own file system.
"""

from __future__ import annotations

import errno
import filecmp
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from stat import S_ISREG

from lakehouse_assets.collect.bins import CHANGED, GONE, LOST, OTHER, Back, held_at
from lakehouse_assets.collect.ledger import Batch, Entry
from lakehouse_assets.collect.listing import local_listed
from lakehouse_assets.collect.refusals import stayed
from lakehouse_assets.storage.objects import make_folder, sync
from lakehouse_assets.storage.place import Place


@dataclass(frozen=True)
class LocalBin:
    """The bin of a file system."""

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

    @property
    def how(self) -> str:
        """Says for the ledger that files are renamed, and compared by inode, size and time before and after."""
        return "renamed, and inode, size and time compared before and after"

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
        for folder in {os.path.dirname(e.location) for e, t in zip(entries, told, strict=True) if t == Back.RESTORED}:
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
        return Back.THERE if _is_same(entry, entry.location) else _absent(entry)
    make_folder(os.path.dirname(entry.location))
    try:
        _move(entry.held, entry.location)
    except FileExistsError:
        if not os.path.isfile(entry.location) or not filecmp.cmp(entry.held, entry.location, shallow=False):
            return OTHER
        was_killed = os.path.samefile(entry.held, entry.location)  # between the two halves of _move
        os.unlink(entry.held)
        return Back.RESTORED if was_killed else Back.THERE
    return Back.RESTORED


def _absent(entry: Entry) -> str:
    return OTHER if os.path.lexists(entry.location) else LOST


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

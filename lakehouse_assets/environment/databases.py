"""The SQLite databases of a home: made with the mode of its other files, and checked before anything opens them."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from lakehouse_assets.environment.env_reader import SettingsError

CATALOG = "catalog.db"
SHARING = (
    "to share a home, its users need a common group and umask 002, and its folders the setgid bit; once: "
    "`chgrp -R GROUP {home}; chmod -R g+rwX {home}; find {home} -type d -exec chmod g+s {{}} +`"
)


def make_database(path: Path) -> None:
    """Creates an empty database where there is none, with the mode that the umask gives.

    SQLite itself creates files that no group may write, whatever the umask; its ``-wal`` and ``-shm`` files have the
    database's mode.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.touch()


def check_databases(home: Path) -> None:
    """Raises SettingsError where this user may not write a database of the home, or the folder of one.

    SQLite would open it all the same, and leave files beside it that lock its owner out.
    """
    for path in _databases(home):
        if not os.access(path, os.W_OK):
            text = f"LAKEHOUSE_HOME={home}: you may not write {path}, which belongs to {_owner(path)}"
            raise SettingsError(f"{text}; {SHARING.format(home=home)}")


def refused_database(error: BaseException, home: Path) -> str | None:
    """Returns a message for an error of SQLite that says a database can't be opened or written; else None."""
    at: BaseException | None = error
    while at:
        if isinstance(at, sqlite3.Error) and getattr(at, "sqlite_errorcode", 0) & 0xFF in (
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_PERM,
        ):
            text = f"a database below LAKEHOUSE_HOME={home} can't be opened for writing ({at})"
            return f"{text}: look who owns its files and folders, and whether the disk is mounted for writing"
        at = at.__cause__ or at.__context__
    return None


def _databases(home: Path) -> Iterator[Path]:
    """Yields what is there of the databases that all commands open, each behind its folder."""
    for folder, pattern in (
        (home, f"{CATALOG}*"),
        (home / "dagster" / "history", "runs.db*"),
        (home / "dagster" / "history" / "runs", "index.db*"),
        (home / "dagster" / "schedules", "schedules.db*"),
    ):
        if folder.exists():
            yield folder
            yield from sorted(folder.glob(pattern))


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except KeyError:  # a user that this machine has no name for, as in a container
        return f"user {path.stat().st_uid}"

"""Recognises a full disk in many libraries' errors, and reports its path and free space."""

from __future__ import annotations

import errno
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lakehouse_assets.environment.catalog import catalog_properties
from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.environment.local_paths import path_of
from lakehouse_assets.environment.settings import Settings

MIB = 2**20
# With less than this many bytes free, SQLite can't write its journal, and reports just an I/O error.
LEAST_FREE = MIB


def full_disk(error: BaseException, settings: Settings) -> str | None:
    """Returns a message if a full disk caused the error or one of its causes or contexts; else None."""
    causes = list(_chain(error))
    certain = next(filter(_is_full_disk, causes), None)
    if not (certain or any(map(_may_be_full_disk, causes))):
        return None
    spaces = {place: shutil.disk_usage(place) for place in _places(settings) if place.exists()}
    # The fullest: many errors don't tell the file system.
    place, space = min(spaces.items(), key=lambda item: item[1].free)
    where = f"{space.free / MIB:,.1f} of {space.total / MIB:,.0f} MiB free on the file system of {place}"
    if space.free < LEAST_FREE:
        return f"the disk is full: {where}; free up space there"
    if certain is None:  # an I/O error on a disk with room has another cause
        return None
    return f"a disk was full or a quota was used up ({certain}); the fullest file system in use: {where}; free up space"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    left, seen = [error], set()
    while left:
        error = left.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            yield error
            left += [error.__cause__, error.__context__]


def _is_full_disk(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def _may_be_full_disk(error: BaseException) -> bool:
    # SQLite's errors that a full disk may cause. The lowest byte is the primary code
    # (https://www.sqlite.org/rescode.html).
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


def _places(settings: Settings) -> Iterator[Path]:
    # Where this process and its children write: each may be on a file system of its own.
    yield settings.home
    yield from (settings.home / name for name in ("dagster", "warehouse", "staging", "tmp", "reports"))
    urls = [settings.staging, settings.landing]
    with suppress(SettingsError):
        properties = catalog_properties(settings)
        urls += [properties.get("warehouse", ""), properties.get("uri", "")]
    for url in urls:
        if path := path_of(url):
            yield path
        elif url.startswith("sqlite"):
            from sqlalchemy import make_url

            yield Path(make_url(url).database or "").parent
    yield from (Path(tempfile.gettempdir()), settings.cache)

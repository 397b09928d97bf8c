"""A full disk, recognised behind what many libraries make of it, and told with its path and its free space.
Nothing is freed or tried again here."""

from __future__ import annotations

import errno
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from resources.catalog import catalog_properties
from resources.settings import Settings, SettingsError

# Bytes. Where less is left SQLite can't make its journal, which it calls an I/O error.
HARDLY_ANY = 2**20
MIB = 2**20


def full_disk(error: BaseException, settings: Settings) -> str | None:
    """What to tell of an error whose cause is a full disk: which file system, its free space; None for any other error.
    Causes and contexts count: Dagster, SQLAlchemy and the catalog wrap what the system said."""
    causes = list(_chain(error))
    said_so = next(filter(_says_so, causes), None)
    if not (said_so or any(map(_may_mean_it, causes))):
        return None
    spaces = {place: shutil.disk_usage(place) for place in _places(settings) if place.exists()}
    place, space = min(spaces.items(), key=lambda of: of[1].free)
    where = f"{space.free / MIB:,.1f} of {space.total / MIB:,.0f} MiB are free on the file system of {place}"
    if space.free < HARDLY_ANY:
        return f"the disk is full: {where}; make room there"
    if said_so is None:
        return None
    return f"a disk was full or a quota used up ({said_so}): {where}, the fullest in use; make room"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    left, seen = [error], set()
    while left:
        error = left.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            yield error
            left += [error.__cause__, error.__context__]


def _says_so(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def _may_mean_it(error: BaseException) -> bool:
    # The lowest byte is the primary code (https://www.sqlite.org/rescode.html).
    code = getattr(error, "sqlite_errorcode", None) if isinstance(error, sqlite3.Error) else None
    return code is not None and code & 0xFF in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


def _places(settings: Settings) -> Iterator[Path]:
    """Where this process and those it starts write, and may be a file system of its own."""
    yield settings.home
    yield from (settings.home / name for name in ("dagster", "warehouse", "staging", "tmp", "reports"))
    urls = [settings.staging, settings.landing]
    with suppress(SettingsError):
        properties = catalog_properties(settings)
        urls += [properties.get("warehouse", ""), properties.get("uri", "")]
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme in ("", "file"):
            yield Path(parts.path)
        elif parts.scheme.startswith("sqlite"):
            yield Path(parts.path.removeprefix("/")).parent
    yield from (Path(tempfile.gettempdir()), settings.cache)

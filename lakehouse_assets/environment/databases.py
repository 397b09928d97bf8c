"""Creates and checks databases, and tells which failed connections to retry."""

from __future__ import annotations

import ctypes
import os
import re
import select
import sqlite3
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.environment.output import redact

if TYPE_CHECKING:
    from sqlalchemy.engine import ExceptionContext

CATALOG = "catalog.db"
SHARING = (
    "to share a home, give its users a common group and umask 002, and set the setgid bit on its folders, once: "
    "`chgrp -R GROUP {home}; chmod -R g+rwX {home}; find {home} -type d -exec chmod g+s {{}} +`"
)


def make_database(path: Path) -> None:
    """Creates an empty database if there is none, with the umask's mode, so that a group can share a home.

    SQLite itself denies group writes; its ``-wal`` and ``-shm`` files copy the database's mode.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.touch()


def check_databases(home: Path) -> None:
    """Raises SettingsError if this user may not write a database of the home, or its folder.

    SQLite would open it anyway, and leave files that lock its owner out.
    """
    for path in _databases(home):
        if not os.access(path, os.W_OK):
            text = f"LAKEHOUSE_HOME={home}: you have no permission to write {path}, which belongs to {_owner(path)}"
            raise SettingsError(f"{text}; {SHARING.format(home=home)}")


def refused_database(error: BaseException, home: Path) -> str | None:
    """Returns a message if SQLite could not open or write a database; else None."""
    at: BaseException | None = error
    while at:
        # The lowest byte is the primary code (https://www.sqlite.org/rescode.html).
        if isinstance(at, sqlite3.Error) and getattr(at, "sqlite_errorcode", 0) & 0xFF in (
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_PERM,
        ):
            text = f"a database below LAKEHOUSE_HOME={home} can't be opened for writing ({at})"
            return f"{text}: check who owns its files and folders, and whether the disk is mounted writable"
        at = at.__cause__ or at.__context__
    return None


def _databases(home: Path) -> Iterator[Path]:
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
    except KeyError:  # a user without a name here, as in a container
        return f"user {path.stat().st_uid}"


# https://www.postgresql.org/docs/current/errcodes-appendix.html
AWAY = ("08", "53300", "57P")
"""Prefixes of transient SQLSTATEs: broken or too many connections, a server that starts or stops."""
REFUSED = ("28", "3D")
"""Prefixes of permanent SQLSTATEs: no right to log in, no such database."""
# The most that is_refused() waits for the server's answer.
LOOK_SECONDS = 10.0
SQLSTATE_ALONE = 3  # PQERRORS_SQLSTATE of libpq
READ, WRITE = 1, 2  # psycopg2's POLL_READ and POLL_WRITE: what a connection waits for


@cache
def tell_connections_apart() -> None:
    """Counts failed connections of psycopg2 as lost from now on, unless the server refuses for good.

    So catalog.with_retries() tries again, by ``connection_invalidated``. SQLAlchemy itself counts only connections that
    break during use. Also removes secrets from messages: psycopg2 quotes what follows an unencoded ``@`` as a host.
    """
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    event.listen(Engine, "handle_error", _note_absence)
    event.listen(Engine, "handle_error", _hide_secrets)


def _note_absence(context: ExceptionContext) -> None:
    error = context.original_exception
    # Only failed attempts to connect with psycopg2: an error during use has a connection.
    if context.connection is not None or context.engine is None or context.dialect.driver != "psycopg2":
        return
    if not context.is_disconnect and isinstance(error, context.dialect.loaded_dbapi.OperationalError):
        arguments, keywords = context.dialect.create_connect_args(context.engine.url)
        context.is_disconnect = not is_refused(*arguments, **keywords)


def _hide_secrets(context: ExceptionContext) -> None:
    for error in (context.original_exception, context.sqlalchemy_exception):
        if error:
            redact(error)


def is_refused(*arguments: Any, **keywords: Any) -> bool:
    """Connects once more, and says whether PostgreSQL refuses for good, such as for a wrong password.

    The arguments are psycopg2.connect()'s. psycopg2's error has no SQLSTATE, but libpq can be made to give the SQLSTATE
    instead of a text; psycopg2 lends its connection for that.
    """
    import psycopg2
    from psycopg2 import _psycopg

    # The copy of libpq that psycopg2 itself uses, through psycopg2's extension module.
    libpq = ctypes.CDLL(_psycopg.__file__)
    try:
        connection = psycopg2.connect(*arguments, **keywords, async_=True)
    except psycopg2.OperationalError:  # such as for an unknown host
        return False
    pointer = ctypes.c_void_p(connection.pgconn_ptr)
    libpq.PQsetErrorVerbosity(pointer, SQLSTATE_ALONE)
    try:
        _wait(connection)
    except psycopg2.OperationalError as error:
        state = re.search(r"\b([0-9A-Z]{5})\s*$", str(error))
        # If the server wants a password and none was given, libpq gives up by itself: there is no SQLSTATE.
        return bool((state and state[1].startswith(REFUSED)) or libpq.PQconnectionNeedsPassword(pointer))
    else:
        return False
    finally:
        connection.close()


def _wait(connection: Any) -> None:
    """Waits until the connection is made, LOOK_SECONDS at most. Raises psycopg2's error if it fails."""
    deadline = time.monotonic() + LOOK_SECONDS
    while (state := connection.poll()) in (READ, WRITE) and (left := deadline - time.monotonic()) > 0:
        reads = [connection] if state == READ else []
        writes = [connection] if state == WRITE else []
        select.select(reads, writes, (), left)

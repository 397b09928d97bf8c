"""Tells a database that is away for a while from one that refuses: by the SQLSTATE of a connection that failed.

How long its absence is waited for is decided in catalog.py.
"""

from __future__ import annotations

import ctypes
import re
import select
import time
from functools import cache
from typing import TYPE_CHECKING, Any

from lakehouse_assets.environment.redaction import redact

if TYPE_CHECKING:
    from sqlalchemy.engine import ExceptionContext

# https://www.postgresql.org/docs/current/errcodes-appendix.html
AWAY = ("08", "53300", "57P")
"""How SQLSTATEs begin that pass: connections that break, too many of them, a server that starts or shuts down."""
REFUSED = ("28", "3D")
"""How SQLSTATEs begin that stay: no right to log in, no such database."""
LOOK_SECONDS = 10.0
SQLSTATE_ALONE = 3  # PQERRORS_SQLSTATE of libpq
POLLS = {1: ([0], []), 2: ([], [0])}


@cache
def tell_connections_apart() -> None:
    """From now on, a connection that SQLAlchemy can't make counts as lost, unless the server refuses it for good.

    SQLAlchemy calls one lost that broke while it was used (``connection_invalidated``), and never one that could not be
    made. Only connections of psycopg2 are looked at, and only once they have failed. Messages lose what is secret in
    them: psycopg2 quotes as a host's name what follows an ``@`` that should have been percent-encoded.
    """
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    event.listen(Engine, "handle_error", _note_absence)
    event.listen(Engine, "handle_error", _hide_secrets)


def _note_absence(context: ExceptionContext) -> None:
    error = context.original_exception
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
    """Connects once more, and says whether PostgreSQL refuses that for good, such as for a wrong password.

    psycopg2 raises the same error for every connection that fails, without its SQLSTATE. It lends libpq's connection
    while that is made, and libpq can be told to give the SQLSTATE in place of a text. arguments, keywords: of
    ``psycopg2.connect``.
    """
    import psycopg2
    from psycopg2 import _psycopg

    libpq = ctypes.CDLL(_psycopg.__file__)  # the one that psycopg2 was linked with or brings along
    try:
        connection = psycopg2.connect(*arguments, **keywords, async_=True)
    except psycopg2.OperationalError:  # such as a host's name that is not found
        return False
    pointer = ctypes.c_void_p(connection.pgconn_ptr)
    libpq.PQsetErrorVerbosity(pointer, SQLSTATE_ALONE)
    try:
        _wait(connection)
    except psycopg2.OperationalError as error:
        state = re.search(r"\b([0-9A-Z]{5})\s*$", str(error))
        return bool((state and state[1].startswith(REFUSED)) or libpq.PQconnectionNeedsPassword(pointer))
    else:
        return False
    finally:
        connection.close()


def _wait(connection: Any) -> None:
    """Waits until the connection is made, or for LOOK_SECONDS. Raises psycopg2's OperationalError where it fails."""
    deadline = time.monotonic() + LOOK_SECONDS
    while (state := connection.poll()) in POLLS and (left := deadline - time.monotonic()) > 0:
        reads, writes = ([connection] * len(wanted) for wanted in POLLS[state])
        select.select(reads, writes, (), left)

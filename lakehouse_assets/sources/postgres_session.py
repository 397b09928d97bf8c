"""Sessions with PostgreSQL: how it is reached, what each session pins, how long it waits, its errors in words.

What is asked and written in a session is postgres.py's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from lakehouse_assets.errors import BadValue, SourceLost, SourceRefused, SourceUnreachable

if TYPE_CHECKING:
    import psycopg2
    from psycopg2.extensions import cursor as Cursor

CONNECT_SECONDS = 10
PINNED = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "1",  # the shortest text that reads back as the same number
    # A query fails where a policy would hide rows: the position would pass them.
    "row_security": "off",
}
"""Settings on which values, or the rows that are seen, depend; those of roles, databases and PGOPTIONS do not count."""


class Patience(NamedTuple):
    """How long a session waits: a lock that somebody holds for long, as an open ALTER TABLE does, is not waited out."""

    lock_seconds: int
    """For each lock."""
    statement_seconds: int = 0
    """For the end of each statement; 0: as long as that takes."""


ASKING, READING, WRITING = Patience(5, 30), Patience(5), Patience(60)
"""For what is asked between runs, for what takes as long as it has rows, and for what waits for the like of it."""


@contextmanager
def connected(name: str, patience: Patience = ASKING) -> Iterator[Cursor]:
    """Yields a cursor in one transaction, which is committed at the end. name: of the source, for messages.

    The encoding is UTF-8, whatever the database's is. Raises SourceUnreachable where there is no server or no
    connection left, where it takes no writes, or does not answer in time; SourceLost where tables, columns or rights
    are missing; BadValue for a value that it can't take; SourceRefused for a write that a rule of the database forbids.
    """
    import psycopg2

    waits = {"lock_timeout": f"{patience.lock_seconds}s", "statement_timeout": f"{patience.statement_seconds}s"}
    pinned = waits | PINNED
    try:
        connection = psycopg2.connect(
            "",
            application_name="lakehouse",
            connect_timeout=CONNECT_SECONDS,
            client_encoding="UTF8",
            # A server that is gone without a word is noticed in a minute.
            keepalives_idle=30,
            keepalives_interval=10,
            keepalives_count=3,
        )
        try:
            connection.set_session(isolation_level="READ COMMITTED")
            with connection, connection.cursor() as cursor:
                # Poolers pass on no options of a connection, so these are set, for the transaction only.
                settings = ", ".join("set_config(%s, %s, true)" for _ in pinned)
                cursor.execute(f"SELECT {settings}", [text for setting in pinned.items() for text in setting])
                yield cursor
        finally:
            connection.close()
    except psycopg2.Error as error:
        raise _in_words(error, name, patience) from error


def _in_words(error: psycopg2.Error, name: str, patience: Patience) -> Exception:
    from psycopg2 import DataError, InterfaceError, OperationalError, ProgrammingError, errors

    text = (error.diag.message_primary or str(error)).strip()
    match error:
        case errors.LockNotAvailable():
            return SourceUnreachable(
                f"{name}: a transaction has held a lock for over {patience.lock_seconds} s, such as an ALTER TABLE "
                "that was not committed: end it (pg_locks and pg_stat_activity show it), or try again later"
            )
        case errors.QueryCanceled():
            return SourceUnreachable(f"{name} gave no answer: {text}; at most {patience.statement_seconds or 'any'} s")
        case errors.ReadOnlySqlTransaction():
            return SourceUnreachable(
                f"{name} takes no writes at {_where()}: {text}. Name the primary, such as by "
                "PGTARGETSESSIONATTRS=read-write, and a role without default_transaction_read_only"
            )
        case errors.InsufficientPrivilege():
            return SourceLost(
                f"{name}: {text}. Grant the role what docs/hot-and-cold.md names; of a table with row-level security, "
                "it needs BYPASSRLS, since rows that it can't see would be lost"
            )
        case ProgrammingError():
            return SourceLost(f"{name}: {text}; `lakehouse source sql` prints what the database needs")
        case OperationalError() | InterfaceError():
            return SourceUnreachable(f"{name} can't be reached at {_where()}: {error}".strip())
        case DataError():
            return BadValue(f"{name}: {text}")
        case _:
            return SourceRefused(
                f"{name}: {text}{f' ({error.diag.message_detail})' if error.diag.message_detail else ''}"
            )


def _where() -> str:
    return f"{os.environ.get('PGHOST', 'the local socket')}:{os.environ.get('PGPORT', '5432')}"

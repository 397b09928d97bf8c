"""PostgreSQL sessions, and faults that make a table's moves unsafe."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from lakehouse_assets.declare.row_source import DELETED, Fault
from lakehouse_assets.errors import BadValue, SourceLost, SourceRefused, SourceUnreachable

if TYPE_CHECKING:
    import psycopg2
    from psycopg2.extensions import cursor as Cursor

CONNECT_SECONDS = 10
PINNED = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "iso_8601",
    # The shortest text that reads back as the same number.
    "extra_float_digits": "1",
    # A query fails if a policy would hide rows: the position would pass them.
    "row_security": "off",
}
"""Values or visible rows depend on these, whatever roles, databases and PGOPTIONS set."""


class Patience(NamedTuple):
    """How long a session waits for a lock, which an open ALTER TABLE may hold for hours, and for a statement."""

    lock_seconds: int
    statement_seconds: int = 0
    """0: no limit."""


ASKING, READING, WRITING = Patience(5, 30), Patience(5), Patience(60)
"""For queries between runs; for reads of any length; for writes that wait for these."""


@contextmanager
def connected(name: str, patience: Patience = ASKING) -> Iterator[Cursor]:
    """Yields a cursor in one transaction, committed at the end, in UTF-8. name: for messages.

    Raises SourceUnreachable if the server is missing, full, read-only or too slow; SourceLost if tables, columns or
    rights are missing; BadValue for a value that it can't take; SourceRefused for a write that a database rule forbids.
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
            # A server that vanished is noticed in a minute.
            keepalives_idle=30,
            keepalives_interval=10,
            keepalives_count=3,
        )
        try:
            connection.set_session(isolation_level="READ COMMITTED")
            with connection, connection.cursor() as cursor:
                # Poolers drop connection options, so set these, for the transaction only.
                settings = ", ".join("set_config(%s, %s, true)" for _ in pinned)
                cursor.execute(f"SELECT {settings}", [text for setting in pinned.items() for text in setting])
                yield cursor
        finally:
            connection.close()
    except psycopg2.Error as error:
        raise _in_words(error, name, patience) from error


def _in_words(error: psycopg2.Error, name: str, patience: Patience) -> Exception:
    """Returns the error to raise instead, as connected() says."""
    from psycopg2 import DataError, InterfaceError, OperationalError, ProgrammingError, errors

    text = (error.diag.message_primary or str(error)).strip()
    # Classes come before their base classes.
    match error:
        case errors.LockNotAvailable():
            return SourceUnreachable(
                f"{name}: a transaction has held a lock for over {patience.lock_seconds} s, such as an uncommitted "
                "ALTER TABLE: end it (pg_locks and pg_stat_activity show it), or try again later"
            )
        case errors.QueryCanceled():
            limit = f"; the limit is {patience.statement_seconds} s" if patience.statement_seconds else ""
            return SourceUnreachable(f"{name} did not answer: {text}{limit}")
        case errors.ReadOnlySqlTransaction():
            return SourceUnreachable(
                f"{name} accepts no writes at {_where()}: {text}. Connect to the primary, for example with "
                "PGTARGETSESSIONATTRS=read-write, as a role without default_transaction_read_only"
            )
        case errors.InsufficientPrivilege():
            return SourceLost(
                f"{name}: {text}. Grant the role what docs/hot-and-cold.md names; for a table with row-level security "
                "it needs BYPASSRLS, because rows that it can't see would be lost"
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


POS, POS_AT = "pos", "pos_at"
"""Extra columns of a source: the transaction that last wrote the row, and its start."""
OWN = {
    DELETED: "boolean NOT NULL DEFAULT false",
    POS: "bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint",
    POS_AT: "timestamptz NOT NULL DEFAULT now()",
}
"""All extra columns, with their definitions. ``deleted`` may be the application's own."""


def faults_of(cursor: Cursor, table: str) -> list[Fault]:
    """Returns a table's faults, if it exists."""
    cursor.execute(faults_query(table))
    return [Fault(*row) for row in cursor.fetchall()]


def faults_query(table: str) -> str:
    """Returns the query for Faults. table: only lower-case letters, digits, ``_`` and a dot.

    Its first column is Fault.is_refused. Compares types, defaults and actions as PostgreSQL prints them.
    """
    return f"""\
WITH source AS (SELECT * FROM pg_class WHERE oid = to_regclass('{table}'))
SELECT true, CASE relkind WHEN 'p' THEN 'it is partitioned, and rows would be lost when a partition is attached, '
           'detached or truncated: name a table without partitions'
       ELSE 'it is a view or a foreign table: name a table' END
FROM source WHERE relkind <> 'r'
UNION ALL
SELECT true, format('tables inherit from it (%s), whose rows are not stamped: name a table that none inherits from',
                    string_agg(inhrelid::regclass::text, ', '))
FROM source JOIN pg_inherits ON inhparent = source.oid WHERE relkind = 'r' HAVING count(*) > 0
UNION ALL
SELECT true, 'it is unlogged, and a crash would empty it: ALTER TABLE {table} SET LOGGED'
FROM source WHERE relpersistence <> 'p' AND relkind = 'r'
UNION ALL
SELECT confdeltype IN ('c', 'n', 'd'),
       CASE WHEN confdeltype IN ('c', 'n', 'd')
       THEN format('a purge would change rows of %s, whose constraint %I refers to it with ON DELETE %s: drop that',
                   conrelid::regclass, conname,
                   CASE confdeltype WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL' ELSE 'SET DEFAULT' END)
       ELSE format('rows that %s refers to can''t be purged, nor others with them: drop its constraint %I',
                   conrelid::regclass, conname) END
FROM source JOIN pg_constraint ON confrelid = source.oid AND contype = 'f' AND conparentid = 0
UNION ALL
SELECT true, format('its column %I is "%s", and a source has one of its own: %s. Rename yours',
                    attname, concat_ws(' ', format_type(atttypid, atttypmod),
                                       CASE WHEN attnotnull THEN 'NOT NULL' END, 'DEFAULT ' || value), expected)
FROM source JOIN pg_attribute ON attrelid = source.oid AND attnum > 0 AND NOT attisdropped
JOIN (VALUES ('{DELETED}', 'boolean', '{OWN[DELETED]}', NULL),
             ('{POS}', 'bigint', '{OWN[POS]}', '%pg_current_xact_id()%'),
             ('{POS_AT}', 'timestamp with time zone', '{OWN[POS_AT]}', 'now()')) AS own (name, type, expected, made_by)
     ON name = attname
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum, pg_get_expr(adbin, adrelid) AS value
WHERE format_type(atttypid, atttypmod) <> type
      OR made_by IS NOT NULL AND NOT (attnotnull AND coalesce(value, '') LIKE made_by)"""

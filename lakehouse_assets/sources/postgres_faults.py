"""Looks up in PostgreSQL's catalogs why a table can't be a source without losing rows, and what refers to it.

Runs, purges and the check of a source ask; so does the SQL of postgres_ddl.py, before it changes anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehouse_assets.sources.row_source import DELETED, Fault

if TYPE_CHECKING:
    from psycopg2.extensions import cursor as Cursor

POS, POS_AT = "pos", "pos_at"
"""Columns that a source has beside the table's: the transaction that wrote the row last, and when that began."""
OWN = {
    DELETED: "boolean NOT NULL DEFAULT false",
    POS: "bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint",
    POS_AT: "timestamptz NOT NULL DEFAULT now()",
}
"""All columns that a source has beside the table's, with their types. An application's own ``deleted`` may be used."""


def faults_of(cursor: Cursor, table: str) -> list[Fault]:
    """Returns what is wrong with a table; nothing if it does not exist. table: its name, as declared."""
    cursor.execute(faults_query(table))
    return [Fault(*row) for row in cursor.fetchall()]


def faults_query(table: str) -> str:
    """Returns the query for the fields of Faults. table: a name of lower-case letters, digits, ``_`` and a dot.

    Its types, defaults and actions are compared as PostgreSQL itself prints them.
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

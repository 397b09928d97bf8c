"""The SQL that a database needs to be a source: columns, index, triggers, and the table of purges."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from textwrap import indent

from lakehouse_assets.declare.row_source import DELETED
from lakehouse_assets.extensions.sources.postgres import (
    MARKS,
    PURGED,
    PURGES,
    THIS,
    PostgresTable,
    postgres_type,
    quoted,
)
from lakehouse_assets.extensions.sources.postgres_session import OWN, POS, POS_AT, faults_query


def ddl(source: PostgresTable, columns: Mapping[str, str], keys: Collection[str]) -> str:
    """Returns statements that may be executed again, as after a new column; they drop nothing.

    columns: Iceberg types by name. keys: those that identify a row. Needs PostgreSQL 14 or later.
    """
    table = ".".join(map(quoted, source.table.split(".")))
    plain = source.table.replace(".", "_")
    types = {name: postgres_type(type_) for name, type_ in columns.items()}
    declared = [f"    {quoted(name)} {type_}{' NOT NULL' if name in keys else ''}," for name, type_ in types.items()]
    added = [
        f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {quoted(name)} {type_};"
        for name, type_ in ({name: type_ for name, type_ in types.items() if name not in keys} | OWN).items()
    ]
    of_key = [f"({', '.join(f'{row}.{quoted(name)}' for name in keys)})" for row in ("OLD", "NEW")]
    triggers = ("lakehouse_stamp", "lakehouse_keep", "lakehouse_keep_key", "lakehouse_keep_all")
    always = "\n".join(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name};" for name in triggers)
    is_source = f"to_regclass(source) = '{source.table}'::regclass"
    return f"""\
-- What would lose rows, or belongs to the application, is refused before anything is changed.
DO $$
DECLARE
    faults text;
BEGIN
    SELECT string_agg(fault, '; ') INTO faults FROM (
{indent(faults_query(source.table), " " * 8)}
    ) AS found (is_refused, fault) WHERE is_refused;
    IF faults <> '' THEN
        RAISE EXCEPTION '{source.table} can''t be a source: %', faults;
    END IF;
END $$;

CREATE TABLE IF NOT EXISTS {table} (
{chr(10).join(declared)}
    PRIMARY KEY ({", ".join(map(quoted, keys))})
);
{chr(10).join(added)}
CREATE INDEX IF NOT EXISTS {quoted(f"{plain}_{POS}")} ON {table} ({POS});

-- What was purged, noted in the transaction that deletes: it is how a reader knows that it has missed nothing. Also
-- which table of which lake a source is moved into: one only.
CREATE TABLE IF NOT EXISTS {PURGED} (source text PRIMARY KEY, upto bigint NOT NULL);
ALTER TABLE {PURGED} ADD COLUMN IF NOT EXISTS identity text, ADD COLUMN IF NOT EXISTS mover text;
INSERT INTO {PURGED} SELECT '{source.table}', 0 WHERE NOT EXISTS (SELECT FROM {PURGED} WHERE {is_source});

-- A row for each move, that the table's position names: a database that was set back behind a move does not know it.
CREATE TABLE IF NOT EXISTS {MARKS} (mark text PRIMARY KEY, source oid NOT NULL, upto bigint NOT NULL);
DO $$
DECLARE
    may record;
BEGIN
    FOR may IN SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END AS role,
                      CASE privilege_type WHEN 'UPDATE' THEN 'INSERT, DELETE' ELSE privilege_type END AS granted
               FROM pg_class, aclexplode(relacl) WHERE oid = '{PURGED}'::regclass AND grantee <> relowner
                    AND privilege_type IN ('SELECT', 'UPDATE')
    LOOP
        EXECUTE format('GRANT %s ON {MARKS} TO %s', may.granted, may.role);
    END LOOP;
END $$;

-- Each write stamps its row with its transaction, whatever it says itself: a row that kept its stamp would be purged.
CREATE OR REPLACE FUNCTION lakehouse_stamp() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.{POS} := pg_current_xact_id()::text::bigint;
    NEW.{POS_AT} := now();
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER lakehouse_stamp BEFORE INSERT OR UPDATE ON {table}
    FOR EACH ROW EXECUTE FUNCTION lakehouse_stamp();

-- A row that is gone, or got another key, can't be moved, and what was moved would come back: only the purge deletes.
CREATE OR REPLACE FUNCTION lakehouse_keep() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND coalesce(current_setting('{PURGES}', true), '') = TG_RELID::text THEN
        RETURN OLD;
    END IF;
    IF TG_OP = 'UPDATE' THEN
        RAISE EXCEPTION '% is moved to the lake: set {DELETED} = true, insert one with the other key', TG_TABLE_NAME;
    END IF;
    RAISE EXCEPTION '% is moved to the lake: set {DELETED} = true in place of %', TG_TABLE_NAME, TG_OP;
END $$;
CREATE OR REPLACE TRIGGER lakehouse_keep BEFORE DELETE ON {table}
    FOR EACH ROW EXECUTE FUNCTION lakehouse_keep();
CREATE OR REPLACE TRIGGER lakehouse_keep_key BEFORE UPDATE ON {table}
    FOR EACH ROW WHEN ({of_key[0]} IS DISTINCT FROM {of_key[1]}) EXECUTE FUNCTION lakehouse_keep();
CREATE OR REPLACE TRIGGER lakehouse_keep_all BEFORE TRUNCATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION lakehouse_keep();

-- In sessions that replicate, too (session_replication_role), where others do not fire.
{always}

-- A server that this was restored to, and a table that was made again, count transactions anew: what was purged before
-- says nothing, and rows with stamps that are yet to come get one of now.
DO $$
DECLARE
    this text := ({THIS}) || '.' || '{source.table}'::regclass::oid;
    next bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
BEGIN
    UPDATE {PURGED} SET upto = 0, identity = this, mover = NULL
        WHERE {is_source} AND (identity <> this OR upto > next);
    UPDATE {PURGED} SET identity = this WHERE {is_source} AND identity IS NULL;
    UPDATE {table} SET {POS} = {POS} WHERE {POS} >= next;
END $$;
"""

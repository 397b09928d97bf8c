"""The SQL that a database needs to be a source: columns, index, triggers, and the table that says what was purged.

Nothing is executed here. What is read and purged by these columns is postgres.py's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lakehouse_assets.sources.postgres import POS, POS_AT, PURGED, PostgresTable, postgres_type, quoted
from lakehouse_assets.sources.row_source import DELETED


def ddl(source: PostgresTable, columns: Mapping[str, str], keys: Collection[str]) -> str:
    """Returns statements that may be executed again, as after a column was declared; they drop nothing.

    columns: types by name, as Iceberg spells them. keys: those that identify a row. Needs PostgreSQL 14 or later.
    """
    table = ".".join(map(quoted, source.table.split(".")))
    plain = source.table.replace(".", "_")
    types = {name: postgres_type(type_) for name, type_ in columns.items()}
    declared = [f"    {quoted(name)} {type_}{' NOT NULL' if name in keys else ''}," for name, type_ in types.items()]
    own = {
        DELETED: "boolean NOT NULL DEFAULT false",
        POS: "bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint",
        POS_AT: "timestamptz NOT NULL DEFAULT now()",
    }
    added = [
        f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {quoted(name)} {type_};"
        for name, type_ in ({name: type_ for name, type_ in types.items() if name not in keys} | own).items()
    ]
    of_key = [f"({', '.join(f'{row}.{quoted(name)}' for name in keys)})" for row in ("OLD", "NEW")]
    triggers = ("lakehouse_stamp", "lakehouse_keep", "lakehouse_keep_key", "lakehouse_keep_all")
    always = "\n".join(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name};" for name in triggers)
    return f"""\
CREATE TABLE IF NOT EXISTS {table} (
{chr(10).join(declared)}
    PRIMARY KEY ({", ".join(map(quoted, keys))})
);
{chr(10).join(added)}
CREATE INDEX IF NOT EXISTS {quoted(f"{plain}_{POS}")} ON {table} ({POS});

-- What was purged, noted in the transaction that deletes: it is how a reader knows that it has missed nothing.
CREATE TABLE IF NOT EXISTS {PURGED} (source text PRIMARY KEY, upto bigint NOT NULL);
INSERT INTO {PURGED} VALUES ('{source.table}', 0) ON CONFLICT DO NOTHING;

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
    IF coalesce(current_setting('lakehouse.purge', true), '') = 'on' AND TG_OP = 'DELETE' THEN
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
"""

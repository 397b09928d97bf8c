"""PostgreSQL tables as sources: safe moves, purging and putting back (findings: docs/why.md).

Each write stamps its row: ``pos`` is the number of its transaction, and positions are such numbers.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, NamedTuple

from lakehouse_assets.declare.row_source import DELETED, Fault, Lag, Offsets, RowSource, SourceState, Split
from lakehouse_assets.errors import BadValue, SourceLost
from lakehouse_assets.extensions.sources.postgres_session import (
    ASKING,
    POS,
    POS_AT,
    READING,
    WRITING,
    Patience,
    connected,
    faults_of,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg2.extensions import cursor as Cursor

TABLE = re.compile(r"([a-z_][a-z0-9_]*\.)?[a-z_][a-z0-9_]*")
"""A name that needs no quotes, with or without a schema."""
CSV_COLUMN = re.compile(r"In CSV column #(\d+)")
"""How PyArrow's errors name a column: counted from 0."""
BLOCK_BYTES = 1 << 20
"""The least size of PyArrow's CSV blocks."""
PURGED = "lakehouse_purged"
"""Records up to which ``pos`` each source was purged, and its mover, the table moved into."""
MARKS = "lakehouse_marks"
"""Has a random mark for each move. A database that was set back to before a move lacks its mark."""
PURGES = "lakehouse.purges"
"""The setting that lets the trigger accept deletions: the source's oid."""
TYPES = {
    "boolean": "boolean",
    "int": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "date": "date",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "string": "text",
}
"""By Iceberg type; ``decimal(p, s)`` is ``numeric(p, s)``."""
THIS = "SELECT system_identifier || '.' || oid FROM pg_control_system(), pg_database WHERE datname = current_database()"
"""The identity of a server and its database. A source's identity also has the table's oid."""
OF_SOURCE = f"FROM {PURGED} WHERE to_regclass(source) = to_regclass(%s)"
"""Of one source, which PURGED may name with or without its schema."""
STATE = f"""
SELECT ({THIS}), to_regclass(%s)::oid, pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint,
       (SELECT jsonb_agg(to_jsonb(found)) FROM (SELECT * {OF_SOURCE}) AS found), to_regclass('{MARKS}') IS NOT NULL
FROM pg_current_snapshot() s
"""
"""Identity, the table's oid, the oldest open transaction, the next one, rows of PURGED, and whether MARKS exists."""
WRITER = """
SELECT seconds, who, CASE WHEN pg_has_role('pg_read_all_stats', 'USAGE') THEN '' ELSE current_user END
FROM (SELECT) AS one LEFT JOIN ( -- one row, even if no transaction writes
    SELECT extract(epoch FROM now() - xact_start)::float AS seconds,
           format('process %s of %s in database %s', pid, usename, datname) AS who
    FROM pg_stat_activity WHERE backend_xid IS NOT NULL
    UNION ALL
    SELECT extract(epoch FROM now() - prepared)::float, format('prepared %L of %s in database %s', gid, owner, database)
    FROM pg_prepared_xacts
    ORDER BY seconds DESC LIMIT 1
) AS oldest ON true
"""
"""The fields of Writer."""


@dataclass(frozen=True)
class PostgresTable(RowSource):
    """A PostgreSQL table, written by upserts, whose rows are moved into a table that is declared Merge.

    `lakehouse source sql` prints what the database needs.

    Examples:
        >>> from lakehouse_assets import Merge, PostgresTable, Table, column
        >>> columns = [column("id", "long", required=True), column("status", "string")]
        >>> merge = Merge(["id"], delete_when="deleted")
        >>> Table("shop.orders", columns, source=PostgresTable("orders"), write_mode=merge).source.name
        'postgres:orders'
    """

    marks_deleted = True

    table: str = field(kw_only=False)
    """Its name, with its schema if that is not on the search path. Its columns are named like the declared table's."""

    ignore: Sequence[str] = ()
    """Its columns that are not moved and whose values a purge deletes. Others that the declared table lacks stop the
    moves."""

    grace: timedelta = timedelta(minutes=10)
    """How long rows stay after the lake has them. Must exceed the longest read, which otherwise starts again."""

    @property
    def name(self) -> str:
        """The table's name in positions."""
        return f"postgres:{self.table}"

    def problems(self, columns: Mapping[str, str], write_mode: object) -> Iterator[str]:
        """Checks the name, the mode and the columns."""
        if not TABLE.fullmatch(self.table):
            yield f"PostgresTable names {self.table!r}, which is not of the form table or schema.table in lower case"
        if getattr(write_mode, "delete_when", "") != DELETED:
            yield f"a PostgresTable needs Merge(keys, delete_when={DELETED!r}); found {write_mode!r}"
        if taken := sorted({POS, POS_AT, DELETED} & {name.lower() for name in columns}):
            yield f"column names that a PostgresTable reserves: {', '.join(taken)}; choose other names"
        if both := sorted({*self.ignore} & {*columns}):
            yield f"PostgresTable has ignore={both}, which the table also declares: leave them out of one of the two"
        for name, type_ in columns.items():
            if postgres_type(type_) is None:
                yield f"column {name!r} has the type {type_}, which can't be read from PostgreSQL"

    def state(self, position: Offsets | None = None) -> SourceState:
        """Asks for identity, purges, and the oldest possible writer."""
        mark = position.mark if position else ""
        with self._cursor() as cursor:
            cursor.execute(STATE, (self.table, self.table))
            ((database, table, oldest, newest, purges, keeps_marks),) = cursor.fetchall()
            if table is None or not purges:
                raise SourceLost(
                    f"{self.name}: the database has no such source; `lakehouse source sql` prints what it needs"
                )
            if mark and keeps_marks:
                cursor.execute(f"SELECT FROM {MARKS} WHERE mark = %s", (mark,))
                mark = mark if cursor.rowcount else ""
        # max(), as PURGED may have a row for each way to write the name.
        source, purged = f"{database}.{table}", max(row["upto"] for row in purges)
        # An older `source sql` did not create the columns mover and identity.
        movers = [row["mover"] or "" for row in purges if "mover" in row]
        return SourceState(
            Offsets.marked(source, mark if keeps_marks else ""),
            first=(purged,),
            safe=(oldest,),
            newest=(newest,),
            purged=purged > 0,
            mover=max(movers) if keeps_marks and movers else None,
            is_restored=any(row.get("identity") not in (None, source) for row in purges),
        )

    def faults(self, state: SourceState) -> list[Fault]:
        """Checks the table, what refers to it, and the work of `lakehouse source sql`."""
        with self._cursor() as cursor:
            found = faults_of(cursor, self.table)
        if state.is_restored:
            text = (
                "it was restored from another server, or created again, so its transactions are numbered from the "
                "start: execute "
            )
            found.append(Fault(True, f"{text}what `lakehouse source sql` prints, then materialize all of it"))
        if state.mover is None:
            text = "the database can't show whether it was set back: execute what `lakehouse source sql` prints"
            found.append(Fault(False, text))
        return found

    def claim(self, state: SourceState, mover: str, *, takes_over: bool) -> None:
        """Notes ``mover`` as the only table that the source is moved into.

        Raises SourceLost if another table is noted, unless ``takes_over``.
        """
        if state.mover is None or state.mover == mover:  # None: the database can't note one
            return
        with self._cursor(WRITING) as cursor:
            cursor.execute(f"SELECT mover {OF_SOURCE} FOR UPDATE", (self.table,))
            now = replace(state, mover=max(found or "" for (found,) in cursor.fetchall()))
            if (problem := now.of_another(self.name, mover)) and not takes_over:
                raise SourceLost(problem)
            cursor.execute(
                f"UPDATE {PURGED} SET mover = %s WHERE to_regclass(source) = to_regclass(%s)", (mover, self.table)
            )

    def marked(self, to: Offsets) -> Offsets:
        """Inserts a row for the mark: it commits after all that was read, and is on disk before the move.

        Without a table of marks (from an older `lakehouse source sql`), adds no mark.
        """
        mark = secrets.token_hex(8)
        with self._cursor() as cursor:
            cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (MARKS,))
            if cursor.fetchone() == (False,):
                return Offsets(to.source, to.by_partition)
            cursor.execute("SET LOCAL synchronous_commit = on")
            cursor.execute(
                f"INSERT INTO {MARKS} VALUES (%s, to_regclass(%s), %s)", (mark, self.table, *to.by_partition)
            )
        return Offsets(Offsets.marked(to.source, mark), to.by_partition)

    def bound(self, state: SourceState, begin: Offsets) -> Offsets:
        """Returns what is safe, or the end of the transaction that fills ``ceiling``: positions can't divide one."""
        (first,), (safe,) = begin.by_partition, state.safe
        query = (
            f"SELECT count(*), max({POS}) FROM (SELECT {POS} FROM {self._quoted} WHERE {POS} >= %s AND {POS} < %s "
            f"ORDER BY {POS} FETCH FIRST %s ROWS WITH TIES) AS moved"
        )
        with self._cursor() as cursor:
            cursor.execute(query, (first, safe, self.ceiling))
            ((rows, last),) = cursor.fetchall()
        return Offsets(state.identity, (last + 1 if rows >= self.ceiling else safe,))

    def lag(self, state: SourceState, begin: Offsets) -> Lag:
        """Counts all, movable and held-back rows, each up to ``ceiling`` (at least ``floor``)."""
        (first,), (safe,) = begin.by_partition, state.safe
        most = max(self.floor, self.ceiling)

        def counted(where: str) -> str:
            rows = f"SELECT {POS_AT} FROM {self._quoted} WHERE {where} ORDER BY {POS} LIMIT {most:d}"
            return f"(SELECT count(*), min({POS_AT}) FROM ({rows}) AS found)"

        query = (
            f"SELECT * FROM (SELECT count(*) FROM (SELECT FROM {self._quoted} LIMIT {most:d}) AS found) AS depth, "
            f"{counted(f'{POS} >= {first:d} AND {POS} < {safe:d}')} AS movable, "
            f"{counted(f'{POS} >= {safe:d}')} AS held"
        )
        with self._cursor() as cursor:
            cursor.execute(query)
            (row,) = cursor.fetchall()
        return Lag(*row)

    def visible(self, state: SourceState, begin: Offsets) -> Sequence[Split]:
        """Returns one split without an end: any committed row may be read."""
        return [Split(0, begin.by_partition[0], None)]

    def read(self, split: Split, schema: pa.Schema, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yields rows as one statement sees them."""
        import pyarrow as pa
        import pyarrow.csv as csv

        with TemporaryFile() as file:
            rows = _CopiedRows(file)  # before any is parsed: the longest one sets the size of CSV blocks
            with self._cursor(READING) as cursor:
                if split.end is not None:
                    self._refuse_set_back(cursor, split.end)
                columns = ", ".join(map(quoted, schema.names))
                until = "" if split.end is None else f" AND {POS} < {split.end:d}"
                most = "" if limit is None else f" LIMIT {limit:d}"
                query = f"SELECT {columns} FROM {self._quoted} WHERE {POS} >= {split.begin:d}{until}{most}"
                cursor.copy_expert(f"COPY ({query}) TO STDOUT (FORMAT csv)", rows)
            if not file.tell():
                return
            file.seek(0)
            # COPY writes null as nothing, an empty text as quotes, and booleans as t and f.
            options = csv.ConvertOptions(
                column_types=schema,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["t"],
                false_values=["f"],
            )
            parse = csv.ParseOptions(newlines_in_values=True)
            try:
                # PyArrow takes rows that span two blocks, but no more.
                blocks = csv.ReadOptions(column_names=schema.names, block_size=max(BLOCK_BYTES, rows.longest))
                yield from csv.open_csv(file, blocks, parse, options)
            except pa.ArrowException as error:
                told = CSV_COLUMN.sub(lambda found: f"column {schema.names[int(found[1])]}", str(error))
                raise BadValue(f"{self.name}: a value can't be read: {told}") from error

    def _refuse_set_back(self, cursor: Cursor, end: int) -> None:
        """Raises SourceLost if transactions before ``end`` may still write: when the run was planned, none could."""
        cursor.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
        ((oldest,),) = cursor.fetchall()
        if oldest < end:
            raise SourceLost(f"{self.name} was to be read to {end}, but has only reached {oldest}: it was set back")

    def lacking(self, columns: Sequence[str]) -> list[str]:
        """Returns missing columns."""
        with self._cursor() as cursor:
            return sorted({*columns} - {*self._columns(cursor)})

    def column_problem(self, columns: Sequence[str], *, may_lack: bool) -> str | None:
        """Finds missing and undeclared columns; a renamed one is both."""
        with self._cursor() as cursor:
            found = {*self._columns(cursor)}
        if (lacking := sorted({*columns} - found)) and not may_lack:
            return (
                f"{self.name} has no column {', '.join(lacking)}: moving its rows would overwrite values with nulls. "
                "Execute what `lakehouse source sql` prints, restore the old name, or correct the declaration"
            )
        if beside := sorted(found - {*columns, *self.ignore, POS, POS_AT, DELETED}):
            return (
                f"{self.name} has columns that the table does not declare, whose values a purge would delete: "
                f"{', '.join(beside)}. Declare them, or give them up: PostgresTable({self.table!r}, ignore={beside})"
            )
        return None

    def _columns(self, cursor: Cursor) -> dict[str, bool]:
        """Returns whether each column is generated."""
        cursor.execute(
            "SELECT attname, attgenerated <> '' FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            (self.table,),
        )
        return dict(cursor.fetchall())

    def purge(self, upto: int) -> int:
        """Deletes rows with a smaller ``pos``, notes it in the same transaction, and returns their number.

        Skips a row that an open transaction writes: it gets a new stamp, or a later purge finds it.
        """
        # A ctid is unique only within one table, so leave out tables that inherit from it.
        table = f"ONLY {self._quoted}"
        with self._cursor(WRITING) as cursor:
            # This lock keeps others from adding a foreign key to the table, or a table that inherits from it.
            cursor.execute(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE")
            if refused := [found.text for found in faults_of(cursor, self.table) if found.is_refused]:
                raise SourceLost(f"{self.name} can't be purged: {'; '.join(refused)}")
            cursor.execute("SET LOCAL lakehouse.purge = 'on'")  # for triggers of an older `source sql`
            cursor.execute(f"SELECT set_config('{PURGES}', to_regclass(%s)::oid::text, true)", (self.table,))
            cursor.execute(
                f"UPDATE {PURGED} SET upto = %s WHERE to_regclass(source) = to_regclass(%s) AND upto <= %s",
                (upto, self.table, upto),
            )
            # Another purge went further.
            if not cursor.rowcount:
                return 0
            rows = f"SELECT ctid FROM {table} WHERE {POS} < %s FOR UPDATE SKIP LOCKED"
            cursor.execute(f"DELETE FROM {table} WHERE ctid = ANY(ARRAY({rows}))", (upto,))
            deleted = int(cursor.rowcount)
            cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (MARKS,))
            # These marks are of no more use: a position before the purge is refused, with or without its mark.
            if cursor.fetchone() == (True,):
                cursor.execute(f"DELETE FROM {MARKS} WHERE source = to_regclass(%s) AND upto < %s", (self.table, upto))
            return deleted

    def put_back(self, rows: pa.Table, keys: Sequence[str], position: int) -> int | None:
        """Writes rows that the lake had at ``position`` as if they were new, and returns their number.

        Keeps rows written since. Returns None, and writes nothing, if the source was purged beyond ``position``: newer
        versions of these rows may be gone.
        """
        import pyarrow.csv as csv

        with self._cursor(WRITING) as cursor, TemporaryFile() as file:
            # FOR SHARE: a purge updates this row, so it waits.
            cursor.execute(f"SELECT upto {OF_SOURCE} FOR SHARE", (self.table,))
            if any(upto > position for (upto,) in cursor.fetchall()):
                return None
            # all_valid: quotes everything but null, as COPY takes nothing between commas for null.
            csv.write_csv(rows, file, csv.WriteOptions(include_header=False, quoting_style="all_valid"))
            file.seek(0)
            # The database computes generated columns again; an identity column keeps the row's value.
            computed = {name for name, is_computed in self._columns(cursor).items() if is_computed}
            columns = ", ".join(map(quoted, rows.column_names))
            written = ", ".join(quoted(name) for name in rows.column_names if name not in computed)
            cursor.execute(
                f"CREATE TEMP TABLE put_back ON COMMIT DROP AS SELECT {columns} FROM {self._quoted} WITH NO DATA"
            )
            cursor.copy_expert("COPY put_back FROM STDIN (FORMAT csv)", file)
            # SET changes no value: the trigger stamps the row again, so no purge deletes it before it is moved again.
            cursor.execute(
                f"INSERT INTO {self._quoted} AS hot ({written}) OVERRIDING SYSTEM VALUE SELECT {written} FROM put_back "
                f"ON CONFLICT ({', '.join(map(quoted, keys))}) DO UPDATE SET {DELETED} = hot.{DELETED} "
                f"WHERE hot.{POS} < %s",
                (position,),
            )
            return int(cursor.rowcount)

    def oldest_writer(self) -> Writer:
        """Returns the longest-writing transaction in any database, even a prepared one.

        Without pg_read_all_stats, PostgreSQL hides other roles' transactions.
        """
        with self._cursor() as cursor:
            cursor.execute(WRITER)
            ((seconds, who, role),) = cursor.fetchall()
        return Writer(seconds or 0.0, who or "", role)

    @property
    def _quoted(self) -> str:
        return ".".join(map(quoted, self.table.split(".")))

    def _cursor(self, patience: Patience = ASKING) -> AbstractContextManager[Cursor]:
        return connected(self.name, patience)


class Writer(NamedTuple):
    """The longest-writing transaction."""

    seconds: float = 0.0
    who: str = ""
    blind_role: str = ""
    """The asking role, if others' transactions are hidden."""


class _CopiedRows:
    """A file for COPY that notes the longest row. Each write is one row, as PostgreSQL sends one in each message."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.longest = file, 0

    def write(self, row: bytes) -> int:
        self.longest = max(self.longest, len(row))
        return self.file.write(row)


def quoted(name: str) -> str:
    """Returns an identifier in quotes."""
    return '"' + name.replace('"', '""') + '"'


def postgres_type(type_: str) -> str | None:
    """Returns PostgreSQL's type for an Iceberg type; None if it can't be read from PostgreSQL."""
    return type_.replace("decimal", "numeric") if type_.startswith("decimal(") else TYPES.get(type_)

"""`lakehouse sql`: a query on the lake, answered by a warm worker."""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lakehouse_assets.cli.home import cold, ready
from lakehouse_assets.cli.project import root_packages
from lakehouse_assets.cli.time_type import TIME
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.machine import scratch
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import LakehouseError

if TYPE_CHECKING:
    from pyarrow import Table

    from lakehouse_assets.extensions.sql.question import Question

SHOWN = 100
"""The most rows that are printed."""
SUFFIXES = (".csv", ".json", ".parquet")
WORK = "lakehouse_assets.extensions.sql.worker:answer"
LOOK_SECONDS = 0.01
"""Between two looks at the worker."""


@click.command()
@click.argument("query", metavar="QUERY|FILE")
@click.option(
    "--at", type=TIME, help="Read the tables as they were at this time, in ISO 8601 (UTC if it names no zone)."
)
@click.option("--release", metavar="NAME", help="Read the release of a domain, with --at the one of that time.")
@click.option("-o", "--output", metavar="FILE", help="Write all rows to FILE: .csv, .json (a line a row) or .parquet.")
@cold
def sql(query: str, at: datetime | None, release: str | None, output: str | None) -> None:
    """Query the lake.

    QUERY is one SELECT in Spark's SQL, or a file with one. It only reads. Prints at most 100 rows.
    """
    if output and Path(output).suffix not in SUFFIXES:
        raise click.UsageError(f"-o {output}: its name must end with {', '.join(SUFFIXES)}")
    file = Path(output).absolute() if output else None
    if file and not file.parent.is_dir():
        raise click.UsageError(f"-o {output}: there is no folder {file.parent}")
    text = query
    if query.endswith(".sql") and " " not in query:
        if not Path(query).is_file():
            raise click.UsageError(f"there is no file {query}")
        text = Path(query).read_text(encoding="utf-8-sig")
    settings = ready()
    from lakehouse_assets.extensions.releases.pointer import release as released
    from lakehouse_assets.extensions.sql.question import asked

    began = time.monotonic()
    with closing(load_lake(settings)) as catalog:
        members = released(release, at=at, catalog=catalog).members if release else {}
        snapshots = {table: member.snapshot_id for table, member in members.items()} or None
        question = asked(text, catalog, snapshots, at)
    rows = _rows(settings, replace(question, limit=SHOWN, output=str(file) if file else None))
    seconds = f"{time.monotonic() - began:.1f} s"
    if rows is None:
        print(f"wrote {output} in {seconds}")
        return
    from lakehouse_assets.cli.terminal import table

    # By column, as two may have one name.
    columns = [["NULL" if value is None else str(value) for value in of.to_pylist()] for of in rows.slice(0, SHOWN)]
    print(table(rows.column_names, [*zip(*columns, strict=True)]))
    if rows.num_rows > SHOWN:
        print(f"\nthe first {SHOWN} rows in {seconds}; -o rows.csv writes all of them")
    else:
        print(f"\n{rows.num_rows} {'row' if rows.num_rows == 1 else 'rows'} in {seconds}")


def _rows(settings: Settings, question: Question) -> Table | None:
    """Asks a worker. Returns the rows; None if they are in the question's file. Raises LakehouseError."""
    import pyarrow as pa

    from lakehouse_assets.cli.terminal import output_to
    from lakehouse_assets.extensions.fork_server.computes import Local
    from lakehouse_assets.extensions.fork_server.lease import lease
    from lakehouse_assets.extensions.sql.question import FOLDER, Answer, Question

    local = settings.computes["local"]
    assert isinstance(local, Local)
    with tempfile.TemporaryDirectory(prefix="lakehouse-sql-", dir=scratch(settings.home)) as name:
        folder, log = Path(name), settings.home / "sql.log"
        (folder / Question.FILE).write_text(question.to_json())
        with output_to(log):
            # With the project's package, as runs have it: both then use the same worker.
            leased = lease(settings, {}, root_packages(), {FOLDER: name}, idle=local.idle, work=WORK)
            try:
                while (status := leased.poll()) is None:
                    time.sleep(LOOK_SECONDS)
            finally:
                leased.let_go()
        if not (folder / Answer.FILE).exists():
            raise LakehouseError(f"the worker ended with exit status {status}; its log: {log}")
        if failure := Answer.from_json((folder / Answer.FILE).read_text()).failure:
            raise LakehouseError(failure)
        if question.output:
            return None
        with pa.OSFile(str(folder / Answer.ROWS)) as file:
            return pa.ipc.open_file(file).read_all()

"""Parses and runs a command; prints expected errors in a line or two.

Dagster takes seconds to import, so it is imported after all checks.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from pathlib import Path

from lakehouse_assets.cli.home import prepare
from lakehouse_assets.cli.project import enter_project, make_project, project_of
from lakehouse_assets.cli.ui import serve
from lakehouse_assets.environment.catalog import catalog_problems
from lakehouse_assets.environment.databases import refused_database
from lakehouse_assets.environment.disk import full_disk
from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.environment.machine import VERSION, SetupError
from lakehouse_assets.environment.output import lost_output, use_unfailing_streams
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.environment.spark_setup import build
from lakehouse_assets.errors import LakehouseError

INTERRUPTED = 130
REPORTS = ("columns", "doctor", "plan", "source", "trace")
"""Commands whose purpose is their output."""
EXPECTED = (LakehouseError, SettingsError, SetupError, OSError)  # OSError: disks, networks, catalogs


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns 0, 1 for an error that a person can fix, or 130 if interrupted.

    Unwritable output interrupts nothing; it is an error only of a command in REPORTS.
    """
    use_unfailing_streams()
    chosen = _parser().parse_args((sys.argv[1:] if arguments is None else arguments) or ["--help"])
    status = _perform(chosen)
    if lost := lost_output():
        print(f"error: {lost}", file=sys.stderr)
        return status or int(chosen.command in REPORTS)
    return status


def _perform(chosen: argparse.Namespace) -> int:
    settings = None
    try:
        if chosen.command == "setup":
            # An image is set up before its settings are known, so the catalog's are not checked here.
            settings = read_settings()
            build(settings, training="lakehouse_assets.worker.training")
            return 0
        if chosen.command == "new":
            print(make_project(chosen.name, Path.cwd()))
            return 0
        if chosen.command == "columns":
            from lakehouse_assets.cli.column_lines import lines_for  # imports PyArrow

            print(lines_for(chosen.source))
            return 0
        if chosen.command == "doctor":
            from lakehouse_assets.cli.doctor import doctor  # imports PyIceberg

            if project_of(Path.cwd()):  # in an image there may be none
                enter_project()
            return doctor(read_settings(check=catalog_problems), chosen.tables)
        enter_project()
        settings = read_settings(check=catalog_problems)
        if chosen.command == "ui":
            return serve(settings, chosen.port)
        prepare(settings)
        if chosen.command == "maintain":
            from lakehouse_assets.cli.commands import maintain  # imports Dagster

            config = {"dry_run": not chosen.apply, "allow_large": chosen.allow_large, "force": chosen.force}
            levels = {"levels": chosen.levels} if chosen.levels else {}
            return maintain(settings, {**config, "tables": chosen.tables, **levels})
        if chosen.command == "plan":
            from lakehouse_assets.cli.commands import show_plan  # imports Dagster

            return show_plan(settings, chosen.tables)
        if chosen.command == "trace":
            gc.disable()  # a quarter of this short life would go into collecting the garbage of imports
            from lakehouse_assets.cli.commands import trace  # imports Dagster

            return trace(settings, chosen.asset, chosen.partition, chosen.at)
        if chosen.command == "rollback":
            from lakehouse_assets.cli.commands import rollback  # imports Dagster

            return rollback(settings, chosen.table, chosen.to, confirmed=chosen.yes)
        if chosen.command == "source":
            from lakehouse_assets.cli.commands import source_sql  # imports Dagster

            return source_sql(settings, chosen.table, apply=chosen.apply)
        if chosen.command == "warm":
            from lakehouse_assets.cli.commands import warm_rows  # imports Dagster

            return warm_rows(settings, chosen.table, chosen.where)
        from lakehouse_assets.cli.run import run  # imports Dagster

        return run(settings, chosen.domain, chosen.tables, chosen.partitions)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if settings and (full := full_disk(error, settings)):
            message = f"{full}, then start again. Nothing half-written is visible, and what was staged is kept"
        elif settings and (refused := refused_database(error, settings.home)):
            message = refused
        elif isinstance(error, EXPECTED):
            message = str(error)
        else:
            raise
        print(f"error: {message}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lakehouse", description="Iceberg tables as Dagster assets, filled by PySpark workers."
    )
    parser.add_argument("--version", action="version", version=f"lakehouse-assets {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("setup", help="fetch Spark's jars into LAKEHOUSE_CACHE and train the class-data archive")
    new = commands.add_parser("new", help="make a project: a folder with a code location and its first table")
    new.add_argument("name", help="of the folder; with _ for - also of its package, its domain and its namespace")
    columns = commands.add_parser("columns", help="print the column(…) lines for a file or a table")
    columns.add_argument("source", metavar="FILE|TABLE")
    run = commands.add_parser("run", help="materialize every asset of a domain, in topological order")
    run.add_argument("--domain", help="its name; not needed where there is only one")
    run.add_argument("--tables", nargs="*", default=[], help="only these of its assets, such as shop.orders")
    run.add_argument(
        "--partitions", metavar="KEY[...KEY]", help="only this partition or range, such as 2026-01-01...2026-01-31"
    )
    plan = commands.add_parser("plan", help="show what the declarations would change on the lake")
    plan.add_argument("--tables", nargs="*", default=[], help="identifiers; without, all declared tables")
    maintain = commands.add_parser("maintain", help="show which maintenance the tables need")
    maintain.add_argument("--apply", action="store_true", help="do it as well")
    maintain.add_argument("--force", action="store_true", help="also below the limits from which on it is worth it")
    maintain.add_argument("--levels", nargs="*", help="kinds of work; without, those that need not be asked for")
    maintain.add_argument("--tables", nargs="*", default=[], help="identifiers; without, all declared tables")
    maintain.add_argument("--allow-large", action="store_true", help="let the trash take over 20 %% of a table's bytes")
    trace = commands.add_parser("trace", help="show what a table's partition was made from, version by version")
    trace.add_argument("asset", help="such as shop.orders")
    trace.add_argument("partition", nargs="?", help="its key; without, the latest that was materialized")
    trace.add_argument("--at", help="a time in ISO 8601, UTC where it names no zone: what was there then")
    rollback = commands.add_parser("rollback", help="set a table back to one of its snapshots")
    rollback.add_argument("table", help="an identifier such as shop.orders")
    rollback.add_argument(
        "--to",
        required=True,
        metavar="SNAPSHOT|TIME|RELEASE",
        help="a snapshot's id, a time in ISO 8601 (what was current then), or release:12",
    )
    rollback.add_argument("--yes", action="store_true", help="do not ask")
    source = commands.add_parser("source", help="print the SQL that a database needs to be a source of a table")
    source.add_argument("what", choices=["sql"])
    source.add_argument("table", help="in PostgreSQL")
    source.add_argument("--apply", action="store_true", help="execute it, on the database of PGHOST and the like")
    warm = commands.add_parser("warm", help="put rows of a table back into its source in PostgreSQL")
    warm.add_argument("table", help="an identifier such as shop.orders")
    warm.add_argument("--where", required=True, help="a condition over its columns, such as \"day = '2026-01-31'\"")
    doctor = commands.add_parser("doctor", help="try what runs need, harmlessly, and name what is missing")
    doctor.add_argument("tables", nargs="*", metavar="TABLE", help="such as shop.orders: the catalog is asked for it")
    ui = commands.add_parser("ui", help="serve the Dagster UI and run the daemon")
    ui.add_argument("--port", type=int, default=3000, help="of 127.0.0.1; by default 3000")
    return parser


if __name__ == "__main__":
    sys.exit(main())

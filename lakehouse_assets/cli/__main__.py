"""Entry point: parses the command and turns expected errors into a line or two and an exit status.
No work of its own. Dagster is imported only behind the checks: it takes seconds."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lakehouse_assets.cli.home import prepare
from lakehouse_assets.cli.ui import serve
from lakehouse_assets.errors import LakehouseError
from resources.catalog_problems import catalog_problems
from resources.disk import full_disk
from resources.machine import SetupError
from resources.settings import Settings, SettingsError, read_settings
from resources.spark_setup import build

INTERRUPTED = 130
EXPECTED = (LakehouseError, SettingsError, SetupError, OSError)  # OSError: disks, networks, catalogs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 0, 1 for an error a person can mend, 130 when interrupted."""
    parser = argparse.ArgumentParser(prog="python -m lakehouse_assets.cli", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("setup", help="fetch Spark's jars and train the class-data archive")
    commands.add_parser("run", help="materialize every table, in topological order")
    ui = commands.add_parser("ui", help="serve the Dagster UI and run the daemon")
    ui.add_argument("--port", type=int, default=3000)
    chosen = parser.parse_args(arguments)
    settings = None
    try:
        if chosen.command == "setup":  # for an image too, whose settings are told when it is run
            settings = read_settings()
            build(settings, training="lakehouse_assets.worker.training")
            return 0
        settings = read_settings(check=catalog_problems)
        return _command(chosen, settings)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if settings and (full := full_disk(error, settings)):
            told = f"{full}, then start again. Nothing half-written is visible, what was staged is kept"
        elif isinstance(error, EXPECTED):
            told = str(error)
        else:
            raise
        print(f"error: {told}", file=sys.stderr)
        return 1


def _command(chosen: argparse.Namespace, settings: Settings) -> int:
    if chosen.command == "ui":
        return serve(settings, chosen.port)
    prepare(settings)
    from lakehouse_assets.cli.run import run  # imports Dagster

    return run(settings)


if __name__ == "__main__":
    sys.exit(main())

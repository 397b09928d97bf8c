"""Runs a command; prints expected errors in a line or two."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

import click

from lakehouse_assets.cli.errors import expected_message
from lakehouse_assets.environment.interpreter import collect_rarely, end_process
from lakehouse_assets.environment.machine import VERSION
from lakehouse_assets.environment.output import lost_output, use_unfailing_streams

COMMANDS: Mapping[str, str] = {
    "setup": "lakehouse_assets.cli.home",
    "new": "lakehouse_assets.cli.project",
    "columns": "lakehouse_assets.cli.columns",
    "run": "lakehouse_assets.cli.run",
    "plan": "lakehouse_assets.cli.plan",
    "maintain": "lakehouse_assets.cli.maintain",
    "sql": "lakehouse_assets.cli.sql",
    "trace": "lakehouse_assets.cli.trace",
    "rollback": "lakehouse_assets.cli.rollback",
    "source": "lakehouse_assets.cli.postgres",
    "warm": "lakehouse_assets.cli.postgres",
    "doctor": "lakehouse_assets.cli.doctor",
    "ui": "lakehouse_assets.cli.ui",
    "workers": "lakehouse_assets.cli.workers",
}
"""Command → the module that has it under its name. As ``--help`` and shell completion import all, commands import slow
modules, such as Dagster and PyArrow, inside, after all checks."""
# The exit status that shells give for a command that SIGINT ended.
INTERRUPTED = 130
# Commands whose output is their result: if it can't be written, they fail.
REPORTS = ("columns", "doctor", "plan", "source", "sql", "trace", "workers")


class Commands(click.Group):
    """Imports a command on demand, and turns its errors into a message and an exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the commands in the order of COMMANDS."""
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a command; None if it is unknown."""
        module = COMMANDS.get(cmd_name)
        return getattr(import_module(module), cmd_name) if module else None

    def invoke(self, ctx: click.Context) -> int:
        """Returns 0, 1 for an error that a person can fix, or 130 if interrupted."""
        status = self._perform(ctx)
        if lost := lost_output():
            print(f"error: {lost}", file=sys.stderr)
            return status or int(ctx.invoked_subcommand in REPORTS)
        return status

    def _perform(self, ctx: click.Context) -> int:
        try:
            return super().invoke(ctx) or 0
        except (KeyboardInterrupt, click.Abort):
            print("interrupted", file=sys.stderr)
            return INTERRUPTED
        except Exception as error:
            message = expected_message(error, ctx.obj)  # used_by_command() sets the settings
            if message is None:
                raise
            print(f"error: {message}", file=sys.stderr)
            return 1


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, message="lakehouse-assets %(version)s")
def lakehouse() -> None:
    """Iceberg tables as Dagster assets, filled by PySpark workers."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns its exit status, 2 for wrong arguments.

    Unwritable output is an error only for a command in REPORTS.
    """
    use_unfailing_streams()
    collect_rarely()
    given = [*(sys.argv[1:] if arguments is None else arguments)] or ["--help"]
    try:
        return int(lakehouse.main(given, prog_name="lakehouse", standalone_mode=False))
    except click.ClickException as error:
        error.show()
        return error.exit_code


def console() -> None:
    """Runs the command of this process, and ends the process."""
    end_process(main())


if __name__ == "__main__":
    console()

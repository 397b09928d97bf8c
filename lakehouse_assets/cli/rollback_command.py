"""Rolls a table back after a person has seen what that undoes: `lakehouse rollback`.

The job does it; this shows its dry run, asks, and starts it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import dagster as dg

from lakehouse_assets.cli.instance import opened
from lakehouse_assets.cli.job_commands import run_job, shown_tables, shown_values
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.rollback.rollback_job import HEAD, ROLLBACK, TARGET, TOLD


def rollback(settings: Settings, table: str, to: str, *, confirmed: bool) -> int:
    """Shows what a rollback undoes, asks, and rolls back. Returns 0, or 1 if it was refused, failed or was not wanted.

    table: its identifier. to: as the job takes it. confirmed: whether nobody needs to be asked. Expects that
    home.prepare was called.
    """
    found: dict[str, str] = {}

    def told(result: dg.JobExecutionResult) -> Iterable[str]:
        if not result.success:
            return ()
        values = shown_values(result)
        found.update({name: str(values[name].value) for name in (HEAD, TARGET, TOLD)})
        head, target = found[HEAD], found[TARGET]
        if head == target:
            return [f"{table} is at snapshot {target} already; partitions that Dagster shows otherwise: {found[TOLD]}"]
        moves = f"{table}: main goes from snapshot {head} to {target}; partitions that change: {found[TOLD]}"
        return [*shown_tables(result), moves]

    config = {"table": table, "to": to}
    with opened(settings) as (instance, _):
        if status := run_job(settings, instance, ROLLBACK, config, "rollback.log", told):
            return status
        if not (confirmed or _is_wanted()):
            print("nothing was changed", file=sys.stderr)
            return 1
        # The snapshot itself: a time could mean another one by now.
        chosen = {**config, "to": found[TARGET], "head": found[HEAD], "dry_run": False}
        return run_job(settings, instance, ROLLBACK, chosen, "rollback.log", lambda result: _done(table, result))


def _done(table: str, result: dg.JobExecutionResult) -> Iterable[str]:
    if result.success:
        head = shown_values(result)[HEAD].value
        yield f"rolled back; `lakehouse rollback {table} --to {head}` undoes it until that snapshot expires"


def _is_wanted() -> bool:
    if not sys.stdin.isatty():
        print("error: there is no terminal to ask on: add --yes to roll back", file=sys.stderr)
        return False
    return input("Roll back? [y/N] ").strip().lower() in ("y", "yes")

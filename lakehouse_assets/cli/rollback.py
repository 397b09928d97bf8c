"""`lakehouse rollback`: sets a table back."""

from __future__ import annotations

import sys

import click

from lakehouse_assets.cli.home import ready


@click.command()
@click.argument("table")
@click.option(
    "--to",
    required=True,
    metavar="SNAPSHOT|TIME|RELEASE",
    help="A snapshot's id, a time in ISO 8601 (for the snapshot that was current then), or release:12.",
)
@click.option("--yes", is_flag=True, help="Roll back without asking.")
def rollback(table: str, to: str, *, yes: bool) -> int:
    """Set a table back to one of its snapshots.

    It shows what becomes undone, and asks. TABLE is an identifier such as shop.orders.
    """
    settings = ready()
    from lakehouse_assets.cli.jobs import run_job, tables_in
    from lakehouse_assets.rollback.rollback_job import HEAD, ROLLBACK, TARGET, TOLD

    config = {"table": table, "to": to}
    found = run_job(settings, ROLLBACK, config, "rollback.log")
    head, target, told = (str(found[name].value) for name in (HEAD, TARGET, TOLD))
    if head == target:
        print(f"{table} is already at snapshot {target}; partitions that Dagster shows differently: {told}")
    else:
        moves = f"{table}: main goes from snapshot {head} to {target}; partitions that change: {told}"
        print(*tables_in(found), moves, sep="\n\n")
    if not (yes or _is_wanted()):
        print("nothing was changed", file=sys.stderr)
        return 1
    # The snapshot that was shown, not the time, which could now mean another one; and the head that was shown, so that
    # the job refuses if others have committed since.
    done = run_job(settings, ROLLBACK, {**config, "to": target, "head": head, "dry_run": False}, "rollback.log")
    print(f"rolled back; `lakehouse rollback {table} --to {done[HEAD].value}` undoes it until that snapshot expires")
    return 0


def _is_wanted() -> bool:
    if not sys.stdin.isatty():
        print("error: can't ask for confirmation without a terminal; add --yes to roll back", file=sys.stderr)
        return False
    return click.confirm("Roll back?")

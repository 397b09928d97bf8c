"""`lakehouse run`: materializes a domain's assets, one run each."""

from __future__ import annotations

import shlex
import time

import click

from lakehouse_assets.cli.home import cold, ready, select
from lakehouse_assets.environment.machine import command
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.errors import LakehouseError


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option("--domain", help="The domain's name; not needed if there is only one.")
@click.option(
    "--partitions", metavar="KEY[...KEY]", help="Only this partition or range, such as 2026-01-01...2026-01-31."
)
@select
@cold
def run(tables: tuple[str, ...], domain: str | None, partitions: str | None, select: str | None) -> int:
    """Materialize the assets of a domain, each after its inputs.

    With a TABLE, such as shop.orders, only these of its assets. Up to LAKEHOUSE_MAX_WORKERS run side by side. After a
    failure, those that depend on the failed one are not run.
    """
    if select and (tables or domain):
        raise click.UsageError("--select replaces TABLE and --domain: choose one of the two")
    settings = ready()
    from lakehouse_assets.cli.instance import opened, set_worker_limit
    from lakehouse_assets.cli.pipeline import Pipeline
    from lakehouse_assets.cli.side_by_side import run_all
    from lakehouse_assets.cli.summary import health_line, summary
    from lakehouse_assets.cli.terminal import Lines, duration, output_to
    from lakehouse_assets.drive.liveness import reaped_text

    with opened(settings) as (instance, reaped), output_to(settings.home / "run.log") as terminal:
        set_worker_limit(instance, settings)
        pipeline = Pipeline()
        if select:
            keys = pipeline.selected(select)
        else:
            # A table's namespace is its domain's name.
            domain = domain or (tables[0].partition(".")[0] if tables else pipeline.only_domain())
            keys = pipeline.keys_of(domain)
        for run_id in reaped:
            print(reaped_text(run_id), file=terminal)
        every = pipeline.selections(keys, instance)
        selections = [one for one in every if not tables or one.name in tables]
        if unknown := {*tables} - {one.name for one in selections}:
            known = ", ".join(sorted(one.name for one in every)) or "none"
            text = f"{domain} can't run {', '.join(sorted(unknown))}: no such assets, or they have no partitions yet"
            raise LakehouseError(f"{text}; it can run {known}")
        if partitions is not None:
            selections = [one.within(partitions) for one in selections]
        if domain and (elsewhere := pipeline.other_domains_upstream(domain)):
            print(f"not run, because they belong to other domains: {', '.join(elsewhere)}", file=terminal)
        began = time.time()
        with Lines(terminal) as lines:
            ended = run_all(pipeline, pipeline.upstream(selections), settings.max_workers, lines)
        if failed := {one: outcome for one, outcome in ended.items() if outcome.failure}:
            for selection, outcome in failed.items():
                print(f"\n{selection.name} failed: {outcome.failure}", file=terminal)
                if outcome.run_id:
                    print(f"this run in the UI: {_ui(settings)}/runs/{outcome.run_id}", file=terminal)
            if left := [one.name for one in selections if one not in ended]:
                print(f"\nnot run, because of what failed: {', '.join(left)}", file=terminal)
            advice = (
                f"`{command('run')}` starts over; Re-execute from failure in the UI keeps what was staged",
                f"the full log: {settings.home / 'run.log'}",
            )
            print(*advice, sep="\n", file=terminal)
            return 1
        done = [(one.name, one.count, ended[one].seconds) for one in selections]
        succeeded = (
            f"\n{summary(settings, done, began, terminal)}\n",
            f"all done in {duration(time.time() - began)}",
            *(f"chart: {chart}" for one in selections for chart in ended[one].charts),
            f"all runs in the UI: {_ui(settings)}",
            # A name without a dot is no table's.
            health_line(settings, [name for name, _, _ in done if "." in name]),
        )
        print(*succeeded, sep="\n", file=terminal)
    return 0


def _ui(settings: Settings) -> str:
    # The variable is needed only for a home other than the default.
    elsewhere = "" if settings.home == read_settings({}).home else f"LAKEHOUSE_HOME={shlex.quote(str(settings.home))} "
    return f"{elsewhere}{command('ui')}, then http://127.0.0.1:3000"

"""`lakehouse run`: materializes a domain's assets in topological order, one run each."""

from __future__ import annotations

import shlex
import time

import click

from lakehouse_assets.cli.home import cold, ready
from lakehouse_assets.environment.machine import command
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.errors import LakehouseError


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option("--domain", help="The domain's name; not needed if there is only one.")
@click.option(
    "--partitions", metavar="KEY[...KEY]", help="Only this partition or range, such as 2026-01-01...2026-01-31."
)
@cold
def run(tables: tuple[str, ...], domain: str | None, partitions: str | None) -> int:
    """Materialize the assets of a domain, in topological order.

    With a TABLE, such as shop.orders, only these of its assets. After a failure, the rest is not run.
    """
    settings = ready()
    from lakehouse_assets.cli.instance import opened, set_worker_limit
    from lakehouse_assets.cli.pipeline import Pipeline, failure_reason, shown_charts, was_interrupted
    from lakehouse_assets.cli.summary import health_line, summary
    from lakehouse_assets.cli.terminal import Line, duration, output_to
    from lakehouse_assets.drive.liveness import reaped_text
    from lakehouse_assets.run.progress import listening

    with opened(settings) as (instance, reaped), output_to(settings.home / "run.log") as terminal:
        set_worker_limit(instance, settings)
        pipeline = Pipeline()
        domain = domain or (tables[0].partition(".")[0] if tables else pipeline.only_domain())
        for run_id in reaped:
            print(reaped_text(run_id), file=terminal)
        every = pipeline.selections(domain, instance)
        selections = [one for one in every if not tables or one.name in tables]
        if unknown := {*tables} - {one.name for one in selections}:
            known = ", ".join(sorted(one.name for one in every)) or "none"
            text = f"{domain} can't run {', '.join(sorted(unknown))}: no such assets, or they have no partitions yet"
            raise LakehouseError(f"{text}; it can run {known}")
        if partitions is not None:
            selections = [one.within(partitions) for one in selections]
        if elsewhere := pipeline.other_domains_upstream(domain):
            print(f"not run, because they belong to other domains: {', '.join(elsewhere)}", file=terminal)
        began = time.time()
        done: list[tuple[str, int | None, float]] = []
        charts: list[str] = []
        for number, selection in enumerate(selections, start=1):
            started = time.time()
            title = f"[{number}/{len(selections)}] {selection.name}"
            with Line(terminal, title, selection.count) as line, listening(line.update):
                result = pipeline.execute(instance, selection)
                line.end("done" if result.success else "failed")
            if was_interrupted(result):
                raise KeyboardInterrupt
            if not result.success:
                left = len(selections) - number
                failed = (
                    f"\n{selection.name} failed: {failure_reason(result)}",
                    *([f"not run: the remaining {left}"] if left else []),
                    f"`{command('run')}` starts over; Re-execute from failure in the UI keeps what was staged",
                    f"this run in the UI: {_ui(settings)}/runs/{result.run_id}",
                    f"its full log: {settings.home / 'run.log'}",
                )
                print(*failed, sep="\n", file=terminal)
                return 1
            done.append((selection.name, selection.count, time.time() - started))
            charts += shown_charts(result)
        succeeded = (
            f"\n{summary(settings, done, began, terminal)}\n",
            f"all done in {duration(sum(seconds for _, _, seconds in done))}",
            *(f"chart: {chart}" for chart in charts),
            f"all runs in the UI: {_ui(settings)}",
            health_line(settings, [name for name, _, _ in done if "." in name]),
        )
        print(*succeeded, sep="\n", file=terminal)
    return 0


def _ui(settings: Settings) -> str:
    elsewhere = "" if settings.home == read_settings({}).home else f"LAKEHOUSE_HOME={shlex.quote(str(settings.home))} "
    return f"{elsewhere}{command('ui')}, then http://127.0.0.1:3000"

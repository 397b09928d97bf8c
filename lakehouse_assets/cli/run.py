"""Runs all assets of a domain in topological order, one run each."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Iterable, Sequence

from lakehouse_assets.cli.instance import opened, set_worker_limit
from lakehouse_assets.cli.pipeline import Pipeline, failure_reason, shown_charts, was_interrupted
from lakehouse_assets.cli.terminal import Line, duration, output_to
from lakehouse_assets.cli.terminal import table as text_table
from lakehouse_assets.commit.deletes import live_rows
from lakehouse_assets.drive.liveness import told
from lakehouse_assets.environment.catalog import find_table, load_lake, with_retries
from lakehouse_assets.environment.machine import command
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.errors import LakehouseError
from lakehouse_assets.maintenance.health.findings import by_check, size_text
from lakehouse_assets.maintenance.health.health import TableHealth
from lakehouse_assets.maintenance.health.look import look, summary_cache
from lakehouse_assets.maintenance.levels import LEVELS
from lakehouse_assets.run.progress import listening
from lakehouse_assets.run.resource import Lakehouse

HEADER = ("table", "partitions", "rows", "data files", "bytes", "snapshots added", "seconds")


def summary(settings: Settings, assets: Sequence[tuple[str, int | None, float]], began: float) -> str:
    """Returns a text table of assets: (name, number of partitions or None, seconds).

    An asset that is no Iceberg table has neither rows, files nor snapshots. began: seconds since 1970.
    """
    catalog, lines = with_retries(lambda: load_lake(settings)), []
    for name, partitions, seconds in assets:
        totals = ["", "", "", ""]
        if "." in name and (table := find_table(catalog, name)):
            snapshot = table.current_snapshot()
            found = snapshot.summary if snapshot and snapshot.summary else {}
            rows = live_rows(table.metadata, snapshot, table.io) if snapshot else 0
            totals = ["" if rows is None else str(rows)]
            totals += [f"{int(found.get(f'total-{what}', 0)):,}" for what in ("data-files", "files-size")]
            totals.append(str(sum(one.timestamp_ms >= began * 1000 for one in table.metadata.snapshots)))
        lines.append((name, "" if partitions is None else str(partitions), *totals, f"{seconds:.1f}"))
    return text_table(HEADER, lines)


def health_line(settings: Settings, identifiers: Iterable[str]) -> str:
    """Returns the tables' health in one line; reports errors instead of raising, as the tables are filled."""
    try:
        lakehouse = Lakehouse(settings)
        catalog, cache, found = lakehouse.catalog(), summary_cache(lakehouse), list[TableHealth]()
        for identifier in identifiers:
            if table := find_table(catalog, identifier):
                found.append(look(table, cache))
    except Exception as error:
        return f"health of the lake: unknown, {type(error).__name__}: {error}"
    if not found:
        return "health of the lake: there are no tables yet"
    actions = {
        health.identifier: [one.action or "a person" for of in by_check(health, LEVELS).values() for one in of]
        for health in found
    }
    files, size = (sum(health.total(number) for health in found) for number in ("files", "size"))
    held = f"{len(found)} tables, {files:,} data files, {size_text(size)}"
    care = "; ".join(f"{name} needs {', '.join(dict.fromkeys(of))}" for name, of in actions.items() if of)
    return f"health of the lake: {held}; {care or 'nothing to mend'}"


def run(settings: Settings, domain: str | None = None, names: Sequence[str] = (), partitions: str | None = None) -> int:
    """Materializes a domain's assets. Returns 0, or 1 after the first failure: the rest is not run.

    domain: None if there is only one. names: only these assets, such as ``nyc.flights``. partitions: a key or
    ``first...last``. Expects that home.prepare was called. Raises LakehouseError for an unknown domain, asset or
    partition, KeyboardInterrupt if a signal ended a run.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends this process like Ctrl-C
    with opened(settings) as (instance, reaped), output_to(settings.home / "run.log") as terminal:
        set_worker_limit(instance, settings)
        pipeline = Pipeline()
        domain = domain or (names[0].partition(".")[0] if names else pipeline.only_domain())
        for run_id in reaped:
            print(told(run_id), file=terminal)
        every = pipeline.selections(domain, instance)
        selections = [one for one in every if not names or one.name in names]
        if unknown := {*names} - {one.name for one in selections}:
            known = ", ".join(sorted(one.name for one in every)) or "none"
            text = f"{domain} has nothing to run of {', '.join(sorted(unknown))}: no such assets, or no partitions yet"
            raise LakehouseError(f"{text}; there are {known}")
        if partitions is not None:
            selections = [one.within(partitions) for one in selections]
        if elsewhere := pipeline.other_domains_upstream(domain):
            print(f"not run, because other domains have them: {', '.join(elsewhere)}", file=terminal)
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
                    *([f"not run: the {left} after it"] if left else []),
                    f"`{command('run')}` begins anew; the UI's Re-execute from failure keeps what was staged",
                    f"the run in the UI: {_ui(settings)}/runs/{result.run_id}",
                    f"everything it logged: {settings.home / 'run.log'}",
                )
                print(*failed, sep="\n", file=terminal)
                return 1
            done.append((selection.name, selection.count, time.time() - started))
            charts += shown_charts(result)
        succeeded = (
            f"\n{summary(settings, done, began)}\n",
            f"all done in {duration(sum(seconds for _, _, seconds in done))}",
            *(f"chart: {chart}" for chart in charts),
            f"the UI, with every run: {_ui(settings)}",
            health_line(settings, [name for name, _, _ in done if "." in name]),
        )
        print(*succeeded, sep="\n", file=terminal)
    return 0


def _ui(settings: Settings) -> str:
    elsewhere = "" if settings.home == read_settings({}).home else f"LAKEHOUSE_HOME={shlex.quote(str(settings.home))} "
    return f"{elsewhere}{command('ui')}, then http://127.0.0.1:3000"

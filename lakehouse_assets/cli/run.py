"""Runs all assets of a domain in topological order, one run for each, and shows a person how far it is.

What a table is and how it is filled is decided by the assets.
"""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Mapping, Sequence

import dagster as dg

from lakehouse_assets.cli.instance import opened, set_worker_limit
from lakehouse_assets.cli.pipeline import Pipeline, Selection, failure_reason, shown_charts, was_interrupted
from lakehouse_assets.cli.summary import health_line, snapshots, summary
from lakehouse_assets.cli.terminal import Line, duration, output_to
from lakehouse_assets.run.progress import listening
from resources.settings import Settings, read_settings

DEFINITIONS = "lakehouse_assets.definitions"


def run(settings: Settings, domain: str, definitions: str = DEFINITIONS, names: Sequence[str] = ()) -> int:
    """Materializes all assets of the domain. Returns 0, or 1 after the first that failed: the rest is not run then.

    definitions: the module that holds ``defs``. names: where there are any, only these assets, such as ``nyc.flights``.
    Expects that home.prepare was called.
    Raises LakehouseError for an unknown domain, KeyboardInterrupt when a signal ended a run.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends this process like Ctrl-C
    with opened(settings) as (instance, reaped), output_to(settings.home / "run.log") as terminal:
        set_worker_limit(instance, settings)
        pipeline = Pipeline(definitions)
        for run_id in reaped:
            text = f"the process of run {run_id} had died: the run is marked as failed, its slots are free"
            print(text, file=terminal)
        selections = [one for one in pipeline.selections(domain, instance) if not names or one.name in names]
        if elsewhere := pipeline.other_domains_upstream(domain):
            print(f"not run, because other domains have them: {', '.join(elsewhere)}", file=terminal)
        before = snapshots(settings, [selection.name for selection in selections])
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
                print(_failure(selection, result, settings, len(selections) - number), file=terminal)
                return 1
            done.append((selection.name, selection.count, time.time() - started))
            charts += shown_charts(result)
        print(_success(settings, done, before, charts, pipeline.tables(domain)), file=terminal)
    return 0


def _success(
    settings: Settings,
    done: Sequence[tuple[str, int | None, float]],
    before: Mapping[str, set[int]],
    charts: Sequence[str],
    tables: Sequence[str],
) -> str:
    return "\n".join(
        [
            f"\n{summary(settings, done, before)}\n",
            f"all done in {duration(sum(seconds for _, _, seconds in done))}",
            *(f"chart: {chart}" for chart in charts),
            f"the UI, with every run: {_ui(settings)}",
            health_line(settings, tables),
        ]
    )


def _failure(selection: Selection, result: dg.JobExecutionResult, settings: Settings, left: int) -> str:
    return "\n".join(
        [
            f"\n{selection.name} failed: {failure_reason(result)}",
            *([f"not run: the {left} after it"] if left else []),
            f"the run in the UI: {_ui(settings)}/runs/{result.run_id}",
            f"everything it logged: {settings.home / 'run.log'}",
        ]
    )


def _ui(settings: Settings) -> str:
    elsewhere = "" if settings.home == read_settings({}).home else f"LAKEHOUSE_HOME={shlex.quote(str(settings.home))} "
    return f"{elsewhere}make ui, then http://127.0.0.1:3000"

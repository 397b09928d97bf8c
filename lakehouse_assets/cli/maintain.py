"""Runs the maintenance job by hand: shows what is worth doing and why and, if asked to, does it.

What the job does is maintenance/'s.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from lakehouse_assets.cli.instance import opened
from lakehouse_assets.cli.job_tables import shown_tables, shown_values
from lakehouse_assets.cli.pipeline import Pipeline, failure_reason, was_interrupted
from lakehouse_assets.cli.run import DEFINITIONS
from lakehouse_assets.cli.terminal import output_to
from lakehouse_assets.drive.slots import Queue
from lakehouse_assets.maintenance.job import POOL
from lakehouse_assets.maintenance.maintenance_run import LOOKED_AT, MEASURED, PLAN
from lakehouse_assets.run.in_flight import MAINTENANCE
from resources.settings import Settings


def maintain(settings: Settings, config: Mapping[str, Any]) -> int:
    """Runs the job. config: fields of MaintenanceConfig. Returns 0, or 1 if it failed or would have to wait for others.

    Expects that home.prepare was called. Raises KeyboardInterrupt when a signal ended the run.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends this process like Ctrl-C
    whole = {**config, "patient": False}  # who asks by hand does not mean later
    with opened(settings) as (instance, _):
        if holders := _holders(instance):
            print(f"error: {holders} maintains tables: wait for its end, or terminate it in the UI", file=sys.stderr)
            return 1
        with output_to(settings.home / "maintain.log") as terminal:
            result = Pipeline(DEFINITIONS).execute_job(instance, MAINTENANCE, whole)
            if was_interrupted(result):
                raise KeyboardInterrupt
            if told := list(_told(result, config)):
                print("\n\n".join(told), file=terminal)
    if result.success:
        return 0
    print(f"error: {failure_reason(result)}", file=sys.stderr)
    return 1


def _holders(instance: dg.DagsterInstance) -> str:
    """Names the runs that this one would wait for; empty if there is a free slot.

    It would wait without a word and with a busy processor: Dagster's in-process executor asks for a slot of a pool over
    and over.
    """
    queue = Queue.of(instance.event_log_storage.get_concurrency_info(POOL), run_id="", step="")
    holders, taken = queue.holders, sum(queue.holders.values())
    return f"the run {', '.join(sorted(holders))}" if holders and taken >= queue.limit else ""


def _told(result: dg.JobExecutionResult, config: Mapping[str, Any]) -> Iterator[str]:
    """Yields what the run has shown, and what a person may do next."""
    values = shown_values(result)
    has_plan, measured = (bool(getattr(values.get(name), "records", ())) for name in (PLAN, MEASURED))
    if result.success and not has_plan:
        numbers = ". Of each number, the limit from which on there is:" if measured else ""
        yield f"{_looked_at(result)}; nothing to mend{numbers}"
    yield from shown_tables(result)
    if has_plan and config["dry_run"]:
        yield "nothing was changed; `make maintain APPLY=1` does it"
    elif result.success and measured and not config["force"]:
        yield "`make maintain FORCE=1` shows what could be done below the limits (LEVELS=, TABLES= to choose)"


def _looked_at(result: dg.JobExecutionResult) -> str:
    count = shown_values(result)[LOOKED_AT].value
    return f"{count} table{'' if count == 1 else 's'} looked at" if count else "no table exists yet"

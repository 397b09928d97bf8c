"""Runs the maintenance job by hand: shows what is worth doing and why and, if asked to, does it.
What the job does is maintenance/'s."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from typing import Any

import dagster as dg

from lakehouse_assets.cli.instance import opened
from lakehouse_assets.cli.pipeline import Pipeline, failure_reason, was_interrupted
from lakehouse_assets.cli.run import DEFINITIONS
from lakehouse_assets.cli.terminal import output_to
from lakehouse_assets.cli.terminal import table as text_table
from lakehouse_assets.drive.slot_wait import Queue
from lakehouse_assets.maintenance.job import POOL, run_config
from lakehouse_assets.maintenance.maintenance_run import LOOKED_AT
from lakehouse_assets.run.in_flight import MAINTENANCE
from resources.settings import Settings

WIDEST = 10
"""So many columns are shown side by side."""


def maintain(settings: Settings, config: Mapping[str, Any]) -> int:
    """Run the job. config: fields of MaintenanceConfig. Returns 0, or 1 if it failed.

    Expects that home.prepare was called. Raises KeyboardInterrupt when a signal ended the run.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends this process like Ctrl-C
    whole = run_config(**config, patient=False)  # who asks by hand does not mean later
    with opened(settings) as (instance, _):
        if holders := _holders(instance):
            print(f"error: {holders} maintains tables: wait for its end, or terminate it in the UI", file=sys.stderr)
            return 1
        with output_to(settings.home / "maintain.log") as terminal:
            result = Pipeline(DEFINITIONS).execute_job(instance, MAINTENANCE, whole)
            if was_interrupted(result):
                raise KeyboardInterrupt
            tables = _tables(result)
            if tables or result.success:
                print("\n\n".join(tables) or f"{_looked_at(result)}; nothing to mend", file=terminal)
            if tables and config["dry_run"]:
                print("\nnothing was changed; `make maintain APPLY=1` does it", file=terminal)
    if result.success:
        return 0
    print(f"error: {failure_reason(result)}", file=sys.stderr)
    return 1


def _holders(instance: dg.DagsterInstance) -> str:
    """The run that this one would wait for, without a word and with a busy processor: Dagster's executor in one process
    asks for a slot of a pool over and over."""
    queue = Queue.of(instance.event_log_storage.get_concurrency_info(POOL), run_id="", step="")
    holders, taken = queue.holders, sum(queue.holders.values())
    return f"the run {', '.join(sorted(holders))}" if holders and taken >= queue.limit else ""


def _tables(result: dg.JobExecutionResult) -> list[str]:
    """The tables that the op has shown and that have rows, as text."""
    shown = _shown(result).values()
    return [_text(value) for value in shown if isinstance(value, dg.TableMetadataValue) and value.records]


def _looked_at(result: dg.JobExecutionResult) -> str:
    count = _shown(result)[LOOKED_AT].value
    return f"{count} table{'' if count == 1 else 's'} looked at" if count else "no table exists yet"


def _shown(result: dg.JobExecutionResult) -> dict[str, dg.MetadataValue[Any]]:
    outputs = [event.step_output_data.metadata for event in result.all_events if event.is_successful_output]
    failures = [event.step_failure_data.user_failure_data for event in result.all_events if event.is_step_failure]
    outputs += [failure.metadata for failure in failures if failure]
    return {name: value for metadata in outputs for name, value in metadata.items()}


def _text(table: dg.TableMetadataValue) -> str:
    """A line for each record, or a block where lines would be too long to read."""
    names = [column.name for column in table.schema.columns]
    rows = [[str(record.data[name]) for name in names] for record in table.records]
    if len(names) <= WIDEST:
        return text_table(names, rows)
    width = max(map(len, names))
    blocks = ((f"{name:<{width}}  {cell}" for name, cell in zip(names, row, strict=True) if cell) for row in rows)
    return "\n\n".join("\n".join(block) for block in blocks)

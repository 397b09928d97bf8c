"""Runs the maintenance job by hand: shows what is worth doing and why and, if asked to, does it.
What the job does is maintenance/'s."""

from __future__ import annotations

import signal
import sys

import dagster as dg

from lakehouse_assets.cli.instance import opened
from lakehouse_assets.cli.pipeline import Pipeline, failure_reason, was_interrupted
from lakehouse_assets.cli.run import DEFINITIONS
from lakehouse_assets.cli.terminal import output_to
from lakehouse_assets.cli.terminal import table as text_table
from lakehouse_assets.maintenance.in_flight import MAINTENANCE
from lakehouse_assets.maintenance.job import POOL, run_config
from resources.settings import Settings

WIDEST = 10
"""So many columns are shown side by side."""


def maintain(settings: Settings, *, apply: bool) -> int:
    """Run the job over all tables. Returns 0, or 1 if it failed.

    Expects that home.prepare was called. Raises KeyboardInterrupt when a signal ended the run.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends this process like Ctrl-C
    config = run_config(dry_run=not apply, patient=False)  # who asks by hand does not mean later
    with opened(settings) as (instance, _):
        if holders := _holders(instance):
            print(f"error: {holders} maintains tables: wait for its end, or terminate it in the UI", file=sys.stderr)
            return 1
        with output_to(settings.home / "maintain.log") as terminal:
            result = Pipeline(DEFINITIONS).execute_job(instance, MAINTENANCE, config)
            if was_interrupted(result):
                raise KeyboardInterrupt
            tables = _tables(result)
            if tables or result.success:
                print("\n\n".join(tables) or "nothing to mend", file=terminal)
            if tables and not apply:
                print("\nnothing was changed; `make maintain APPLY=1` does it", file=terminal)
    if result.success:
        return 0
    print(f"error: {failure_reason(result)}", file=sys.stderr)
    return 1


def _holders(instance: dg.DagsterInstance) -> str:
    """The run that this one would wait for, without a word and with a busy processor: Dagster's executor in one process
    asks for a slot of a pool over and over."""
    pool = instance.event_log_storage.get_concurrency_info(POOL)
    runs = sorted({slot.run_id for slot in pool.claimed_slots})
    return f"the run {', '.join(runs)}" if runs and len(runs) >= (pool.slot_count or 1) else ""


def _tables(result: dg.JobExecutionResult) -> list[str]:
    """The tables that the op has shown and that have rows, as text."""
    outputs = [event.step_output_data.metadata for event in result.all_events if event.is_successful_output]
    failures = [event.step_failure_data.user_failure_data for event in result.all_events if event.is_step_failure]
    outputs += [failure.metadata for failure in failures if failure]
    shown = [value for metadata in outputs for value in metadata.values()]
    return [_text(value) for value in shown if isinstance(value, dg.TableMetadataValue) and value.records]


def _text(table: dg.TableMetadataValue) -> str:
    """A line for each record, or a block where lines would be too long to read."""
    names = [column.name for column in table.schema.columns]
    rows = [[str(record.data[name]) for name in names] for record in table.records]
    if len(names) <= WIDEST:
        return text_table(names, rows)
    width = max(map(len, names))
    blocks = ((f"{name:<{width}}  {cell}" for name, cell in zip(names, row, strict=True) if cell) for row in rows)
    return "\n\n".join("\n".join(block) for block in blocks)

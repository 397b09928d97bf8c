"""Runs the maintenance job by hand: shows what is worth doing and why and, if asked to, does it.
What the job does is maintenance/'s."""

from __future__ import annotations

import sys

import dagster as dg

from lakehouse_assets.cli.instance import opened
from lakehouse_assets.cli.pipeline import Pipeline, failure_reason
from lakehouse_assets.cli.run import DEFINITIONS
from lakehouse_assets.cli.terminal import output_to
from lakehouse_assets.maintenance.job import NAME
from lakehouse_assets.maintenance.plan_text import text_of
from resources.settings import Settings


def maintain(settings: Settings, *, apply: bool) -> int:
    """Run the job over all tables. Returns 0, or 1 if it failed. Expects that home.prepare was called."""
    config = {"ops": {"maintain": {"config": {"dry_run": not apply}}}}
    with opened(settings) as (instance, _), output_to(settings.home / "maintain.log") as terminal:
        result = Pipeline(DEFINITIONS).execute_job(instance, NAME, config)
        shown = _tables(result)
        if plan := shown.get("plan"):
            print(text_of(plan, "all tables are well: nothing to mend"), file=terminal)
        if done := shown.get("done"):
            print("\n" + text_of(done, "nothing was done"), file=terminal)
        elif plan and plan.records and not apply:
            print("\nnothing was changed; `make maintain APPLY=1` does it", file=terminal)
    if not result.success:
        print(f"error: {failure_reason(result)}", file=sys.stderr)
    return 0 if result.success else 1


def _tables(result: dg.JobExecutionResult) -> dict[str, dg.TableMetadataValue]:
    """The tables that the op has shown, by their names."""
    outputs = [event.step_output_data for event in result.all_events if event.is_successful_output]
    shown = [item for output in outputs for item in output.metadata.items()]
    return {name: value for name, value in shown if isinstance(value, dg.TableMetadataValue)}

"""Runs the plan job by hand: it shows what the declarations would change on the lake. What differs is found in run/."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lakehouse_assets.cli.instance import opened
from lakehouse_assets.cli.job_tables import shown_tables, shown_values
from lakehouse_assets.cli.pipeline import Pipeline, failure_reason, was_interrupted
from lakehouse_assets.cli.run import DEFINITIONS
from lakehouse_assets.cli.terminal import output_to
from lakehouse_assets.run.plan_job import LOOKED_AT, PLAN
from resources.settings import Settings


def show_plan(settings: Settings, tables: Sequence[str]) -> int:
    """Runs the job. tables: identifiers; all declared tables where there are none. Returns 0, or 1 if it failed.

    Expects that home.prepare was called. Raises KeyboardInterrupt when a signal ended the run.
    """
    with opened(settings) as (instance, _), output_to(settings.home / "plan.log") as terminal:
        config = {"tables": [*tables]}
        result = Pipeline(DEFINITIONS).execute_job(instance, PLAN, config)
        if was_interrupted(result):
            raise KeyboardInterrupt
        if result.success:
            same = f"{shown_values(result)[LOOKED_AT].value} tables are on the lake as they are declared"
            print("\n\n".join(shown_tables(result)) or same, file=terminal)
            return 0
    print(f"error: {failure_reason(result)}", file=sys.stderr)
    return 1

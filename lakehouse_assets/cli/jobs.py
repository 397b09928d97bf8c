"""Runs a job for a command, and reads what it reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from lakehouse_assets.cli.instance import opened
from lakehouse_assets.cli.pipeline import Pipeline, failure_reason, was_interrupted
from lakehouse_assets.cli.terminal import output_to, table
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import LakehouseError

# Tables with more columns are shown record by record, a line for each column.
WIDEST = 10
Reported = Mapping[str, dg.MetadataValue[Any]]


def chosen(tables: Sequence[str], select: str | None, settings: Settings, log: str) -> list[str]:
    """Returns the tables that a command names or selects; none for all. log: as for run_job().

    Raises as Pipeline.selected().
    """
    if select is None:
        return [*tables]
    with output_to(settings.home / log):
        pipeline = Pipeline()
    return sorted({*tables, *pipeline.tables(pipeline.selected(select))})


def run_job(settings: Settings, job: str, config: Mapping[str, Any], log: str) -> Reported:
    """Runs a job; returns its op's metadata by name.

    log: the file below the home that gets this process's output meanwhile. If the job fails, prints the tables that it
    reported and raises LakehouseError. Raises KeyboardInterrupt if a signal ended the run.
    """
    with opened(settings) as (instance, _), output_to(settings.home / log):
        result = Pipeline().execute_job(instance, job, config)
    if was_interrupted(result):
        raise KeyboardInterrupt
    outputs = [event.step_output_data.metadata for event in result.all_events if event.is_successful_output]
    failures = [event.step_failure_data.user_failure_data for event in result.all_events if event.is_step_failure]
    outputs += [failure.metadata for failure in failures if failure]
    reported = {name: value for metadata in outputs for name, value in metadata.items()}
    if result.success:
        return reported
    if texts := tables_in(reported):
        print(*texts, sep="\n\n")
    raise LakehouseError(failure_reason(result))


def tables_in(reported: Reported) -> list[str]:
    """Returns the tables with rows, as text."""
    return [_text(one) for one in reported.values() if isinstance(one, dg.TableMetadataValue) and one.records]


def _text(shown: dg.TableMetadataValue) -> str:
    names = [column.name for column in shown.schema.columns]
    rows = [[str(record.data[name]) for name in names] for record in shown.records]
    if len(names) <= WIDEST:
        return table(names, rows)
    width = max(map(len, names))
    blocks = ((f"{name:<{width}}  {cell}" for name, cell in zip(names, row, strict=True) if cell) for row in rows)
    return "\n\n".join("\n".join(block) for block in blocks)

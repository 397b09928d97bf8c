"""Reads what a job's op has shown as metadata, and makes it text for the terminal.

How text is laid out there is terminal.py's.
"""

from __future__ import annotations

from typing import Any

import dagster as dg

from lakehouse_assets.cli.terminal import table as text_table

WIDEST = 10
"""The most columns that are shown side by side."""


def shown_tables(result: dg.JobExecutionResult) -> list[str]:
    """Returns the shown tables that have rows, as text."""
    shown = shown_values(result).values()
    return [_text(value) for value in shown if isinstance(value, dg.TableMetadataValue) and value.records]


def shown_values(result: dg.JobExecutionResult) -> dict[str, dg.MetadataValue[Any]]:
    """Returns all metadata that the job's op has shown, by name, including what its failure has shown."""
    outputs = [event.step_output_data.metadata for event in result.all_events if event.is_successful_output]
    failures = [event.step_failure_data.user_failure_data for event in result.all_events if event.is_step_failure]
    outputs += [failure.metadata for failure in failures if failure]
    return {name: value for metadata in outputs for name, value in metadata.items()}


def _text(table: dg.TableMetadataValue) -> str:
    """Writes a line for each record, or a block where lines would be too long to read."""
    names = [column.name for column in table.schema.columns]
    rows = [[str(record.data[name]) for name in names] for record in table.records]
    if len(names) <= WIDEST:
        return text_table(names, rows)
    width = max(map(len, names))
    blocks = ((f"{name:<{width}}  {cell}" for name, cell in zip(names, row, strict=True) if cell) for row in rows)
    return "\n\n".join("\n".join(block) for block in blocks)

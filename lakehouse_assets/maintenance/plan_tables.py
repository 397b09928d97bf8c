"""A plan, and what came of it, as tables of Dagster's UI.
Nothing is decided here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import dagster as dg

from lakehouse_assets.maintenance.findings import size_text
from lakehouse_assets.maintenance.policy import Action, Plan

if TYPE_CHECKING:
    from lakehouse_assets.maintenance.actions import Done

COLUMNS = ("table", "level", "why", "expected fewer", "rewritten", "verdict")


def plan_table(plan: Plan) -> dg.TableMetadataValue:
    """The plan as the UI shows it; empty where nothing is worth doing."""
    return _table(COLUMNS, _rows(plan))


def done_table(done: Iterable[Done]) -> dg.TableMetadataValue:
    """What the actions did, beside what was expected of them."""
    names = ("table", "level", "expected fewer", "fewer", "seconds", "result")
    return _table(names, map(_done_cells, done))


def _rows(plan: Plan) -> Iterator[tuple[str, ...]]:
    for action in plan.taken:
        yield (*_cells(action), "taken")
    for left in plan.not_taken:
        yield (*_cells(left.action), f"not taken: {left.why}")


def _done_cells(done: Done) -> tuple[str, ...]:
    action = done.action
    return action.table, action.level.value, f"{action.fewer:,}", f"{done.fewer:,}", f"{done.seconds:.1f}", done.summary


def _cells(action: Action) -> tuple[str, ...]:
    kind = "files" if action.work else "snapshots, at most"
    return action.table, action.level.value, action.reason, f"{action.fewer:,} {kind}", size_text(action.size)


def _table(names: Iterable[str], rows: Iterable[tuple[str, ...]]) -> dg.TableMetadataValue:
    columns = [dg.TableColumn(name) for name in names]
    records = [dg.TableRecord(dict(zip((c.name for c in columns), row, strict=True))) for row in rows]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(columns))

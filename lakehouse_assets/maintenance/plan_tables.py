"""Shows a plan, what came of it, and the numbers behind it, as tables of Dagster's UI. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import dagster as dg

from lakehouse_assets.declare.care import Level
from lakehouse_assets.health.health import TableHealth
from lakehouse_assets.health.measures import measures
from lakehouse_assets.health.text import size_text
from lakehouse_assets.maintenance.planned import Action, Cost, Plan
from lakehouse_assets.run.shown_table import shown_table

if TYPE_CHECKING:
    from lakehouse_assets.maintenance.actions import Done

PLAN = ("table", "level", "by", "why", "expected gain", "size", "seconds", "vCPU-hours", "USD", "verdict")
DONE = (
    *("table", "level", "by", "expected gain", "gain", "expected size", "size", "expected seconds", "seconds"),
    *("USD", "before", "after", "proof", "result", "dropped"),
)


def plan_table(plan: Plan) -> dg.TableMetadataValue:
    """Returns the plan as the UI shows it; empty where nothing is worth doing."""
    return shown_table(PLAN, _rows(plan))


def done_table(done: Iterable[Done]) -> dg.TableMetadataValue:
    """Returns the table of what the actions did, beside what was expected of them."""
    return shown_table(DONE, map(_done_cells, done))


def measured_table(healths: Iterable[TableHealth], levels: Collection[Level]) -> dg.TableMetadataValue:
    """Returns the numbers of tables beside their limits, for those of these levels that have a limit."""
    rows = {health.identifier: measures(health) for health in healths}
    shown = [level for level in next(iter(rows.values()), ()) if level in levels]
    cells = ((table, *(found[level] for level in shown)) for table, found in rows.items())
    return shown_table(("table", *(level.value for level in shown)), cells if shown else ())


def _rows(plan: Plan) -> Iterator[tuple[str, ...]]:
    for action in plan.taken:
        yield (*_cells(action), "taken")
    for left in plan.not_taken:
        yield (*_cells(left.action), f"not taken: {left.why}")


def _cells(action: Action) -> tuple[str, ...]:
    cost = action.cost
    numbers = (size_text(cost.size), f"{cost.seconds:.1f}", f"{cost.vcpu_hours:.4f}", usd_text(cost))
    return action.table, action.level.value, action.engine.value, action.reason, str(action.gain), *numbers


def _done_cells(done: Done) -> tuple[str, ...]:
    action, result = done.action, done.result
    return (
        *(action.table, action.level.value, action.engine.value, str(action.gain), str(result.gain)),
        *(size_text(action.size), size_text(done.cost.size)),
        *(f"{action.cost.seconds:.1f}", f"{done.cost.seconds:.1f}", usd_text(done.cost)),
        *(str(done.before), str(done.after or ""), result.proof, result.summary, "; ".join(result.dropped)),
    )


def usd_text(cost: Cost) -> str:
    """Writes a cost in USD, to a hundredth of a cent; "0" on a machine of one's own, which costs nothing."""
    return f"{cost.usd:.4f}" if cost.usd else "0"

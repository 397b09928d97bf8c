"""Shows a plan, what came of it, and the numbers behind it, as tables of Dagster's UI. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import dagster as dg

from lakehouse_assets.health.health import TableHealth, size_text
from lakehouse_assets.maintenance.level import Action, MaintenanceLevel, Result
from lakehouse_assets.maintenance.policy import Plan
from lakehouse_assets.run.jobs import shown_table

PLAN = ("table", "level", "by", "why", "expected gain", "size", "seconds", "verdict")
DONE = (
    *("table", "level", "by", "expected gain", "gain", "expected size", "size", "expected seconds", "seconds"),
    *("USD", "proof", "result", "dropped"),
)


@dataclass(frozen=True)
class Done:
    """The work that an action really did, beside what was expected of it."""

    action: Action
    result: Result
    seconds: float


def plan_table(plan: Plan) -> dg.TableMetadataValue:
    """Returns the plan as the UI shows it; empty where nothing is worth doing."""
    return shown_table(PLAN, _rows(plan))


def done_table(done: Iterable[Done]) -> dg.TableMetadataValue:
    """Returns the table of what the actions did, beside what was expected of them."""
    return shown_table(DONE, map(_done_cells, done))


def measured_table(healths: Sequence[TableHealth], levels: Iterable[MaintenanceLevel]) -> dg.TableMetadataValue:
    """Returns the numbers of tables beside their limits, for those of these levels that have a limit."""
    shown = [level for level in levels if any(map(level.measured, healths))]
    rows = ((health.identifier, *(level.measured(health) for level in shown)) for health in healths)
    return shown_table(("table", *(level.name for level in shown)), rows if shown else ())


def _rows(plan: Plan) -> Iterator[tuple[str, ...]]:
    for action in plan.taken:
        yield (*_cells(action), "taken")
    for left in plan.not_taken:
        yield (*_cells(left.action), f"not taken: {left.why}")


def _cells(action: Action) -> tuple[str, ...]:
    numbers = str(action.gain), size_text(action.size), f"{action.seconds:.1f}"
    return action.table, action.level.name, action.engine.value, action.reason, *numbers


def _done_cells(done: Done) -> tuple[str, ...]:
    action, result = done.action, done.result
    usd = sum(usage.estimated_usd for usage in result.usages)
    return (
        *(action.table, action.level.name, action.engine.value, str(action.gain), str(result.gain)),
        *(size_text(action.size), size_text(result.size), f"{action.seconds:.1f}", f"{done.seconds:.1f}"),
        *(f"{usd:.4f}" if usd else "0", result.proof, result.summary, "; ".join(result.dropped)),
    )

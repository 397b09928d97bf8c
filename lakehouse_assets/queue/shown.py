"""Shows the queue to a person: the tick's sentence, the numbers of its asset, the check ``arrivals`` of a table.

What they tell of is found in tick.py.
"""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from lakehouse_assets.declare.table import Table
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.queue.decide import Waiting, waiting_of
from lakehouse_assets.queue.runs import pace_of
from lakehouse_assets.queue.strikes import QueueMemory, memory_store
from lakehouse_assets.queue.tick import Told
from lakehouse_assets.run.jobs import markdown_table
from lakehouse_assets.run.queue_part import inbox_of
from lakehouse_assets.run.resource import Lakehouse

ARRIVALS = "arrivals"
DESCRIPTION = "Whether all partitions that messages asked for could be run, or some are parked after failing too often."
LISTED = 10


def sentence(told: Told, now: float) -> str:
    """Says in a sentence what a tick did.

    An example is ``received 2,030 for 364 partitions; 1 run asked; 364 in runs; 12 wait; 3 parked``.

    now: seconds since 1970.
    """
    return "; ".join(_parts(told, now))


def _held(told: Told) -> str:
    """Names the runs and backfills that the queue has not asked for and that it waits for."""
    names = told.decision.held_by
    more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return f" (also in what the queue has not asked for: {', '.join(names[:LISTED])}{more})" if names else ""


def _held_back(told: Told, now: float) -> str:
    """Says how long partitions wait because a run of theirs failed, and which tables always fail."""
    kept, strikes = {one.wanted for one in told.decision.parked}, told.decision.memory.strikes
    waiting = {one.wanted for one in told.waiting} - kept
    later = [found.until for wanted, found in strikes.items() if wanted in waiting and found.until > now]
    later += [limit.until for limit in told.decision.memory.limits.values() if limit.until > now]
    held = [f"after a failure, the next for {min(later) - now:.0f} s"] if later else []
    tables = {table for table, _ in waiting}
    held += [
        f"{table} always fails, {breaker.failures} times in a row, the last time in run {breaker.run}: one partition "
        f"is tried in {max(0.0, breaker.until - now):.0f} s"
        for table, breaker in told.decision.memory.breakers.items()
        if breaker.is_open and table in tables
    ]
    return f" ({'; '.join(held)})" if held else ""


def _parts(told: Told, now: float) -> Iterator[str]:
    taken = told.taken
    if told.is_full:
        yield "received nothing, as the inbox is full"
    else:
        yield f"received {taken.received:,} for {_count(len(taken.wanted), 'partition')}"
    yield f"{_count(len(told.decision.requests), 'run')} asked"
    if told.decision.in_runs:
        yield f"{len(told.decision.in_runs):,} in runs{_held(told)}"
    yield f"{told.left:,} wait{_held_back(told, now)}"
    yield f"{len(told.decision.parked):,} parked"
    if told.undeclared:
        yield f"{told.undeclared:,} wait for tables that are not declared"
    if taken.reasons:
        reason, times = taken.reasons.most_common(1)[0]
        more = f", and {_count(len(taken.reasons) - 1, 'other reason')}" if len(taken.reasons) > 1 else ""
        yield f"{taken.reasons.total():,} went to the dead-letter queue ({times:,}: {reason}{more})"
    if taken.left:
        yield f"{taken.left:,} were not deleted and will come again"
    yield from (f"{doing}: {error}" for doing, error in told.faults.items())


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def numbers(told: Told, now: float, drained_per_minute: float) -> dict[str, Any]:
    """Returns the metadata that the queue's asset shows; Dagster plots each number.

    The tables with parked partitions are named, as one without Arrivals has no check that would tell.

    now: seconds since 1970.
    """
    parked = told.decision.parked
    oldest = max((now - one.since for one in told.waiting), default=0.0)
    return {
        **told.depth,
        "waiting": told.left,
        "in_runs": len(told.decision.in_runs),
        "waiting_messages": sum(one.messages for one in told.waiting),
        "oldest_seconds": round(oldest, 1),
        "parked": len(parked),
        "drained_per_minute": round(drained_per_minute, 1),
        **({"parked_in": ", ".join(sorted({one.table for one in parked}))} if parked else {}),
    }


def verdict(waiting: Sequence[Waiting], parked: Sequence[Waiting], memory: QueueMemory) -> dict[str, Any]:
    """Returns the arguments of the check's result for one table. waiting, parked: the table's own."""
    metadata: dict[str, Any] = {"waiting": len(waiting) - len(parked), "parked": len(parked)}
    if not parked:
        return {"passed": True, "description": "no partition is parked", "metadata": metadata}
    parked = sorted(parked, key=lambda one: one.key)
    table = markdown_table(("partition", "runs", "reason"), (_row(one, memory) for one in parked[:LISTED]))
    keys = keys_text([one.key for one in parked], listed=LISTED)
    return {
        "passed": False,
        "severity": dg.AssetCheckSeverity.WARN,
        "description": f"{_count(len(parked), 'partition')} parked: {keys}. Mend the cause, then run the job "
        "lakehouse_redrive, or send a new message",
        "metadata": metadata | {"keys": dg.MetadataValue.md(table)},
    }


def digest(parked: Sequence[Waiting], memory: QueueMemory) -> str:
    """Returns a hash that changes when the check has something else to say of what is parked."""
    said = sorted((one.key, memory.strikes[one.wanted].runs) for one in parked)
    return hashlib.sha256(repr(said).encode()).hexdigest()[:16]


def _row(one: Waiting, memory: QueueMemory) -> Sequence[str]:
    strikes = memory.strikes[one.wanted]
    runs = ", ".join(f"[{run[:8]}](/runs/{run})" for run in strikes.runs)
    return one.key or "whole table", runs, strikes.reason[:300]


def arrivals_check(table: Table) -> dg.AssetChecksDefinition:
    """Returns the check of one table, as an op that a person can execute; without runs the sensor evaluates it.

    It never fails a run, which has published by then.
    """

    @dg.asset_check(asset=table.key, name=ARRIVALS, description=DESCRIPTION)
    def look_at(lakehouse: dg.ResourceParam[Lakehouse]) -> dg.AssetCheckResult:
        try:
            memory = memory_store(lakehouse).read() or QueueMemory()
            waiting = waiting_of(inbox_of(lakehouse).waiting({table.identifier}))
        except Exception as error:  # whatever the storage raises
            text = f"the inbox could not be read: {error}"
            return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN, description=text)
        parked = [one for one in waiting if one.is_parked(pace_of(table), memory)]
        return dg.AssetCheckResult(**verdict(waiting, parked, memory))

    return look_at

"""The queue's sensor and check, and what they show."""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import dagster as dg

from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.liveness import stored_verdict
from lakehouse_assets.environment.settings import QueueSettings
from lakehouse_assets.extensions.queue.decide import Request, Waiting, waiting_of
from lakehouse_assets.extensions.queue.hook import inbox_of
from lakehouse_assets.extensions.queue.intake import Intake
from lakehouse_assets.extensions.queue.messages import Routes
from lakehouse_assets.extensions.queue.source import sqs_queue
from lakehouse_assets.extensions.queue.strikes import QueueMemory, memory_store
from lakehouse_assets.extensions.queue.tick import QUEUE_TAG, TABLE_TAG, QueueTick, Runs, TickResult, pace_of
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.run.in_flight import FIRST, LAST, location_of_sensor
from lakehouse_assets.run.jobs import SensorCursor, markdown_table
from lakehouse_assets.run.plan import plans_of
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.storage.place import place_of

ARRIVALS = "arrivals"
DESCRIPTION = "Whether all requested partitions could be run, or some are parked after failing too often."
LISTED = 10
"""The most runs or partitions that a text names."""


def sentence(told: TickResult, now: float) -> str:
    """Returns a tick's summary, such as ``received 2,030 for 364 partitions; 1 run asked``."""
    return "; ".join(_parts(told, now))


def _held(told: TickResult) -> str:
    names = told.decision.held_by
    more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return f" (also in runs that the queue did not request: {', '.join(names[:LISTED])}{more})" if names else ""


def _held_back(told: TickResult, now: float) -> str:
    """Returns why partitions that are not parked wait, or "".

    Names the wait until the next one is tried after a failure (strikes and limits), and the tables that always fail
    (breakers); strikes.py explains these.
    """
    kept, strikes = {one.wanted for one in told.decision.parked}, told.decision.memory.strikes
    waiting = {one.wanted for one in told.waiting} - kept
    later = [found.until for wanted, found in strikes.items() if wanted in waiting and found.until > now]
    later += [limit.until for limit in told.decision.memory.limits.values() if limit.until > now]
    held = [f"after a failure, the next one in {min(later) - now:.0f} s"] if later else []
    tables = {table for table, _ in waiting}
    held += [
        f"{table} always fails, {breaker.failures} times in a row, the last time in run {breaker.run}: one partition "
        f"is tried in {max(0.0, breaker.until - now):.0f} s"
        for table, breaker in told.decision.memory.breakers.items()
        if breaker.is_open and table in tables
    ]
    return f" ({'; '.join(held)})" if held else ""


def _parts(told: TickResult, now: float) -> Iterator[str]:
    taken = told.taken
    if told.is_full:
        yield "received nothing, because the inbox is full"
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


def numbers(told: TickResult, now: float, drained_per_minute: float) -> dict[str, Any]:
    """Returns the queue's metadata.

    Names tables with parked partitions, as those without Arrivals have no check.
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
    """Returns the check result's arguments for one table."""
    metadata: dict[str, Any] = {"waiting": len(waiting) - len(parked), "parked": len(parked)}
    if not parked:
        return {"passed": True, "description": "no partition is parked", "metadata": metadata}
    parked = sorted(parked, key=lambda one: one.key)
    table = markdown_table(("partition", "runs", "reason"), (_row(one, memory) for one in parked[:LISTED]))
    keys = keys_text([one.key for one in parked], listed=LISTED)
    return {
        "passed": False,
        "severity": dg.AssetCheckSeverity.WARN,
        "description": f"{_count(len(parked), 'partition')} parked: {keys}. Fix the cause, then run the job "
        "lakehouse_redrive, or send a new message",
        "metadata": metadata | {"keys": dg.MetadataValue.md(table)},
    }


def digest(parked: Sequence[Waiting], memory: QueueMemory) -> str:
    """Returns a hash of the parked partitions and their failed runs."""
    said = sorted((one.key, memory.strikes[one.wanted].runs) for one in parked)
    return hashlib.sha256(repr(said).encode()).hexdigest()[:16]


def _row(one: Waiting, memory: QueueMemory) -> Sequence[str]:
    strikes = memory.strikes[one.wanted]
    runs = ", ".join(f"[{run[:8]}](/runs/{run})" for run in strikes.runs)
    return one.key or "whole table", runs, strikes.reason[:300]


def arrivals_check(table: Table) -> dg.AssetChecksDefinition:
    """Returns a table's check, which the sensor evaluates too.

    It only warns: in a run it comes after the commit, which an error could not undo.
    """

    @dg.asset_check(asset=table.key, name=ARRIVALS, description=DESCRIPTION)
    def look_at(lakehouse: dg.ResourceParam[Lakehouse]) -> dg.AssetCheckResult:
        try:
            memory = memory_store(lakehouse).read() or QueueMemory()
            waiting = waiting_of(inbox_of(lakehouse).waiting({table.identifier}))
        except Exception as error:  # any error of the storage
            text = f"the inbox could not be read: {error}"
            return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN, description=text)
        parked = [one for one in waiting if one.is_parked(pace_of(table), memory)]
        return dg.AssetCheckResult(**verdict(waiting, parked, memory))

    return look_at


NAME = "queue"
NO_LOCATION = "lakehouse"
"""Stands for the code location's name, which Dagster gives only in its daemon."""
EVERY_SECONDS = 10
SHOWN_EVERY_SECONDS = 300.0
"""How often the sensor shows the queue's numbers."""
RED_AFTER = 3
"""Failed ticks in a row that turn the sensor red; a single one loses nothing."""
LONGEST_NAME = 200
"""Characters of a location's name in owner_name(): the value of an SQS tag has at most 256."""


@dataclass(frozen=True)
class Cursor(SensorCursor):
    """The sensor's cursor. Losing it is harmless: messages wait in the inbox."""

    failures: int = 0
    """Ticks with faults in a row."""
    shown_at: float = 0.0
    """When the numbers were shown last, in epoch seconds."""
    drained: int = 0
    """Messages deleted since ``shown_at``, except by red ticks, whose cursor is dropped."""
    parked: dict[str, str] = field(default_factory=dict)
    """digest() by table, if it has parked partitions."""


class QueueTroubled(RuntimeError):
    """Several ticks have failed."""


def asset_key(queue: QueueSettings) -> dg.AssetKey:
    """Returns the key of the queue's asset."""
    return dg.AssetKey(["queue", queue.name])


def queue_sensor(
    tables: Sequence[Table],
    queue: QueueSettings,
    status: dg.DefaultSensorStatus,
    clock: Callable[[], float] = time.time,
) -> dg.SensorDefinition:
    """Returns the sensor, which does a QueueTick at each evaluation."""

    @dg.sensor(
        name=NAME,
        asset_selection=dg.AssetSelection.assets(*(table.key for table in tables)),
        minimum_interval_seconds=EVERY_SECONDS,
        default_status=status,
        description=f"Requests runs for the partitions that messages in {queue.name} "
        "request: few runs with many partitions.",
    )
    def ask(context: dg.SensorEvaluationContext, lakehouse: dg.ResourceParam[Lakehouse]) -> dg.SensorResult:
        now, earlier = clock(), Cursor.parse(context.cursor)
        runs = Runs(context.instance, queue.name, tables, partial(plans_of, lakehouse), location_of_sensor(context))
        routes = Routes(tables, lakehouse.settings.landing, runs.keys_of)
        intake = Intake(sqs_queue(queue), routes, inbox_of(lakehouse))
        owner = owner_name(runs.location or NO_LOCATION, lakehouse.settings.staging)
        tick = QueueTick(intake, owner, memory_store(lakehouse), runs, now, queue.runs).run()
        said, requests = sentence(tick, now), [run_request(one, queue) for one in tick.decision.requests]
        events: list[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation] = []
        parked: dict[str, str] = {}
        for table in (table for table in tables if table.arrivals):
            name = table.identifier
            waiting = [one for one in tick.waiting if one.table == name]
            kept = [one for one in tick.decision.parked if one.table == name]
            if kept:
                parked[name] = digest(kept, tick.decision.memory)
            of_check = verdict(waiting, kept, tick.decision.memory)
            found = dg.AssetCheckEvaluation(asset_key=table.key, check_name=ARRIVALS, **of_check)
            stored = stored_verdict(context.instance, found.asset_check_key)
            # The check in a run may have stored another verdict since. None: it was never evaluated, and gets no
            # verdict before a partition is parked.
            is_other = stored not in (None, (found.passed, found.description))
            # The digests differ if other partitions are parked, or other runs failed.
            if is_other or parked.get(name) != earlier.parked.get(name):
                events.append(found)
        cursor = replace(
            earlier,
            failures=earlier.failures + 1 if tick.faults else 0,
            drained=earlier.drained + tick.taken.deleted,
            parked=parked,
        )
        since = now - cursor.shown_at
        # Negative if the clock was set back.
        if not 0 <= since < SHOWN_EVERY_SECONDS:
            drained = 60 * cursor.drained / since if cursor.shown_at and since > 0 else 0.0
            events.append(dg.AssetObservation(asset_key(queue), metadata=numbers(tick, now, drained)))
            cursor = replace(cursor, shown_at=now, drained=0)
        # Dagster drops the requests, events and cursor of a tick that raises: turn red only if there are none.
        if cursor.failures >= RED_AFTER and not requests and not events:
            raise QueueTroubled(said)
        context.log.info(said)
        skipped = None if requests else said
        return dg.SensorResult(run_requests=requests, asset_events=events, skip_reason=skipped, cursor=cursor.text())

    return ask


def owner_name(location: str, staging: str) -> str:
    """Returns one name for all processes and deployments of a code location, to claim the queue."""
    where = hashlib.sha256(place_of(staging).raw).hexdigest()[:12]
    return f"{location[:LONGEST_NAME]} {where}"


def run_request(one: Request, queue: QueueSettings) -> dg.RunRequest:
    """Returns Dagster's request: for one partition by its key, for a range by tags with its ends."""
    tags = {QUEUE_TAG: queue.name, TABLE_TAG: one.table}
    key = dg.AssetKey(one.table.split("."))
    if len(one.keys) == 1:
        return dg.RunRequest(one.run_key, asset_selection=[key], partition_key=one.keys[0] or None, tags=tags)
    return dg.RunRequest(one.run_key, asset_selection=[key], tags=tags | {FIRST: one.keys[0], LAST: one.keys[-1]})

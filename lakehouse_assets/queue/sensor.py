"""The sensor ``queue``: asks for runs of what messages asked for, and shows what waits.

What it does in a tick is tick.py's; which runs these are, decide.py's.
"""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import dagster as dg

from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.settings import QueueSettings
from lakehouse_assets.queue.decide import Request
from lakehouse_assets.queue.intake import Intake
from lakehouse_assets.queue.messages import Routes
from lakehouse_assets.queue.runs import QUEUE_TAG, TABLE_TAG, Runs
from lakehouse_assets.queue.shown import ARRIVALS, digest, numbers, sentence, verdict
from lakehouse_assets.queue.sqs import sqs_queue
from lakehouse_assets.queue.strikes import memory_store
from lakehouse_assets.queue.tick import QueueTick
from lakehouse_assets.run.in_flight import FIRST, LAST, location_of_sensor
from lakehouse_assets.run.jobs import SensorCursor
from lakehouse_assets.run.plan import plans_of
from lakehouse_assets.run.queue_part import inbox_of
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.storage.place import place_of

NAME = "queue"
NO_LOCATION = "lakehouse"
"""The name of the code location where Dagster gives none: outside of its daemon."""
EVERY_SECONDS = 10
SHOWN_EVERY_SECONDS = 300.0
RED_AFTER = 3
"""The number of failed ticks in a row that turns the sensor red. One alone loses nothing, so nobody need look at it."""
LONGEST_NAME = 200
"""The most characters of a location's name by which a source is claimed: SQS's tags have 256."""


@dataclass(frozen=True)
class Cursor(SensorCursor):
    """The sensor's cursor, as the next tick reads it. Losing it loses nothing else: what waits is in the inbox."""

    failures: int = 0
    """Ticks in a row in which something failed."""
    shown_at: float = 0.0
    """When the queue's asset was observed last, seconds since 1970."""
    drained: int = 0
    """Messages deleted from the source since then, by ticks that were not red."""
    parked: dict[str, str] = field(default_factory=dict)
    """A hash of what a table's check said last, by the table's identifier; tables without parked partitions are left
    out."""


class QueueTroubled(RuntimeError):
    """Something of the queue has failed for several ticks."""


def asset_key(queue: QueueSettings) -> dg.AssetKey:
    """Returns the key of the asset that shows the queue."""
    return dg.AssetKey(["queue", queue.name])


def queue_sensor(
    tables: Sequence[Table],
    queue: QueueSettings,
    status: dg.DefaultSensorStatus,
    clock: Callable[[], float] = time.time,
) -> dg.SensorDefinition:
    """Returns one sensor for all tables. clock: returns seconds since 1970."""

    @dg.sensor(
        name=NAME,
        asset_selection=dg.AssetSelection.assets(*(table.key for table in tables)),
        minimum_interval_seconds=EVERY_SECONDS,
        default_status=status,
        description=f"Asks for runs of what messages of {queue.name} ask for: few runs of many partitions.",
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
            if parked.get(name) != earlier.parked.get(name):  # other partitions are parked, or other runs failed
                of_check = verdict(waiting, kept, tick.decision.memory)
                events.append(dg.AssetCheckEvaluation(asset_key=table.key, check_name=ARRIVALS, **of_check))
        cursor = replace(
            earlier,
            failures=earlier.failures + 1 if tick.faults else 0,
            drained=earlier.drained + tick.taken.deleted,
            parked=parked,
        )
        since = now - cursor.shown_at
        if not 0 <= since < SHOWN_EVERY_SECONDS:
            drained = 60 * cursor.drained / since if cursor.shown_at and since > 0 else 0.0
            events.append(dg.AssetObservation(asset_key(queue), metadata=numbers(tick, now, drained)))
            cursor = replace(cursor, shown_at=now, drained=0)
        # Dagster drops what a tick that raises asks for or tells, and its cursor.
        if cursor.failures >= RED_AFTER and not requests and not events:
            raise QueueTroubled(said)
        context.log.info(said)
        skipped = None if requests else said
        return dg.SensorResult(run_requests=requests, asset_events=events, skip_reason=skipped, cursor=cursor.text())

    return ask


def owner_name(location: str, staging: str) -> str:
    """Returns what the source says of a code location: the same in all its processes and deployments.

    location: its name. staging: LAKEHOUSE_STAGING.
    """
    where = hashlib.sha256(place_of(staging).raw).hexdigest()[:12]
    return f"{location[:LONGEST_NAME]} {where}"


def run_request(one: Request, queue: QueueSettings) -> dg.RunRequest:
    """Returns Dagster's request for a run of all partitions from the first to the last."""
    tags = {QUEUE_TAG: queue.name, TABLE_TAG: one.table}
    key = dg.AssetKey(one.table.split("."))
    if len(one.keys) == 1:
        return dg.RunRequest(one.run_key, asset_selection=[key], partition_key=one.keys[0] or None, tags=tags)
    return dg.RunRequest(one.run_key, asset_selection=[key], tags=tags | {FIRST: one.keys[0], LAST: one.keys[-1]})

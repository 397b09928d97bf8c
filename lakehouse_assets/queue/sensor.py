"""The sensor ``queue``: asks for runs of what messages asked for, and shows what waits.

What it does in a tick is tick.py's; which runs these are, decide.py's.
"""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

import dagster as dg
from pydantic import TypeAdapter

from lakehouse_assets.declare.table import Table
from lakehouse_assets.queue.decide import Request
from lakehouse_assets.queue.intake import Intake
from lakehouse_assets.queue.messages import Routes
from lakehouse_assets.queue.runs import QUEUE_TAG, TABLE_TAG, Runs
from lakehouse_assets.queue.shown import ARRIVALS, digest, numbers, sentence, verdict
from lakehouse_assets.queue.source import Source
from lakehouse_assets.queue.sqs import sqs_queue
from lakehouse_assets.queue.strikes import memory_store
from lakehouse_assets.queue.tick import QueueTick, Told
from lakehouse_assets.run.in_flight import FIRST, LAST, location_of_sensor
from lakehouse_assets.run.queue_part import inbox_of, notes_of
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.storage.place import place_of
from resources.queue_settings import QueueSettings

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
class Cursor:
    """The sensor's cursor, as the next tick reads it. Losing it loses nothing else: what waits is in the inbox."""

    failures: int = 0
    """Ticks in a row in which something failed."""
    shown_at: float = 0.0
    """When the queue's asset was observed last, seconds since 1970."""
    drained: int = 0
    """Messages deleted from the source since then."""
    parked: dict[str, str] = field(default_factory=dict)
    """A hash of what a table's check said last, by the table's identifier; tables without parked partitions are left
    out."""

    @classmethod
    def parse(cls, text: str | None) -> "Cursor":
        """Reads a cursor. None, and text that is not ours (such as what a person set in the UI), gives a new one."""
        try:
            return TypeAdapter(cls).validate_json(text or "{}")
        except ValueError:
            return cls()

    def text(self) -> str:
        """Returns the cursor as text, for Dagster to keep."""
        return json.dumps(asdict(self), separators=(",", ":"))


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
        now = clock()
        location = location_of_sensor(context)
        runs = runs_of(context.instance, location, lakehouse, tables, queue)
        owner = owner_name(location or NO_LOCATION, lakehouse.settings.staging)
        told = tick_of(lakehouse, runs, sqs_queue(queue), owner, queue.runs, now).run()
        said = sentence(told, now)
        cursor = Cursor.parse(context.cursor)
        cursor = replace(
            cursor,
            failures=cursor.failures + 1 if told.faults else 0,
            drained=cursor.drained + told.taken.deleted,
        )
        requests = [run_request(one, queue) for one in told.decision.requests]
        evaluations, cursor = _evaluations(tables, told, cursor)
        observations, cursor = _observations(queue, told, cursor, now)
        events: list[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation]
        events = [*evaluations, *observations]
        if cursor.failures >= RED_AFTER and not requests and not events:  # a red tick loses both
            raise QueueTroubled(said)
        context.log.info(said)
        return dg.SensorResult(
            run_requests=requests,
            asset_events=events,
            skip_reason=None if requests else said,
            cursor=cursor.text(),
        )

    return ask


def tick_of(lakehouse: Lakehouse, runs: Runs, source: Source, owner: str, most: int, now: float) -> QueueTick:
    """Puts one tick together. owner, most, now: as of QueueTick."""
    intake = Intake(source, routes_of(lakehouse, runs), inbox_of(lakehouse))
    return QueueTick(intake, owner, memory_store(lakehouse), runs, now, most)


def owner_name(location: str, staging: str) -> str:
    """Returns what the source says of a code location: the same in all its processes and deployments.

    location: its name. staging: LAKEHOUSE_STAGING.
    """
    where = hashlib.sha256(place_of(staging).raw).hexdigest()[:12]
    return f"{location[:LONGEST_NAME]} {where}"


def runs_of(
    instance: dg.DagsterInstance,
    location: str | None,
    lakehouse: Lakehouse,
    tables: Sequence[Table],
    queue: QueueSettings,
) -> Runs:
    """Opens the queue's runs in Dagster's storage. location: the name of the code location, if it has one."""
    return Runs(instance, queue.name, tables, lambda table: notes_of(lakehouse, table), location)


def routes_of(lakehouse: Lakehouse, runs: Runs) -> Routes:
    """Returns the routes, which find the partitions that messages ask for."""
    return Routes(runs.tables, lakehouse.settings.landing, runs.keys_of)


def run_request(one: Request, queue: QueueSettings) -> dg.RunRequest:
    """Returns Dagster's request for a run of all partitions from the first to the last."""
    tags = {QUEUE_TAG: queue.name, TABLE_TAG: one.table}
    key = dg.AssetKey(one.table.split("."))
    if len(one.keys) == 1:
        return dg.RunRequest(one.run_key, asset_selection=[key], partition_key=one.keys[0] or None, tags=tags)
    return dg.RunRequest(one.run_key, asset_selection=[key], tags=tags | {FIRST: one.keys[0], LAST: one.keys[-1]})


def _evaluations(tables: Sequence[Table], told: Told, cursor: Cursor) -> tuple[list[dg.AssetCheckEvaluation], Cursor]:
    """Evaluates the check of each table that has it and of which there is news, and notes in the cursor what was said.

    It is news if other partitions of the table are parked than were told last, or if other runs failed for them.
    """
    memory, found, said = told.decision.memory, [], {}
    for table in (table for table in tables if table.arrivals):
        waiting, parked = (
            [o for o in some if o.table == table.identifier] for some in (told.waiting, told.decision.parked)
        )
        if now_said := digest(parked, memory):
            said[table.identifier] = now_said
        if now_said != cursor.parked.get(table.identifier, ""):
            of_check = verdict(waiting, parked, memory)
            found.append(dg.AssetCheckEvaluation(asset_key=table.key, check_name=ARRIVALS, **of_check))
    return found, replace(cursor, parked=said)


def _observations(
    queue: QueueSettings, told: Told, cursor: Cursor, now: float
) -> tuple[list[dg.AssetObservation], Cursor]:
    """Observes the queue's asset, if it is time, and notes that in the cursor."""
    since = now - cursor.shown_at
    if 0 <= since < SHOWN_EVERY_SECONDS:
        return [], cursor
    drained = 60 * cursor.drained / since if cursor.shown_at and since > 0 else 0.0
    shown = dg.AssetObservation(asset_key(queue), metadata=numbers(told, now, drained))
    return [shown], replace(cursor, shown_at=now, drained=0)

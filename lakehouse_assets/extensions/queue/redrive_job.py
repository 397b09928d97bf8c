"""The job ``lakehouse_redrive``: retries parked partitions and dead letters."""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

import time
from collections.abc import Sequence
from functools import partial

import dagster as dg
from pydantic import Field

from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.settings import QueueSettings
from lakehouse_assets.extensions.queue.decide import waiting_of
from lakehouse_assets.extensions.queue.hook import inbox_of
from lakehouse_assets.extensions.queue.inbox import Item
from lakehouse_assets.extensions.queue.messages import RoutedRequest, Routes, Wanted
from lakehouse_assets.extensions.queue.source import Message, SqsQueue, sqs_queue
from lakehouse_assets.extensions.queue.strikes import QueueMemory, memory_store
from lakehouse_assets.extensions.queue.tick import Runs, pace_of
from lakehouse_assets.run.in_flight import REDRIVE, location_of
from lakehouse_assets.run.jobs import job_of, shown_table
from lakehouse_assets.run.plan import plans_of
from lakehouse_assets.run.resource import Lakehouse

COLUMNS = ("from", "partitions", "reason", "what")
SHOWN = 1000
"""The most rows of the table that the run shows."""


class RedriveConfig(dg.Config):
    """What to try once more. The fields show in the launchpad."""

    table: str = Field("", description="Only this table, such as nyc.flights; if empty, all tables.")
    keys: list[str] = Field([], description="Only these partitions of the table; if empty, all.")
    parked: bool = Field(
        True,
        description="true: try parked partitions again. Their runs failed as often as the table's `tries` allow, so "
        "they are not run until a person or a new message requests them. false: leave them parked.",
    )
    dead_letters: bool = Field(
        True,
        description="true: send those messages of the dead-letter queue again that "
        "can be served now. false: leave them there.",
    )
    dry_run: bool = Field(True, description="true: only show what would be tried again. false: try it again.")


def redrive_job(tables: Sequence[Table], queue: QueueSettings) -> dg.JobDefinition:
    """Returns the job."""
    known = [table.identifier for table in tables]

    @dg.op(name="redrive", out=dg.Out(dg.Nothing))
    def redrive(context: dg.OpExecutionContext, config: RedriveConfig, lakehouse: dg.ResourceParam[Lakehouse]) -> None:
        if config.table and config.table not in known:
            raise dg.Failure(
                f"unknown table {config.table}; the declared tables are {', '.join(known)}", allow_retries=False
            )
        if config.keys and not config.table:
            raise dg.Failure("keys need a table: name it as well", allow_retries=False)
        rows: list[tuple[str, ...]] = []
        if config.parked:
            rows += _parked(lakehouse, tables, config)
        if config.dead_letters:
            runs = Runs(context.instance, queue.name, tables, partial(plans_of, lakehouse), location_of(context.run))
            routes = Routes(tables, lakehouse.settings.landing, runs.keys_of)
            rows += _dead_letters(sqs_queue(queue), routes, config)
        context.log.info(
            f"{len(rows)} found" + ("; nothing was done, because dry_run is set" if config.dry_run else "")
        )
        context.add_output_metadata(
            {"found": len(rows), "dry_run": config.dry_run, "redriven": shown_table(COLUMNS, rows[:SHOWN])}
        )

    about = "Tries parked partitions and messages in the dead-letter queue again."
    return job_of(redrive, RedriveConfig, REDRIVE, about)


def _parked(lakehouse: Lakehouse, tables: Sequence[Table], config: RedriveConfig) -> list[tuple[str, ...]]:
    """Puts the chosen parked partitions into the inbox again, and returns a row for each.

    A new item grants one more try, as a message does. Only the sensor writes the memory of strikes.
    """
    inbox, memory = inbox_of(lakehouse), memory_store(lakehouse).read() or QueueMemory()
    paces = {table.identifier: pace_of(table) for table in tables}
    parked = (one for one in waiting_of(inbox.waiting(paces)) if one.is_parked(paces[one.table], memory))
    chosen = [one for one in parked if _is_chosen([one.wanted], config)]
    now_ms = round(time.time() * 1000)
    if not config.dry_run:
        inbox.put(Item(one.table, one.key, 0, now_ms, now_ms) for one in chosen)
    what = "would be tried once more" if config.dry_run else "is tried once more"
    return [("parked", _text([one.wanted]), memory.strikes[one.wanted].reason, what) for one in chosen]


def _dead_letters(queue: SqsQueue, routes: Routes, config: RedriveConfig) -> list[tuple[str, ...]]:
    """Sends the chosen letters that can be read now; makes the others visible. Returns a row for each chosen one."""
    found = [(message, routes.read(message.body)) for message in queue.rejected()]
    chosen = [(message, reading) for message, reading in found if _is_chosen(reading.wanted, config)]
    sent = [] if config.dry_run else [message for message, reading in chosen if reading.wanted]
    queue.send_again(sent)
    gone = {message.id for message in sent}
    queue.give_back([message for message, _ in found if message.id not in gone])
    return [_row(message, reading, config.dry_run) for message, reading in chosen]


def _row(message: Message, reading: RoutedRequest, dry_run: bool) -> tuple[str, ...]:
    reason = reading.problem or message.reason
    if not reading.wanted:
        return "dead letters", message.body[:100], reason, "stays: it can't be read"
    what = "would be sent once more" if dry_run else "was sent once more"
    return "dead letters", _text(reading.wanted), reason, what


def _is_chosen(wanted: Sequence[Wanted], config: RedriveConfig) -> bool:
    keys = config.keys
    return not config.table or any(table == config.table and (not keys or key in keys) for table, key in wanted)


def _text(wanted: Sequence[Wanted]) -> str:
    return ", ".join(f"{table} {key}".rstrip() for table, key in wanted)

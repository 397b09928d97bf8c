"""Parts of moving, purging and reading that die at a step: ``python -m tests.support.hot_deaths``, which awaits orders.
Each is a process that is killed for real, or waits there until it is told to go on. Who orders is hot_campaign.py."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn
from unittest.mock import patch

from pyiceberg.catalog import Catalog
from sqlalchemy.orm import Session

from lakehouse_assets.commit import publish as publishing
from lakehouse_assets.declare.row_source import Offsets
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.extensions.sources import postgres
from lakehouse_assets.extensions.sources.hook import source_range
from lakehouse_assets.extensions.sources.hot_and_cold import hot_and_cold
from lakehouse_assets.extensions.sources.postgres import PostgresTable
from lakehouse_assets.extensions.sources.purge import purgeable
from lakehouse_assets.extensions.sources.source_range import SourceRange
from lakehouse_assets.extensions.sources.warm import warm
from tests.support.hot_tables import state_table
from tests.support.hot_world import rows_of, with_gaps
from tests.support.light_move import LightMove

TABLE = state_table(source=PostgresTable("state", grace=timedelta(0)))
WARMED = "n < 4"
THERE = "there"
Die = Callable[[], object]


@dataclass(frozen=True)
class Point:
    """Where a part dies. with_server: it lives, and the database's server is killed while it is there."""

    part: str
    step: str
    with_server: signal.Signals | None = None

    def __str__(self) -> str:
        killed = f", the server by {self.with_server.name}" if self.with_server else ""
        return f"{self.part}, {self.step}{killed}"


OF_MOVER = ("planned", "staged", "written, not swapped", "committed, unheard of")
OF_TRANSACTION = ("before", "within", "committed, unheard of")
OF_READER = ("table loaded", "source asked", "source read", "proved")
KILLED = [
    *(Point("move", step) for step in OF_MOVER),
    *(Point("purge", step) for step in OF_TRANSACTION),
    *(Point("put back", step) for step in OF_TRANSACTION),
    *(Point("read", step) for step in OF_READER),
]
WITH_SERVER = [
    Point(part, step, how)
    for how in (signal.SIGKILL, signal.SIGQUIT)
    for part, step in (("move", "source read"), ("purge", "within"), ("put back", "within"), ("read", "source asked"))
]
POINTS = [*KILLED, *WITH_SERVER]


def move(
    catalog: Catalog, run: str, plan: Mapping[str, str] | None = None, say: Callable[[str], object] = lambda _: None
) -> None:
    """As a run does it, which first says what it will move. plan: what an earlier process of the run has said."""
    moving = LightMove(TABLE, run)
    if plan:
        begin, to = (Offsets.parse(plan[name]) for name in ("begin", "to"))
        moving.plan = SourceRange(TABLE.source, begin, to)  # type: ignore[arg-type]  a PostgresTable
    else:
        moving.plan = source_range(TABLE, catalog.load_table(TABLE.identifier).metadata, {})
        assert moving.plan is not None
        say(json.dumps({"begin": str(moving.plan.begin), "to": str(moving.plan.to)}))
    moving.stage(catalog)
    moving.publish(catalog)


def purge(catalog: Catalog) -> None:
    if found := purgeable(catalog, TABLE, time.time() + 60):
        found.source.purge(found.upto)


def put_back(catalog: Catalog) -> None:
    warm(catalog, TABLE, WARMED)


def read(catalog: Catalog) -> list[tuple[int, str]]:
    return rows_of(hot_and_cold(TABLE, catalog=catalog))


def doomed(point: Point, die: Die) -> AbstractContextManager[object]:
    """Whoever comes to the point dies."""
    match point.part, point.step:
        case "move", "planned":
            return _before(LightMove, "stage", die)
        case "move", "staged":
            return _before(publishing.LeanTransaction, "commit_transaction", die)
        case "move", "written, not swapped":
            return _within(publishing.LeanTransaction, "commit_transaction", lambda: _before(Session, "commit", die))
        case "move", "committed, unheard of":
            return _after(publishing.LeanTransaction, "commit_transaction", die)
        case "move", "source read":
            return _after(PostgresTable, "read", die)
        case "read", step:
            return _at_gap(OF_READER.index(step), die)
        case part, step:
            name = part.replace(" ", "_")
            if step == "before":
                return _before(PostgresTable, name, die)
            if step == "within":
                return _within(PostgresTable, name, lambda: _uncommitted(die))
            return _after(PostgresTable, name, die)


def _before(owner: Any, name: str, die: Die) -> AbstractContextManager[object]:
    return _replaced(owner, name, lambda original, *arguments: (die(), original(*arguments))[1])


def _after(owner: Any, name: str, die: Die) -> AbstractContextManager[object]:
    def dying(original: Callable[..., Any], *arguments: Any) -> Any:
        done = original(*arguments)
        done = [*done] if name == "read" else done  # a generator has read nothing yet
        die()
        return done

    return _replaced(owner, name, dying)


def _within(
    owner: Any, name: str, doom: Callable[[], AbstractContextManager[object]]
) -> AbstractContextManager[object]:
    def dying(original: Callable[..., Any], *arguments: Any) -> Any:
        with doom():
            return original(*arguments)

    return _replaced(owner, name, dying)


def _replaced(owner: Any, name: str, instead: Callable[..., Any]) -> AbstractContextManager[object]:
    original = getattr(owner, name)
    return patch.object(owner, name, lambda *arguments: instead(original, *arguments))


def _uncommitted(die: Die) -> AbstractContextManager[object]:
    """The statements of a transaction are done, and it is not committed."""
    connected = postgres.connected

    @contextmanager
    def dying(*arguments: Any) -> Iterator[Any]:
        with connected(*arguments) as cursor:
            yield cursor
            die()

    return patch.object(postgres, "connected", dying)


@contextmanager
def _at_gap(number: int, die: Die) -> Iterator[None]:
    gaps = [number]

    def gap() -> None:
        if gaps[0] == 0:
            die()
        gaps[0] -= 1

    with with_gaps(gap):
        yield


def main() -> None:
    """Has all imported and forks for each order: to start Python anew takes longer than what is killed."""
    for line in iter(sys.stdin.readline, ""):
        if (child := os.fork()) == 0:
            _obey(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _obey(order: Mapping[str, Any]) -> NoReturn:
    point = POINTS[order["point"]]

    say = partial(print, flush=True)

    def wait() -> None:
        say(THERE)
        sys.stdin.readline()

    die = wait if point.with_server else lambda: os.kill(os.getpid(), signal.SIGKILL)
    parts = {"purge": purge, "put back": put_back, "read": read}
    try:
        catalog = load_lake(read_settings())
        with doomed(point, die):
            move(catalog, order["run"], say=say) if point.part == "move" else parts[point.part](catalog)
    except Exception:  # as where the server is gone
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()

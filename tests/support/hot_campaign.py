"""Writers and a reader that go on while parts of moving, and the server, are killed; what was committed is known.
Where these die is hot_deaths.py's."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection
from pyiceberg.catalog import Catalog

from lakehouse_assets.commit.expire import ExpiryPolicy, expire, plan_expiry
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import SourceLost, SourceUnreachable
from lakehouse_assets.extensions.sources.purge import purgeable
from tests.support import hot_deaths as parts
from tests.support.hot_deaths import POINTS, TABLE, THERE, Point
from tests.support.hot_tables import UPSERT, make_source
from tests.support.lake_model import FAR
from tests.support.postgres import PostgreSQL
from tests.support.standin_mover import made

CLIENTS, EACH = 3, 4
EXPIRED_EACH = 10
"""After how many kills snapshots expire: each commit reads all that are kept."""
State = dict[int, str]


@dataclass
class Client:
    """A writer of keys of its own. states: what it has committed, each with its version. tried: what it is committing
    or has, if the answer was lost."""

    number: int
    states: list[State]
    tried: State | None = None
    next: State | None = None
    connection: Connection | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def act(self, chance: random.Random) -> None:
        """Begins a transaction, or commits the one that is open. Of one whose answer was lost it asks the server."""
        try:
            if self.connection is None:
                self.connection = psycopg2.connect("", connect_timeout=10)
                self._resolve()
            elif self.next is None:
                self._write(chance)
            else:
                with self.lock:
                    self.tried, self.next = self.next, None
                self.connection.commit()
                self._know(is_committed=True)
        except psycopg2.Error:
            with suppress(psycopg2.Error):
                if self.connection is not None:
                    self.connection.close()
            self.connection = self.next = None

    def _write(self, chance: random.Random) -> None:
        assert self.connection is not None
        state, version = dict(self.states[-1]), len(self.states)
        with self.connection.cursor() as cursor:
            for n in chance.sample(range(self.number * EACH, (self.number + 1) * EACH), 2):
                is_deleted = chance.random() < 0.3
                cursor.execute(UPSERT, (n, f"v{version}", is_deleted))
                state.pop(n, None)
                state |= {} if is_deleted else {n: f"v{version}"}
            cursor.execute("UPDATE versions SET version = %s WHERE client = %s", (version, self.number))
        self.next = state

    def _resolve(self) -> None:
        assert self.connection is not None
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT version FROM versions WHERE client = %s", (self.number,))
            ((version,),) = cursor.fetchall()
        self.connection.rollback()
        self._know(is_committed=version == len(self.states))

    def _know(self, *, is_committed: bool) -> None:
        with self.lock:
            if self.tried is not None and is_committed:
                self.states.append(self.tried)
            self.tried = None

    def since(self, begun: int) -> list[State]:
        """What its rows may have been since then. begun: how many states there were."""
        with self.lock:
            return [*self.states[begun - 1 :], *([self.tried] if self.tried is not None else [])]


@dataclass
class Campaign:
    """One table, its source, those who write and read all the time, and how often what happened."""

    settings: Settings
    server: PostgreSQL
    victims: subprocess.Popen[str]
    clients: list[Client]
    figures: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def kill(self, number: int) -> None:
        """Lets the next part die, has it done again, and reads."""
        point, catalog, run = POINTS[number % len(POINTS)], load_lake(self.settings), f"run-{number}"
        if point.part != "move":
            self._move_something(catalog, run)
        said = self._died(point, run)
        self.figures[str(point)] += 1
        if point.part == "move":
            # From failure, or anew.
            goes_on = number // len(POINTS) % 2 == 0 and said
            parts.move(catalog, run, json.loads(said)) if goes_on else parts.move(catalog, f"{run}-again")
        elif point.part == "purge":
            parts.purge(catalog)
        elif point.part == "put back":
            parts.put_back(catalog)
        self.read(catalog)
        if number % EXPIRED_EACH == 0:
            policy = ExpiryPolicy(minimum=2)
            expire(catalog, TABLE.identifier, lambda metadata: plan_expiry("t", metadata, policy, FAR).expiry)

    @staticmethod
    def _move_something(catalog: Catalog, run: str) -> None:
        """Moves until there is something to purge: on a busy machine the clients may have committed nothing since."""
        for number in range(600):
            parts.move(catalog, f"{run}-before-{number}")
            if purgeable(catalog, TABLE, time.time() + 60):
                return
            time.sleep(0.1)

    def _died(self, point: Point, run: str) -> str:
        """Returns what the process has said of its plan, if anything."""
        self._tell({"point": POINTS.index(point), "run": run})
        plan = self._told() if point.part == "move" else ""
        if point.with_server:
            assert self._told() == THERE, point
            self.server.end(point.with_server)
            self._tell({})
            self.server.start()
            self.figures[f"{point.part} ended well without a server"] += self._told() == "0"
        else:
            assert (status := self._told()) == str(-signal.SIGKILL), f"{point}: it ended with {status}"
        return plan

    def _tell(self, order: Mapping[str, Any]) -> None:
        assert self.victims.stdin
        self.victims.stdin.write(json.dumps(order) + "\n")
        self.victims.stdin.flush()

    def _told(self) -> str:
        assert self.victims.stdout
        return self.victims.stdout.readline().rstrip()

    def read(self, catalog: Catalog) -> None:
        """Reads hot and cold, and says whether that is what was committed at some time meanwhile."""
        begun = [len(client.states) for client in self.clients]
        try:
            rows = parts.read(catalog)
        except SourceUnreachable:
            self.figures["reads without a server"] += 1
            return
        except SourceLost as error:
            self.wrong.append(str(error))
            return
        self.figures["reads"] += 1
        self.wrong += [] if len(dict(rows)) == len(rows) else [f"a row twice: {rows}"]
        for client, since in zip(self.clients, begun, strict=True):
            found = {n: text for n, text in rows if n // EACH == client.number}
            if found not in (may_be := client.since(since)):
                self.wrong.append(f"client {client.number} has {found}, expected one of {may_be}")

    def write_on(self) -> None:
        chance = random.Random(1)
        while not self.ended.wait(0.02):
            chance.choice(self.clients).act(chance)

    def read_on(self) -> None:
        catalog = load_lake(self.settings)
        while not self.ended.wait(0.2):
            self.read(catalog)

    def settle(self) -> None:
        """Nobody writes any more, and each transaction has ended."""
        for client in self.clients:
            while client.tried is not None or client.next is not None:
                client.act(random.Random(1))


@contextmanager
def campaign(settings: Settings, server: PostgreSQL) -> Iterator[Campaign]:
    """One that goes on until the context ends. The server is reached by the environment."""
    connection = psycopg2.connect("")
    with connection, connection.cursor() as cursor:
        make_source(cursor)
        clients = ", ".join(f"({number}, 0)" for number in range(CLIENTS))
        cursor.execute(f"CREATE TABLE versions AS SELECT * FROM (VALUES {clients}) AS given (client, version)")
    connection.close()
    made(load_lake(settings), TABLE)
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.hot_deaths"]
    victims = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    found = Campaign(settings, server, victims, [Client(number, [{}]) for number in range(CLIENTS)])
    threads = [threading.Thread(target=act) for act in (found.write_on, found.read_on)]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        found.ended.set()
        for thread in threads:
            thread.join()
        victims.kill()
        victims.communicate()

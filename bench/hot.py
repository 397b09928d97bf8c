"""Whether reads of hot and cold are ever wrong, how fresh they are, what they cost, and how fast rows are moved.
The servers are real; the mover that is killed is in the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from unittest.mock import patch

import dagster as dg
import duckdb
import numpy as np
import polars as pl
import psycopg2
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog

from bench.context import Bench
from bench.report import Section, Spread, at_least, at_most
from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.modes import Append, Merge
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.environment.spark_setup import environment
from lakehouse_assets.extensions.sources.hot_and_cold import hot_and_cold
from lakehouse_assets.extensions.sources.kafka import KafkaTopic
from lakehouse_assets.extensions.sources.sensors import is_due
from tests.conftest import Lake, failure_text
from tests.support.hot_tables import make_source, state_table
from tests.support.hot_world import WRONG, faults, world_of
from tests.support.kafka import kafka
from tests.support.live_lake import live_session
from tests.support.postgres import postgresql
from tests.support.standin_mover import made, moving, position_of
from tests.support.topics import TOPIC, Topic

READS, WORLDS = 25, 40
RATE, SECONDS, MOVED_EACH_SECONDS = 10_000, 60, 5.0
TICK_SECONDS, OF_A_TICK = 10, 1000
COLD, HOT, MOVED = 1_000_000, 100_000, 1_000_000
EVENTS = Table(
    "bench.events",
    [column("n", "long"), column("text", "string"), column("sent_at", "timestamptz")],
    source=KafkaTopic(TOPIC, ceiling=50_000_000),
    write_mode=Append(),
)


def measure(bench: Bench) -> list[Section]:
    """Five sections: right and wrong reads, freshness, an hour's commits, the cost of a read, the speed of a move."""
    with postgresql() as database, kafka(bench.settings) as broker:
        variables = {**database.variables, "KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap}
        with patch.dict(os.environ, variables):
            return [_races(bench), _freshness(bench), _hour(bench), _cost(bench), _moves(bench)]


def _races(bench: Bench) -> Section:
    rows, wrong = [], 0
    for number, order in enumerate((None, *WRONG)):
        found = Counter[str]()
        for seed in range(bench.times(WORLDS if order is None else 1)):  # each load reads the whole history
            with _state():
                catalog = load_lake(read_settings(bench.environment(f"hot-{number}-{seed}")))
                with world_of(catalog, seed) as world, WRONG[order]() if order else nullcontext():
                    found += world.tally(bench.times(READS, quick=3), to_the_end=True)
        wrong += faults(found) if order is None else 0
        rows.append((order or "as it is", found.total(), faults(found), found["gave up"]))
    verdict = at_most("wrong reads in the right order", wrong, 0)
    header = ("order of the steps", "reads", "wrong", "gave up after ten tries, purged without grace")
    return Section("Reads between whose steps others write, move and purge", header, rows, [verdict])


def _freshness(bench: Bench) -> Section:
    """Events of another process at a steady rate, a mover, and a reader that looks at the newest again and again."""
    catalog, topic = _topic(bench, "freshness")
    rate, seconds = bench.times(RATE, quick=500), bench.times(SECONDS, quick=3)
    ended, delays, milliseconds, moves = threading.Event(), list[float](), list[float](), 0

    def mover() -> None:
        nonlocal moves
        while not ended.wait(MOVED_EACH_SECONDS):
            for _ in moving(catalog, EVENTS):
                pass
            moves += 1

    produces = subprocess.Popen([sys.executable, "-m", "bench.events", topic.bootstrap, str(rate), str(seconds)])
    moves_beside = threading.Thread(target=mover)
    moves_beside.start()
    seen, read = -1, hot_and_cold(EVENTS, catalog=catalog)
    while produces.poll() is None:
        started = time.perf_counter()
        read = read.again()
        hot, now = read.hot, time.time() * 1e6
        milliseconds.append((time.perf_counter() - started) * 1000)
        new = hot.filter(pc.greater(hot["n"], seen))
        if new.num_rows:
            seen = pc.max(new["n"]).as_py()
            delays += ((now - new["sent_at"].cast(pa.int64()).to_numpy()) / 1e6).tolist()
    ended.set()
    moves_beside.join()
    assert not produces.returncode
    half, most = (float(np.percentile(delays, share)) for share in (50, 99))
    rows = [
        ("events a second", f"{rate:,}"),
        ("events", f"{seen + 1:,}"),
        ("moves beside it", moves),
        ("reads", len(milliseconds)),
        ("milliseconds of a read of what is hot", Spread.of(milliseconds)),
        ("seconds from sent to seen, half of the events", f"{half:.2f}"),
        ("seconds from sent to seen, 99 of 100", f"{most:.2f}"),
    ]
    notes = [f"a stand-in moves each {MOVED_EACH_SECONDS:g} s, so that little is hot; all of it shares two cores"]
    return Section("Freshness", ("", ""), rows, [at_most("99 of 100 events are seen within", most, 1.0, " s")], notes)


def _hour(bench: Bench) -> Section:
    """An hour of events in simulated time, written to a table each 10 s, or to a topic and moved when it is due."""
    catalog, topic = _topic(bench, "hour")
    straight = catalog.create_table("bench.straight", EVENTS.schema)
    source = KafkaTopic(TOPIC, floor=5_000_000)  # so that its latency decides
    table = replace(EVENTS, source=source)
    began = datetime(2026, 1, 1, tzinfo=UTC)
    for tick in range(bench.times(360, quick=40)):
        at = began + timedelta(seconds=TICK_SECONDS * tick)
        numbers = range(tick * OF_A_TICK, (tick + 1) * OF_A_TICK)
        columns = [[*numbers], [f"event {n}" for n in numbers], [at] * OF_A_TICK]
        straight.append(pa.table(columns, schema=straight.schema().as_arrow()))
        _send(topic, numbers, at)
        state = source.state()
        lag = source.lag(state, state.begin(position_of(catalog.load_table(table.identifier), table)))
        if is_due(source, lag, at + timedelta(seconds=TICK_SECONDS)):
            for _ in moving(catalog, table):
                pass
    ways = {
        "written at once": (straight, lambda: _sum(pl.scan_iceberg(catalog.load_table("bench.straight")))),
        "through the topic": (
            catalog.load_table(EVENTS.identifier),
            lambda: _sum(hot_and_cold(table, catalog=catalog).polars()),
        ),
    }
    rows = []
    for name, (found, way) in ways.items():
        files = len(found.inspect.files())
        rows.append((name, len(found.snapshots()), files, _times(bench, way)))
    header = ("", "commits", "files", "milliseconds of a sum over all rows")
    verdict = at_most("commits of an hour at a latency of 5 minutes", int(rows[1][1]), 12)
    return Section("An hour of 100 events a second, seen within 10 seconds", header, rows, [verdict])


def _cost(bench: Bench) -> Section:
    catalog, topic = _topic(bench, "cost")
    cold, hot = bench.times(COLD, quick=1000), bench.times(HOT, quick=100)
    _send(topic, range(cold))
    for _ in moving(catalog, EVENTS):
        pass
    _send(topic, range(hot))
    of_hot = _times(bench, lambda: hot_and_cold(EVENTS, catalog=catalog))
    os.environ.update(environment())
    session = live_session(read_settings(bench.environment("cost")))
    ways: dict[str, Callable[[], object]] = {
        "Polars, cold alone": lambda: _sum(pl.scan_iceberg(catalog.load_table(EVENTS.identifier))),
        "Polars, as one": lambda: _sum(hot_and_cold(EVENTS, catalog=catalog).polars()),
        "DuckDB, as one": lambda: _duckdb(catalog),
        "Spark, warm, cold alone": lambda: session.table(f"lake.{EVENTS.identifier}").selectExpr("sum(n)").collect(),
        "Spark, warm, as one": lambda: (
            hot_and_cold(EVENTS, catalog=catalog).spark(session, "events").selectExpr("sum(n)").collect()
        ),
    }
    rows = [("pinning, and reading what is hot", of_hot), *((name, _times(bench, way)) for name, way in ways.items())]
    session.stop()
    title = f"A sum over {cold:,} rows of cold and {hot:,} of hot, milliseconds"
    return Section(title, ("", ""), rows)


def _sum(rows: pl.LazyFrame) -> object:
    return rows.select("n").sum().collect()


def _duckdb(catalog: Catalog) -> object:
    with duckdb.connect() as connection:
        hot_and_cold(EVENTS, columns=["n"], catalog=catalog).duckdb(connection, "events")
        return connection.sql("SELECT sum(n) FROM events").fetchall()


def _moves(bench: Bench) -> Section:
    """Runs that move a topic and a table of PostgreSQL, beside runs whose step gives the same rows without a source."""
    _, topic = _topic(bench, "moves")
    rows = bench.times(MOVED, quick=1000)
    _send(topic, range(rows))
    steps, conf, state = "tests.support.hot_tables", {"spark.lakehouse.rows": str(rows)}, state_table()
    bare = replace(EVENTS, identifier="bench.bare", source=None, step=f"{steps}:same_rows", spark_conf=conf)
    merged = replace(
        state, identifier="bench.merged", source=None, step=f"{steps}:same_states", spark_conf=conf,
        write_mode=Merge(["n"]),
    )  # fmt: skip
    settings = read_settings(bench.environment("moves"))
    told, verdicts = [], []
    with (
        _state(rows),
        tempfile.TemporaryDirectory() as folder,
        dg.DagsterInstance.local_temp(folder) as instance,
    ):

        def seconds(table: Table) -> float:
            started = time.perf_counter()
            result = Lake(settings, instance).run(table)
            assert result.success, failure_text(result)
            return time.perf_counter() - started

        for way, source, without, moved in (
            ("appended", "the topic", bare, EVENTS),
            ("merged", "PostgreSQL", merged, state),
        ):
            least, took = seconds(without), seconds(moved)
            for name, of in (("without a source", least), (f"from {source}", took)):
                told.append((f"{way}, {name}", f"{of:.1f}", f"{rows / of:,.0f}"))
            claim = f"rows a second from {source}, against the same without a source"
            verdicts.append(at_least(claim, round(least / took, 2), 0.5, " x"))
    return Section(
        f"A run of {rows:,} rows, its worker's start included", ("", "seconds", "rows a second"), told, verdicts
    )


@contextmanager
def _state(rows: int = 0) -> Iterator[None]:
    """A source ``state`` of so many rows, as same_states() gives them."""
    connection = psycopg2.connect("")
    with connection, connection.cursor() as cursor:
        make_source(cursor)
        filled = "SELECT n, 'event ' || n, false FROM generate_series(0, %s - 1) AS given (n)"
        cursor.execute(f"INSERT INTO state (n, text, deleted) {filled}", (rows,))
    connection.close()
    yield


def _topic(bench: Bench, home: str) -> tuple[Catalog, Topic]:
    """An empty topic, and an empty lake."""
    catalog = load_lake(read_settings(bench.environment(home)))
    if home != "moves":
        made(catalog, EVENTS)
    # Else the broker deletes what is written with a time of long ago.
    return catalog, Topic(os.environ["KAFKA_BOOTSTRAP_SERVERS"], TOPIC, 1, **{"retention.ms": "-1"})


def _send(topic: Topic, numbers: Sequence[int], at: datetime | None = None) -> None:
    at = at or datetime.now(UTC)
    for n in numbers:
        sent = json.dumps({"n": n, "text": f"event {n}", "sent_at": at.isoformat()})
        topic.producer.produce(TOPIC, sent, timestamp=int(at.timestamp() * 1000))
        if not n % 1000:
            topic.producer.poll(0)
    topic.producer.flush(60)


def _times(bench: Bench, act: Callable[[], object]) -> Spread:
    """Milliseconds, after a first time that loads what it needs."""
    found = []
    for _ in range(1 + bench.times(10, quick=2)):
        started = time.perf_counter()
        act()
        found.append((time.perf_counter() - started) * 1000)
    return Spread.of(found[1:])

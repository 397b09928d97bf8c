"""Whether reads of hot and cold are ever wrong, how fresh they are, what they cost, and how fast rows are moved.
The servers are real; the mover that is killed is in the tests."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from unittest.mock import patch

import dagster as dg
import duckdb
import numpy as np
import psycopg2
import pyarrow as pa
from confluent_kafka import Producer
from pyiceberg.catalog import Catalog

from bench.context import Bench
from bench.report import Section, Spread, at_least, at_most
from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.modes import Append
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.hot.hot_and_cold import hot_and_cold
from lakehouse_assets.sources.kafka import KafkaTopic
from tests.conftest import Lake, failure_text
from tests.support.hot_tables import ddl_of, state_table
from tests.support.hot_world import WRONG, faults, world_of
from tests.support.kafka import kafka
from tests.support.postgres import postgresql
from tests.support.standin_mover import made, moving
from tests.support.topics import TOPIC, Topic

READS, WORLDS = 25, 40
RATE, SECONDS, MOVED_EACH_SECONDS = 10_000, 60, 5.0
COLD, HOT, MOVED = 1_000_000, 100_000, 1_000_000
EVENTS = Table(
    "bench.events",
    [column("n", "long"), column("text", "string"), column("sent_at", "timestamptz")],
    source=KafkaTopic(TOPIC, ceiling=50_000_000),
    write_mode=Append(),
)


def measure(bench: Bench) -> list[Section]:
    """Four sections: right and wrong reads, freshness, the cost of a read, the speed of a move."""
    with postgresql() as database, kafka(bench.settings) as broker:
        variables = {**database.variables, "KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap}
        with patch.dict(os.environ, variables):
            return [_races(bench), _freshness(bench), _cost(bench), _moves(bench)]


def _races(bench: Bench) -> Section:
    rows, wrong = [], 0
    for number, order in enumerate((None, *WRONG)):
        found = Counter[str]()
        for seed in range(bench.times(WORLDS if order is None else 1)):  # each load reads the whole history
            with _state():
                catalog = load_lake(read_settings(bench.environment(f"hot-{number}-{seed}")))
                with world_of(catalog, seed) as world, WRONG[order](world) if order else nullcontext():
                    found += world.tally(bench.times(READS, quick=3), to_the_end=True)
        wrong += faults(found) if order is None else 0
        rows.append((order or "as it is", found.total(), faults(found), found["gave up"]))
    verdict = at_most("wrong reads in the right order", wrong, 0)
    header = ("order of the steps", "reads", "wrong", "gave up after ten tries, purged without grace")
    return Section("Reads between whose steps others write, move and purge", header, rows, [verdict])


def _freshness(bench: Bench) -> Section:
    """Events at a steady rate, a mover beside them, and a reader that looks at the newest again and again."""
    catalog, topic = _topic(bench, "freshness")
    rate, seconds = bench.times(RATE, quick=500), bench.times(SECONDS, quick=3)
    ended, delays, milliseconds, moves = threading.Event(), list[float](), list[float](), 0

    def produce() -> None:
        producer = Producer({"bootstrap.servers": topic.bootstrap, "linger.ms": 5})
        began, sent = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            while sent < (time.monotonic() - began) * rate:
                at = datetime.now(UTC).isoformat()
                producer.produce(TOPIC, f'{{"n": {sent}, "text": "event {sent}", "sent_at": "{at}"}}')
                sent += 1
                if not sent % 1000:
                    producer.poll(0)
            producer.poll(0.002)
        producer.flush(30)
        ended.set()

    def mover() -> None:
        nonlocal moves
        while not ended.wait(MOVED_EACH_SECONDS):
            for _ in moving(catalog, EVENTS):
                pass
            moves += 1

    threads = [threading.Thread(target=act) for act in (produce, mover)]
    for thread in threads:
        thread.start()
    seen = -1
    while not ended.is_set():
        started = time.perf_counter()
        hot = hot_and_cold(EVENTS, catalog=catalog).hot
        now = time.time() * 1e6
        milliseconds.append((time.perf_counter() - started) * 1000)
        new = hot.filter(pa.compute.greater(hot["n"], seen))
        if new.num_rows:
            seen = pa.compute.max(new["n"]).as_py()
            delays += ((now - new["sent_at"].cast(pa.int64()).to_numpy()) / 1e6).tolist()
    for thread in threads:
        thread.join()
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


def _cost(bench: Bench) -> Section:
    catalog, topic = _topic(bench, "cost")
    cold, hot = bench.times(COLD, quick=1000), bench.times(HOT, quick=100)
    _send(topic, cold)
    for _ in moving(catalog, EVENTS):
        pass
    _send(topic, hot)
    of_hot = _times(bench, lambda: hot_and_cold(EVENTS, catalog=catalog))
    ways: dict[str, Callable[[], object]] = {
        "Polars, cold alone": lambda: _polars(catalog),
        "Polars, as one": lambda: hot_and_cold(EVENTS, catalog=catalog).polars().select("n").sum().collect(),
        "DuckDB, as one": lambda: _duckdb(catalog),
    }
    rows = [("pinning, and reading what is hot", of_hot), *((name, _times(bench, way)) for name, way in ways.items())]
    title = f"A sum over {cold:,} rows of cold and {hot:,} of hot, milliseconds"
    return Section(title, ("", ""), rows)


def _polars(catalog: Catalog) -> object:
    import polars as pl

    return pl.scan_iceberg(catalog.load_table(EVENTS.identifier)).select("n").sum().collect()


def _duckdb(catalog: Catalog) -> object:
    with duckdb.connect() as connection:
        hot_and_cold(EVENTS, columns=["n"], catalog=catalog).duckdb(connection, "events")
        return connection.sql("SELECT sum(n) FROM events").fetchall()


def _moves(bench: Bench) -> Section:
    """One run that moves a topic, beside one whose step gives the same rows without a source."""
    _, topic = _topic(bench, "moves")
    rows = bench.times(MOVED, quick=1000)
    _send(topic, rows)
    bare = Table(
        "bench.bare", EVENTS.columns, step="tests.support.hot_tables:same_rows", write_mode=Append(),
        spark_conf={"spark.lakehouse.rows": str(rows)},
    )  # fmt: skip
    seconds = {}
    settings = read_settings(bench.environment("moves"))
    with tempfile.TemporaryDirectory() as folder, dg.DagsterInstance.local_temp(folder) as instance:
        for name, table in (("without a source", bare), ("moved from the topic", EVENTS)):
            started = time.perf_counter()
            result = Lake(settings, instance).run(table)
            assert result.success, failure_text(result)
            seconds[name] = time.perf_counter() - started
    told = [(name, f"{taken:.1f}", f"{rows / taken:,.0f}") for name, taken in seconds.items()]
    ratio = seconds["without a source"] / seconds["moved from the topic"]
    verdict = at_least("rows a second, against the same rows without a source", round(ratio, 2), 0.5, " x")
    return Section(
        f"A run of {rows:,} rows, its worker's start included", ("", "seconds", "rows a second"), told, [verdict]
    )


@contextmanager
def _state() -> Iterator[None]:
    """An empty source ``state``."""
    connection = psycopg2.connect("")
    with connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS state, lakehouse_purged CASCADE")
        cursor.execute(ddl_of(state_table()))
    connection.close()
    yield


def _topic(bench: Bench, home: str) -> tuple[Catalog, Topic]:
    """An empty topic, and an empty lake."""
    catalog = load_lake(read_settings(bench.environment(home)))
    if home != "moves":
        made(catalog, EVENTS)
    return catalog, Topic(os.environ["KAFKA_BOOTSTRAP_SERVERS"])


def _send(topic: Topic, rows: int) -> None:
    at = datetime.now(UTC).isoformat()
    for n in range(rows):
        topic.producer.produce(TOPIC, json.dumps({"n": n, "text": f"event {n}", "sent_at": at}))
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

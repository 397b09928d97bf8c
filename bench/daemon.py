"""How long a backfill from the UI waits before its run starts work: the daemon's interval and the start of a process.
The run itself is measured in backfill.py."""

from __future__ import annotations

import time
from typing import Any

from bench.context import Bench
from bench.report import Section, Spread
from lakehouse_assets.domains.nyc.tables import airlines, flights
from tests.support.dagster_server import DagsterServer, dagster_server, until

DAYS = ("2013-07-04", "2013-07-05", "2013-07-06")


def measure(bench: Bench) -> list[Section]:
    """One section."""
    environment = {"LAKEHOUSE_LANDING": str(bench.landing), "LAKEHOUSE_CACHE": str(bench.settings.cache)}
    with dagster_server(bench.home / "ui", **environment) as server:
        server.launch(airlines.key.path)  # the first run of a server loads what later ones find loaded
        backfills = [_backfill(server, DAYS) for _ in range(bench.times(5))]
    steps = {
        "request, until the daemon created the run": [t["creationTime"] - t["requested"] for t in backfills],
        "creation of the run, until its process started it": [t["startTime"] - t["creationTime"] for t in backfills],
        "the run": [t["endTime"] - t["startTime"] for t in backfills],
    }
    return [
        Section(
            f"A backfill of {len(DAYS)} partitions of nyc.flights from the UI, one run; {len(backfills)} of them",
            ("from", "seconds: median (least to greatest)"),
            [(step, Spread.of(seconds)) for step, seconds in steps.items()],
            [],
            ["Dagster's backfill daemon looks for requests every 30 s, and a process is started for each run."],
        )
    ]


def _backfill(server: DagsterServer, keys: tuple[str, ...]) -> dict[str, Any]:
    requested = time.time()
    backfill = server.backfill(flights.key.path, keys)
    (run,) = until(lambda: server.backfilled(backfill), 180)
    return {"requested": requested, **server.run(run["runId"], "creationTime startTime endTime")}

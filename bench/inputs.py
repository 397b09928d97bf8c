"""What it costs a run to pin its inputs, and a worker to read the pins instead of the catalog.
The process that does it is inputs_once.py."""

from __future__ import annotations

from collections import defaultdict

from bench.context import Bench
from bench.report import Section, Spread, at_most

COUNTS = (1, 5, 200)
SNAPSHOTS = 100
"""Of each input: the length of a copy goes with them."""
MOST_SECONDS = 0.3


def measure(bench: Bench) -> list[Section]:
    """One section. A process for each number, as a worker's JVM reads its first table."""
    rows, cost = [], {}
    for count in COUNTS[: bench.times(len(COUNTS))]:
        home = bench.environment(f"inputs-{count}")
        seconds: dict[str, list[float]] = defaultdict(list)
        for turn in range(bench.times(5)):
            for way in ("live", "pinned") if turn % 2 else ("pinned", "live"):
                snapshots = bench.times(SNAPSHOTS, quick=2)
                (found,) = bench.python("-m", "bench.inputs_once", count, snapshots, way, env=home).lines
                seconds["pinned"].append(found["pinned"])
                seconds[way + " read"].append(found["read"])
        spreads = {name: Spread.of(values) for name, values in seconds.items()}
        rows.append((count, spreads["pinned"], spreads["pinned read"], spreads["live read"]))
        cost[count] = spreads["pinned"].median + spreads["pinned read"].median - spreads["live read"].median
    return [
        Section(
            f"Inputs with {SNAPSHOTS} snapshots each, pinned by a run and read by a worker; 5 cold processes each way",
            ("inputs", "seconds to pin them", "to register and load the pins", "to load them from the catalog instead"),
            rows,
            [at_most(f"{n} inputs cost a run, and each worker, at most", cost[n], MOST_SECONDS, " s") for n in cost],
            ["A day and a year cost the same: inputs are pinned once a run, and registered once by each worker."],
        )
    ]

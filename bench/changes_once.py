"""One process that reads changes: how long it takes, or what becomes of them when runs die. Prints lines of JSON.
What is compared is said in changes.py and deaths.py."""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import dagster as dg
import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.modes import Append
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.maintenance.rewrite.compact import compact
from tests.conftest import Lake, failure_text
from tests.support.change_reading_deaths import Died, Stage, doomed, log, raise_died
from tests.support.faults import from_failure
from tests.support.rewrites import token

SOURCE = "demo.source"
MILLION = 1_000_000
WORDS = [f"word {n}" for n in range(1_000)]


def main(what: str, size: int, number: int) -> None:
    settings = read_settings()
    home = Path(settings.home, "dagster")
    home.mkdir(parents=True)
    catalog = load_lake(settings)
    catalog.create_namespace("demo")
    with dg.DagsterInstance.local_temp(str(home), overrides={"telemetry": {"enabled": False}}) as instance:
        {"gain": _gain, "deaths": _deaths}[what](Lake(settings, instance), catalog, size, number)


def _rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({"n": pa.array(numbers, pa.int64()), "text": pa.array(f"row {n}" for n in numbers)})


def _wide(first: int, count: int) -> pa.Table:
    """Rows as wide as those of flights."""
    chance = np.random.default_rng(first)
    columns = {"n": pa.array(range(first, first + count), pa.int64())}
    columns |= {f"i{n}": pa.array(chance.integers(0, 1_000_000, count), pa.int64()) for n in range(8)}
    columns |= {f"d{n}": pa.array(chance.random(count)) for n in range(8)}
    columns |= {f"s{n}": pa.array(WORDS).take(pa.array(chance.integers(0, len(WORDS), count))) for n in range(3)}
    return pa.table(columns)


def wide_log(name: str) -> Table:
    """A row for each new row of the source."""
    types = {"i": "long", "d": "double", "s": "string", "n": "long"}
    columns = [column(name, types[name[0]]) for name in _wide(0, 1).column_names]
    deps = [dg.AssetKey(["demo", "source"])]
    return Table(name, columns, "bench.changes_steps:added", deps=deps, write_mode=Append())


def _gain(lake: Lake, catalog: Catalog, size: int, times: int) -> None:
    source, there = catalog.create_table(SOURCE, _wide(0, 1).schema), 0
    for first in range(0, size, MILLION):
        source.append(_wide(first, min(MILLION, size - first)))
        there = first + min(MILLION, size - first)
    _run(lake, wide_log("demo.log"))
    for turn in range(times):
        source.append(_wide(there, size // 100))
        there += size // 100
        seconds = {}
        for name, table in (("changes", wide_log("demo.log")), ("all", wide_log(f"demo.log_{turn}"))):
            started = time.monotonic()
            _run(lake, table)
            seconds[name] = time.monotonic() - started
        print(json.dumps(seconds))


def _run(lake: Lake, *arguments: object, **options: object) -> dg.ExecuteInProcessResult:
    result = lake.run(*arguments, **options)  # type: ignore[arg-type]
    assert result.success, failure_text(result)
    return result


def _deaths(lake: Lake, catalog: Catalog, deaths: int, seed: int) -> None:
    chance, did = random.Random(seed), Counter(wrong=0, others=0)
    source = catalog.create_table(SOURCE, _rows(0, 1).schema)
    source.append(_rows(0, 10))
    there, newest = set(range(10)), 10
    while did["deaths"] < deaths:
        for _ in range(chance.randint(0, 3)):
            source = catalog.load_table(SOURCE)
            did["changes"] += 1
            if there and chance.random() < 0.4:
                gone = chance.choice(sorted(there))
                source.delete(f"n = {gone}")
                there.discard(gone)
            else:
                source.append(_rows(newest, 2))
                there |= {newest, newest + 1}
                newest += 2
        with suppress(Died), doomed(chance.choice([*Stage]), raise_died):
            lake.run(log())
        did["deaths"] += 1
        if chance.random() < 0.5:
            died = lake.instance.get_runs(limit=1)[0].run_id
            _run(lake, log(), tags=from_failure(died))
            did["runs"] += 1
        if chance.random() < 0.3:
            did["others"] += _interfere(catalog, chance)
    _run(lake, log())
    did["wrong"] = _wrong(lake, there, newest)
    print(json.dumps({**did, "runs": did["runs"] + 1}))


def _interfere(catalog: Catalog, chance: random.Random) -> int:
    """A rewrite of either, or a rollback of what was read. Returns how many of them were done."""
    table = catalog.load_table("demo.log")
    history = table.history()

    def roll_back() -> None:
        head = table.current_snapshot()
        if head and head.parent_snapshot_id:
            table.manage_snapshots().rollback_to_snapshot(head.parent_snapshot_id).commit()

    def rewrite() -> None:
        for name in ("demo.log", SOURCE):
            compact(catalog, name, token(), min_input_files=2)

    act: Callable[[], None] = chance.choice([roll_back, rewrite])
    if len(history) < 3:
        return 0
    act()
    return 1


def _wrong(lake: Lake, there: set[int], newest: int) -> int:
    """How many rows of the input are not in what was read as they must be: there once, or gone after it was there."""
    found = Counter((row["change"], row["n"]) for row in lake.rows(log()).to_pylist())
    wrong = 0
    for n in range(newest):
        came, went = found[("INSERT", n)], found[("DELETE", n)]
        right = {(1, 0)} if n in there else {(1, 1), (0, 0)}
        wrong += (came, went) not in right
    return wrong


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

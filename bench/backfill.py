"""nyc.flights through Dagster against a bare PySpark script: a year in one run, one day, and one run a partition.
The contestants are dagster_run.py and bare.py; each repetition is a fresh process."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean

from bench.context import Bench, BenchError
from bench.report import Section, Spread, Verdict, at_least, at_most
from lakehouse_assets.commit.target import open_target
from lakehouse_assets.domains.nyc.tables import flights
from lakehouse_assets.environment.catalog import catalog_properties, load_lake
from lakehouse_assets.environment.spark_setup import COMPILE_LATER, class_data_archive, environment, spark_conf
from tests.support.live_lake import live_catalogs

YEAR, DAY = ("2013-01-01", "2013-12-31"), ("2013-07-04", "2013-07-04")
ROWS = {YEAR: 336_776, DAY: 737}
DAYS = 365
OURS, STOCK = "Dagster, one run", "bare script, stock JVM"
ARCHIVED, SAME = "bare script, with the class-data archive", "bare script, with all of the worker's options"
# spark.driver.defaultJavaOptions, as lakehouse_assets/environment/spark_setup.py spells it: what a script lacks of it.
ARCHIVE_OPTION = re.compile(r'"-XX:SharedArchiveFile=[^"]*"')
COMPILE_OPTIONS = re.compile("|".join(COMPILE_LATER))
HOMES = {STOCK: "stock", ARCHIVED: "archived", SAME: "same"}
LIMITS = {STOCK: 0.8, ARCHIVED: 1.0}
"""How long Dagster's run of a year may take, of the script's time."""
LACKS = {STOCK: (ARCHIVE_OPTION, COMPILE_OPTIONS), ARCHIVED: (COMPILE_OPTIONS,), SAME: ()}

Times = dict[str, list[float]]


def measure(bench: Bench) -> Iterator[Section]:
    """Three sections: year, day, one run a partition. Each as it is measured: they take minutes, and one may fail."""
    year, details = _alternate(bench, YEAR, bench.times(3))
    yield _versus("365 daily partitions of nyc.flights (336,776 rows) in one run", year, LIMITS, details)
    day, _ = _alternate(bench, DAY, bench.times(5))
    yield _versus("One partition of nyc.flights", day, {}, [])
    yield _one_by_one(bench, Spread.of(year[OURS]).median)


def _alternate(bench: Bench, span: tuple[str, str], repetitions: int) -> tuple[Times, list[str]]:
    """Seconds of each contestant, the order of them turning with each repetition; and where ours went."""
    contestants: dict[str, Callable[[], dict[str, float]]] = {
        OURS: lambda: _dagster(bench, span),
        STOCK: lambda: _bare(bench, STOCK, span),
    }
    if class_data_archive(bench.settings):
        contestants[ARCHIVED] = lambda: _bare(bench, ARCHIVED, span)
        contestants[SAME] = lambda: _bare(bench, SAME, span)
    times: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    names = list(contestants)
    for turn in range(repetitions):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            times[name].append(contestants[name]())
    details = [
        f"{name}: {what} {Spread.of([t[what] for t in runs])} s"
        for name, runs in times.items()
        for what in runs[0]
        if what != "seconds"
    ]
    return {name: [t["seconds"] for t in runs] for name, runs in times.items()}, details


def _dagster(bench: Bench, span: tuple[str, str]) -> dict[str, float]:
    """From RUN_START to RUN_SUCCESS, everything between counted."""
    answer = bench.python(
        "-m", "bench.dagster_run", flights.identifier, "..".join(span), env=bench.environment("dagster")
    )
    (measured,) = answer.lines
    if measured["failure"]:
        raise BenchError(f"the run of {span} failed: {measured['failure']}")
    _check_rows(bench, "dagster", span)
    inside = {
        "the call of execute_job": measured["call"],
        "the worker until it had staged": measured["stage"],
        "publish": measured["publish"],
    }
    return {"seconds": measured["green"], **inside}


def _bare(bench: Bench, contestant: str, span: tuple[str, str]) -> dict[str, float]:
    """From the start of the process to its exit."""
    name = HOMES[contestant]
    file = _bare_settings(bench, name, LACKS[contestant])
    env = {**bench.environment(name), **environment()}
    started = time.time()
    answer = bench.python("-m", "bench.bare", file, flights.step, flights.identifier, *span, env=env)
    _check_rows(bench, name, span)
    return {"seconds": answer.seconds, "until the commit": answer.lines[0]["committed"] - started}


def _bare_settings(bench: Bench, name: str, lacks: Iterable[re.Pattern[str]]) -> Path:
    """Write the settings of a worker to a file and create the declared table, before the clock starts."""
    settings = replace(bench.settings, home=bench.home / name)
    file = settings.home / "spark.json"
    if not file.exists():
        open_target(load_lake(settings), flights)
        conf = spark_conf(settings, flights.spark_conf) | live_catalogs(catalog_properties(settings))
        for options in lacks:
            conf["spark.driver.defaultJavaOptions"] = options.sub("", conf["spark.driver.defaultJavaOptions"])
        file.write_text(json.dumps({"conf": conf, "landing": str(bench.landing / "nyc")}))
    return file


def _check_rows(bench: Bench, home: str, span: tuple[str, str]) -> None:
    table = load_lake(replace(bench.settings, home=bench.home / home)).load_table(flights.identifier)
    first, last = span
    rows = table.scan(f"flight_date >= '{first}' and flight_date <= '{last}'").count()
    if rows != ROWS[span]:
        raise BenchError(f"{home}: {rows} rows from {first} to {last}, expected {ROWS[span]}")


def _versus(title: str, times: Times, limits: Mapping[str, float], details: list[str]) -> Section:
    spreads = {name: Spread.of(seconds) for name, seconds in times.items()}
    ours = spreads[OURS].median
    verdicts: list[Verdict] = [
        at_most(f"at most {limit} x the {name}", ours / spreads[name].median, limit, " x")
        for name, limit in limits.items()
        if name in spreads
    ]
    rows = [(name, s, f"{ours / s.median:.2f}") for name, s in spreads.items()]
    return Section(
        f"{title}; {len(times[OURS])} repetitions, alternating",
        ("", "seconds: median (least to greatest)", "Dagster's run / this"),
        rows,
        verdicts,
        [
            "Dagster: RUN_START to RUN_SUCCESS by the events' own timestamps; fork, audit and one commit are in it.",
            "Script: process start to exit, `overwritePartitions` on a table of the same declaration; no audit, no "
            "unique keys. The first repetition fills an empty table, the others replace.",
            *details,
        ],
    )


def _one_by_one(bench: Bench, year: float) -> Section:
    """Every 12th day in a run of its own, one after the other in one process that has Dagster loaded already."""
    count = bench.times(30, quick=2)
    assert flights.partitions
    keys = flights.partitions.get_partition_keys()
    days = [keys[n * DAYS // count] for n in range(count)]
    answer = bench.python("-m", "bench.dagster_run", flights.identifier, *days, env=bench.environment("one-by-one"))
    if failed := [line["failure"] for line in answer.lines if line["failure"]]:
        raise BenchError(f"{len(failed)} of {count} runs failed: {'; '.join(failed)}")
    each = Spread.of([line["green"] for line in answer.lines])
    all_days = mean(each.values) * DAYS
    return Section(
        f"The same year as one run a partition: {count} runs measured, the rest extrapolated",
        ("", "seconds", "starts of a worker", "commits"),
        [
            ("one run", f"{year:.1f}", 1, 1),
            ("one run a partition: each", each, 1, 1),
            (f"one run a partition: {DAYS} of them, extrapolated", f"{all_days:.0f}", DAYS, DAYS),
        ],
        [at_least("one run is at least 50 x faster", all_days / year, 50, " x")],
        [
            "One after the other, in one process: what a run process for each would add (importing Dagster and the "
            "definitions) is not counted."
        ],
    )

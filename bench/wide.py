"""Merges of many columns, each a run in a process and a JVM of its own, beside overwrites of the same rows.
A run goes through Dagster (one_run.py); what its rows are is in wide_steps.py."""

from __future__ import annotations

import json
import sys

from bench.context import Bench
from bench.report import Section, Spread, at_most
from bench.wide_steps import COLUMNS, ROUND, name
from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.modes import Merge, Overwrite
from lakehouse_assets.declare.table import Table

WIDTHS = (50, 500)
WANTED = 3.0
"""Times an overwrite of 500 columns."""
PLAIN, INTO_ROWS = "overwrite", "merge into rows"
KINDS = (PLAIN, "merge into no rows", INTO_ROWS)


def table(kind: str, width: int) -> Table:
    mode = Overwrite() if kind == PLAIN else Merge(["id"])
    own = kind.replace(" ", "_")
    return Table(
        identifier=f"wide.{own}_{width}",
        columns=[column("id", "long", "The key", required=True)]
        + [column(name(n), "double" if n % 2 else "string", "A value") for n in range(1, width)],
        step="bench.wide_steps:rows",
        write_mode=mode,
    )


def measure(bench: Bench) -> list[Section]:
    found, medians = [], []
    for width in WIDTHS[:1] if bench.quick else WIDTHS:
        seconds = _seconds(bench, width)
        for kind, values in seconds.items():
            times = Spread.of([own / plain for own, plain in zip(values, seconds[PLAIN], strict=True)])
            found.append((width, kind, Spread.of(values), times))
            medians.append(times.median)
    worst = max(medians[-len(KINDS) :])
    return [
        Section(
            "Merges of 3,000 changes with many columns, each in a JVM of its own",
            ("columns", "run", "seconds", "x of an overwrite"),
            found,
            [at_most(f"{found[-1][0]} columns: at most {WANTED:.0f} x an overwrite", worst, WANTED, " x")],
            ["Half of the changes into rows are of keys that are there."],
        )
    ]


def _seconds(bench: Bench, width: int) -> dict[str, list[float]]:
    """Of the runs of each kind, which take turns, each in a home of its own."""
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn in range(bench.times(3)):
        for kind in KINDS if turn % 2 else reversed(KINDS):
            home = bench.environment(f"{width}-{turn}-{KINDS.index(kind)}")
            for n in range(2 if kind == INTO_ROWS else 1):  # the first fills the table
                env = {**home, COLUMNS: str(width), ROUND: str(n)}
                (answer,) = bench.python("-m", "bench.wide", kind, width, env=env).lines
            seconds[kind].append(answer["seconds"])
    return seconds


def main(kind: str, width: str) -> None:
    """One run, its seconds printed as a line of JSON."""
    from bench.one_run import materialize, prepare

    declared = table(kind, int(width))
    prepare(declared)
    _, start, end = materialize(declared, "", "")
    print(json.dumps({"seconds": end - start}))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Loading the code location in a cold process against a trivial one, and what must not be imported by it.
No JVM and no server."""

from __future__ import annotations

from bench.context import Bench
from bench.report import Section, Spread, Verdict, at_most

OURS, TRIVIAL = "lakehouse_assets.definitions", "bench.trivial"
UNWANTED = ("pyspark", "py4j", "boto3", "dagster_aws", "dagster_pyspark", "polars", "matplotlib", "sqlalchemy")
# As a code server does: import, then put the repository together.
LOAD = """
import importlib, json, sys
importlib.import_module({module!r}).defs.get_repository_def()
print(json.dumps({{"modules": len(sys.modules), "unwanted": [m for m in {unwanted!r} if m in sys.modules]}}))
"""


def measure(bench: Bench) -> list[Section]:
    """One section. Seconds are those of the whole process."""
    times: dict[str, list[float]] = {OURS: [], TRIVIAL: []}
    answers = {}
    names = list(times)
    for turn in range(bench.times(10, quick=2)):
        for name in names if turn % 2 else reversed(names):
            code = LOAD.format(module=name, unwanted=UNWANTED)
            answer = bench.python("-c", code, env=bench.environment("loading"))
            times[name].append(answer.seconds)
            (answers[name],) = answer.lines
    spreads = {name: Spread.of(seconds) for name, seconds in times.items()}
    unwanted = answers[OURS]["unwanted"]
    more = spreads[OURS].median - spreads[TRIVIAL].median
    return [
        Section(
            f"Loading the definitions in a cold process; {len(times[OURS])} repetitions, alternating",
            ("code location", "seconds: median (least to greatest)", "modules imported"),
            [(name, spread, answers[name]["modules"]) for name, spread in spreads.items()],
            [
                at_most("at most 0.5 s over the trivial one", more, 0.5, " s"),
                Verdict(
                    f"without importing {', '.join(UNWANTED)}", ", ".join(unwanted) or "none of them", not unwanted
                ),
            ],
        )
    ]

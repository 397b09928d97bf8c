"""Whether runs that read changes and die lose or repeat one.
The processes that do it are changes_once.py."""

from __future__ import annotations

from bench.context import Bench
from bench.report import Section, Verdict

LAKES, DEATHS = 10, 50


def measure(bench: Bench) -> list[Section]:
    """One section. Deaths are exceptions here; tests/integration/test_input_changes.py kills processes for real."""
    lakes, deaths = bench.times(LAKES), bench.times(DEATHS, quick=3)
    total: dict[str, int] = {}
    for lake in range(lakes):
        home = bench.environment(f"deaths-{lake}") | {"LAKEHOUSE_COMPUTE": "inline"}
        (found,) = bench.python("-m", "bench.changes_once", "deaths", deaths, lake, env=home).lines
        total = {name: total.get(name, 0) + number for name, number in found.items()}
    wrong = total["wrong"]
    return [
        Section(
            f"Runs that read changes and die at a random step, {lakes} lakes with {deaths} each",
            (
                "deaths",
                "runs that ended well",
                "rollbacks and rewrites between",
                "changes of the input",
                "rows in error",
            ),
            [(total["deaths"], total["runs"], total["others"], total["changes"], wrong)],
            [Verdict("no change is lost, none is read twice", f"{wrong} rows", wrong == 0)],
            ["The input gains and loses rows meanwhile. What is read must be a replay of its history, once."],
        ),
    ]

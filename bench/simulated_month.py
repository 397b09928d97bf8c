"""A simulated month of 20 tables with skewed writes: what is ranked under a budget against everything nightly, and
against a fixed order under the same budget. A virtual clock and no files; the tables are month.py's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import mean, median

from bench.context import Bench
from bench.month import FIRST, HOUR, Lake, Partition, Write, month, table_name
from bench.report import Section, Spread, Verdict, at_most
from lakehouse_assets.extensions.aws.prices import FARGATE
from lakehouse_assets.maintenance.level import Action, Engine
from lakehouse_assets.maintenance.levels import LEVELS
from lakehouse_assets.maintenance.policy import EACH_FILE, SPEED, START, VCPUS, Policy, candidates, plan
from lakehouse_assets.maintenance.rewrite_levels import LimitedLevel

GIB = 2**30
BUDGET = 8 * GIB
"""Bytes a night, less than half of what everything takes."""
NIGHT = 2
"""Hour of the day."""
SEEDS = (1, 2, 3, 4, 5)
MIN_INPUT_FILES = 5
"""Of rewrite_data_files."""


@dataclass
class World:
    """What is true, and estimates don't know: how fast each table is really rewritten, how much comes in between the
    look and the rewrite, how often a writer is faster."""

    random: Random

    def seconds(self, table: int, engine: Engine, size: int, files: int) -> float:
        slow = 0.6 + 0.15 * (table % 10)  # wide tables, dear codecs
        start = START[engine] * self.random.uniform(0.8, 1.5)
        return start + (size / SPEED + files * EACH_FILE[engine]) * slow * self.random.uniform(0.9, 1.1)

    def rewrite(self, partition: Partition) -> tuple[int, int]:
        """Bytes and files that were read; some rewrites do not land."""
        size = round(sum(partition.read) * self.random.uniform(1.0, 1.04))
        files = len(partition.read) + partition.delete_files
        if self.random.random() > 0.03:
            partition.rewrite()
        return size, files


@dataclass
class Course:
    """How a month went. small: files by the hour. spent: bytes by the night. usd: by Fargate's list prices. errors: how
    far the seconds of each action were from their estimate, as a share of them."""

    small: list[int] = field(default_factory=list)
    spent: list[int] = field(default_factory=list)
    usd: float = 0.0
    errors: list[float] = field(default_factory=list)

    def pay(self, engine: Engine, seconds: float) -> None:
        """For a run's process, or a worker (deploy/run-task.json, deploy/worker-task.json)."""
        self.usd += seconds / 3600 * FARGATE.usd(VCPUS[engine], 4 * VCPUS[engine])


Nightly = Callable[[Lake, World, Course, float], None]


def simulate(writes: Iterable[Sequence[Write]], nightly: Nightly, of: World) -> Course:
    """A month under one way to maintain tables."""
    lake, course = Lake(), Course()
    start = _seconds(0)
    for hour, of_hour in enumerate(writes):
        for write in of_hour:
            lake.take(write, start + hour * HOUR - 1800)  # half an hour before the look
        if hour % 24 == NIGHT:
            nightly(lake, of, course, start + hour * HOUR)
        course.small.append(lake.small_files())
    return course


def ranked(lake: Lake, world: World, course: Course, now: float) -> None:
    """As the job plans and does it."""
    spent = 0
    policy = Policy([level for level in LEVELS if isinstance(level, LimitedLevel)], {})
    asked = [candidate for health in lake.healths() for candidate in candidates(health, policy, (), now)]
    for action in plan(asked, policy, BUDGET).taken:
        if spent + action.size <= BUDGET:  # maintenance_run.py ends there as well
            spent += _carry_out(action, lake, world, course)
    course.spent.append(spent)


def _carry_out(action: Action, lake: Lake, world: World, course: Course) -> int:
    table = int(action.table.removeprefix(table_name(0)[:-2]))
    size, files = 0, 0
    for partition in action.partitions:
        read, opened = world.rewrite(lake.partitions[table, partition.values[0]])
        size, files = size + read, files + opened
    seconds = world.seconds(table, action.engine, size, files)
    course.pay(action.engine, seconds)
    course.errors.append(seconds / action.seconds - 1)
    return size


def stock(budget: float) -> Nightly:
    """``rewrite_data_files`` on one table after the other by their names, until the budget is spent."""

    def nightly(lake: Lake, world: World, course: Course, _: float) -> None:
        spent = 0
        for table, partitions in _by_table(lake):
            size, files = 0, 0
            for partition in partitions:
                wanted = len(partition.small) >= MIN_INPUT_FILES or partition.delete_files
                if wanted and spent + size + sum(partition.read) <= budget:
                    read, opened = world.rewrite(partition)
                    size, files = size + read, files + opened
            if files:
                course.pay(Engine.SPARK, world.seconds(table, Engine.SPARK, size, files))
            spent += size
        course.spent.append(spent)

    return nightly


def _by_table(lake: Lake) -> Iterator[tuple[int, list[Partition]]]:
    for table in sorted({table for table, _ in lake.partitions}):
        yield table, [p for key, p in sorted(lake.partitions.items()) if key[0] == table]


def courses(seed: int) -> dict[str, Course]:
    """The month under each way, with the same writes."""
    ways: dict[str, Nightly] = {
        "ranked": ranked,
        "fixed order, same budget": stock(BUDGET),
        "everything nightly": stock(float("inf")),
    }
    return {name: simulate(month(seed), way, World(Random(seed))) for name, way in ways.items()}


def _seconds(day: int) -> float:
    return (FIRST.toordinal() - 719_163 + day) * 24 * HOUR


def simulated_month(bench: Bench) -> Section:
    """The months of some seeds, side by side."""
    found = [courses(seed) for seed in SEEDS[: bench.times(len(SEEDS), quick=1)]]
    return _section(found)


def _section(found: Sequence[dict[str, Course]]) -> Section:
    def over(name: str, number: Callable[[Course], float]) -> Spread:
        return Spread.of([number(of[name]) for of in found])

    rows = [
        (
            name,
            over(name, lambda c: round(mean(c.small[7 * 24 :]))),
            over(name, lambda c: sum(c.spent) / GIB),
            over(name, lambda c: c.usd),
            over(name, lambda c: max(c.spent) / BUDGET),
        )
        for name in found[0]
    ]
    ranked, fixed, every = (rows[n][1].median for n in range(3))
    off = over("ranked", lambda c: median(map(abs, c.errors)))
    most = max(over("ranked", lambda c: max(c.spent) / BUDGET).values)
    return Section(
        f"A simulated month of 20 tables, {BUDGET / GIB:.0f} GiB a night",
        ("", "small files and delete files, mean from day 8 on", "rewritten, GiB", "USD", "dearest night / budget"),
        rows,
        [
            at_most("no night of a ranked month above 1.05 of the budget", most, 1.05),
            Verdict("fewer small files than in a fixed order", f"{ranked:.0f} to {fixed:.0f}", ranked < fixed),
        ],
        [
            f"Seconds off their estimate, median of actions: {off}.",
            f"Everything nightly, whatever it costs: {every:.0f} files.",
            "Writes are skewed by table, by size of files and by lateness (bench/month.py). Each number is of "
            f"{len(found)} months with other writes.",
        ],
    )


def plot(path: Path, seed: int = SEEDS[0]) -> None:
    """Small files by the hour, and bytes rewritten so far, as a picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for name, course in courses(seed).items():
        above.plot([hour / 24 for hour in range(len(course.small))], course.small, label=name)
        total = [sum(course.spent[: n + 1]) / GIB for n in range(len(course.spent))]
        below.step([n + NIGHT / 24 for n in range(len(total))], total, where="post", label=name)
    above.set_ylabel("small files, delete files")
    below.set_ylabel("rewritten so far, GiB")
    below.set_xlabel("day")
    above.legend()
    figure.savefig(path, metadata={"Date": None, "Creator": None} if path.suffix == ".svg" else {"Software": None})


if __name__ == "__main__":
    print(_section([courses(seed) for seed in SEEDS]))
    for argument in sys.argv[1:]:
        plot(Path(argument))

"""The memory of one table's maintenance: how actions ended, and how far estimates were off.

Pure. Where it is kept is memory_store.py's. Losing it costs knowledge only: what was too soon is tried, estimates are
raw.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

from lakehouse_assets.declare.care import Level
from lakehouse_assets.health.partition_health import PartitionHealth
from lakehouse_assets.maintenance.planned import Action, Cost, Engine

HOUR = 3600.0
AFTER_SUCCESS, AFTER_FAILURE = 16 * HOUR, HOUR
"""Seconds until the same work is done again; the numbers are OpenHouse's."""
BREAKER, BREAKER_OPEN = 3, 24 * HOUR
"""The number of failures in a row that opens the breaker, and seconds until the next try then."""
LEARNING = 0.3
"""The share of the way to what was found that a ratio moves after each action, on a logarithmic scale."""
LEAST, MOST = 0.1, 10.0
"""The bounds of a ratio that corrects an estimate: what is further off is a fault, no experience."""
SUBJECTS, RECORDS = 5_000, 50
"""The most levels and partitions, and the most records, that are remembered of a table: the latest."""


class Ending(StrEnum):
    """How an action ended, on the whole or for a partition."""

    DONE = "done"
    CONFLICT = "conflict"
    """A writer was faster. Nothing is wrong."""
    FAILED = "failed"


@dataclass(frozen=True)
class Last:
    """The last time that something was done."""

    at: float
    """Seconds since 1970."""
    failures: int = 0
    """Conflicts and failures in a row."""

    def wait(self, now: float) -> str | None:
        """Tells why it is too soon to do it again; None if it is not."""
        age = now - self.at
        if self.failures >= BREAKER:
            until = datetime.fromtimestamp(self.at + BREAKER_OPEN, UTC)
            text = f"breaker: {self.failures} conflicts or failures in a row; next try at {until:%Y-%m-%d %H:%M} UTC"
            return text if age < BREAKER_OPEN else None
        if self.failures:
            text = "cool-down: failed, or met a writer, less than an hour ago"
            return text if age < AFTER_FAILURE else None
        return "cool-down: done less than 16 hours ago" if age < AFTER_SUCCESS else None

    def then(self, ending: Ending, now: float) -> Last:
        """Returns what is remembered after another try: one failure more, or none if it was done."""
        return Last(now, 0 if ending is Ending.DONE else self.failures + 1)


@dataclass(frozen=True)
class Ratios:
    """The ratios of what was found to what was estimated: of things gained, bytes, and seconds without the start."""

    gain: float = 1.0
    size: float = 1.0
    seconds: float = 1.0

    def learn(self, expected: Ratios, found: Ratios) -> Ratios:
        """Returns these ratios moved towards what was found, by LEARNING of the way.

        The way is measured on a logarithmic scale, so that twice and half weigh the same. expected: what was estimated
        with these ratios. found: the same numbers as they were found.
        """
        names = vars(self)
        learned = Ratios(**{n: _learn(names[n], getattr(expected, n), getattr(found, n)) for n in names})
        return replace(learned, gain=min(1.0, learned.gain))  # more than there is can't be gained


def _learn(ratio: float, expected: float, found: float) -> float:
    if expected <= 0:
        return ratio
    observed = min(MOST, max(LEAST, ratio * found / expected))
    return float(min(MOST, max(LEAST, ratio * (observed / ratio) ** LEARNING)))


@dataclass(frozen=True)
class Record:
    """The record of one action, for people."""

    at: float
    """Seconds since 1970."""
    run: str
    """The id of its run."""
    level: str
    engine: str
    ending: str
    expected: int
    """Things that it was expected to gain."""
    found: int
    """Things that it gained."""
    expected_cost: Cost
    found_cost: Cost


@dataclass(frozen=True)
class Found:
    """The work that an action really did, as far as it is remembered."""

    ending: Ending
    things: int
    """Things gained, as Gain.things has them."""
    cost: Cost
    partitions: Mapping[str, Ending] = field(default_factory=dict)
    """How each partition fared, by PartitionHealth.id; empty for work on a whole table."""


@dataclass(frozen=True)
class Memory:
    """The memory of one table."""

    last: Mapping[str, Last] = field(default_factory=dict)
    """By level, and by partition (PartitionHealth.id)."""
    ratios: Mapping[str, Ratios] = field(default_factory=dict)
    """By ratio_id()."""
    records: tuple[Record, ...] = ()
    """The latest last."""

    def ratio(self, level: Level, engine: Engine) -> Ratios:
        """Returns the ratios to multiply estimates by."""
        return self.ratios.get(ratio_id(level, engine), Ratios())

    def wait_of_level(self, level: Level, now: float, *, by_partition: bool) -> str | None:
        """Tells why the level is left for later; None if it is not.

        by_partition: whether its partitions are done one by one; success of some is no reason to leave the others then.
        """
        last = self.last.get(level)
        return None if last is None or (by_partition and not last.failures) else last.wait(now)

    def wait_of_partition(self, partition: PartitionHealth, now: float) -> str | None:
        """Tells why the partition is left for later; None if it is not."""
        last = self.last.get(partition.id)
        return last.wait(now) if last else None

    def after(self, action: Action, found: Found, run: str, now: float, raw_start: float) -> Memory:
        """Returns the memory with an action that has ended.

        run: the id of its run. now: seconds since 1970. raw_start: the seconds of start that its estimate includes.
        """
        endings: dict[str, Ending] = {action.level: found.ending, **found.partitions}
        last = dict(self.last) | {s: self.last.get(s, Last(now)).then(ending, now) for s, ending in endings.items()}
        record = Record(
            now,
            run,
            action.level,
            action.engine,
            found.ending,
            action.gain.things,
            found.things,
            action.cost,
            found.cost,
        )
        return replace(
            self,
            last=dict(_latest(last)),
            ratios=self.ratios if found.ending is Ending.FAILED else self._learned(action, found, raw_start),
            records=(*self.records, record)[-RECORDS:],
        )

    def _learned(self, action: Action, found: Found, raw_start: float) -> Mapping[str, Ratios]:
        if not found.things and not found.cost.size:
            return self.ratios  # there was nothing to do: no experience
        expected = Ratios(action.gain.things, action.size, action.cost.seconds - raw_start)
        seen = Ratios(found.things, found.cost.size, max(0.0, found.cost.seconds - raw_start))
        learned = self.ratio(action.level, action.engine).learn(expected, seen)
        return {**self.ratios, ratio_id(action.level, action.engine): learned}


def _latest(last: Mapping[str, Last]) -> Collection[tuple[str, Last]]:
    return sorted(last.items(), key=lambda pair: pair[1].at)[-SUBJECTS:]


def ratio_id(level: Level, engine: Engine) -> str:
    """Returns the name under which a memory keeps the ratios of a level's actions by an engine."""
    return f"{level} by {engine}"

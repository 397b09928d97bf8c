"""What maintenance of one table remembers: how actions ended, and how far estimates were off. Pure.
Where it is kept is memory_store.py's. Losing it costs knowledge only: what was too soon is tried, estimates are raw."""

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
"""Seconds until the same is done again, as OpenHouse has them."""
BREAKER, BREAKER_OPEN = 3, 24 * HOUR
"""After so many failures in a row, seconds until the next try."""
LEARNING = 0.3
LEAST, MOST = 0.1, 10.0
"""Bounds of what corrects an estimate: what is further off is a fault, no experience."""
SUBJECTS, RECORDS = 5_000, 50
"""So much is remembered of a table, the latest."""


class Ending(StrEnum):
    """How an action ended, on the whole or for a partition."""

    DONE = "done"
    CONFLICT = "conflict"
    """A writer was faster. Nothing is wrong."""
    FAILED = "failed"


@dataclass(frozen=True)
class Last:
    """The last time that something was done. at: seconds since 1970. failures: conflicts and failures in a row."""

    at: float
    failures: int = 0

    def wait(self, now: float) -> str | None:
        """Why it is too soon to do it again, None if it is not."""
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
        return Last(now, 0 if ending is Ending.DONE else self.failures + 1)


@dataclass(frozen=True)
class Ratios:
    """How many times the estimate was found: of what is gained, of the bytes, of the seconds (the start apart)."""

    gain: float = 1.0
    size: float = 1.0
    seconds: float = 1.0

    def learn(self, expected: Ratios, found: Ratios) -> Ratios:
        """Half-way on the scale of ratios, so that twice and half weigh the same. expected: by these ratios."""
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
    """One action, for people. expected, found: things gained; the costs beside them."""

    at: float
    run: str
    level: str
    engine: str
    ending: str
    expected: int
    found: int
    expected_cost: Cost
    found_cost: Cost


@dataclass(frozen=True)
class Found:
    """What an action really did. things: as Gain.things. partitions: how each fared; none of work on a whole table."""

    ending: Ending
    things: int
    cost: Cost
    partitions: Mapping[str, Ending] = field(default_factory=dict)


@dataclass(frozen=True)
class Memory:
    """Of one table. last: by level, and by partition (PartitionHealth.id). ratios: by ratio_id()."""

    last: Mapping[str, Last] = field(default_factory=dict)
    ratios: Mapping[str, Ratios] = field(default_factory=dict)
    records: tuple[Record, ...] = ()

    def ratio(self, level: Level, engine: Engine) -> Ratios:
        """What to multiply estimates by."""
        return self.ratios.get(ratio_id(level, engine), Ratios())

    def wait_of_level(self, level: Level, now: float, *, by_partition: bool) -> str | None:
        """Why the level is left for later. by_partition: then success of some is no reason to leave the others."""
        last = self.last.get(level)
        return None if last is None or (by_partition and not last.failures) else last.wait(now)

    def wait_of_partition(self, partition: PartitionHealth, now: float) -> str | None:
        """Why the partition is left for later."""
        last = self.last.get(partition.id)
        return last.wait(now) if last else None

    def after(self, action: Action, found: Found, run: str, now: float, raw_start: float) -> Memory:
        """What is remembered when the action has ended. run: its id. raw_start: the start that its estimate has."""
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
    return f"{level} by {engine}"

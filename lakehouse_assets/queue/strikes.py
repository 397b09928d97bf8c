"""What is remembered of partitions whose runs failed: how often, until when they wait, and when a person must look.
Pure. What is run next is decided in decide.py."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from lakehouse_assets.declare.arrivals import Pace
from lakehouse_assets.queue.route import Wanted

LONGEST_BACKOFF = 3600.0
"""Seconds."""
OPENS_AT = 3
"""Failures in a row, each of other partitions, after which it is the table that fails, and no longer its partitions."""


class Outcome(StrEnum):
    """How a run that the queue looks at ended."""

    DONE = "done"
    FAILED = "failed"
    CANCELED = "canceled"


@dataclass(frozen=True)
class Ended:
    """A run that ended. covered: the partitions that it was for, each with the inbox objects that it covered.
    bad: those that the run itself names as the reason of its failure, if it names any. reason: for a person."""

    run_id: str
    table: str
    outcome: Outcome
    covered: Mapping[str, frozenset[str]]
    bad: frozenset[str] = frozenset()
    reason: str = ""


@dataclass(frozen=True)
class Strikes:
    """Of one partition. count: 0 where a person canceled its run. until: it waits, seconds since 1970. runs: that
    failed for it. seen: the inbox objects that the last of them covered: what has come since is new, and worth another
    try."""

    count: int = 0
    until: float = 0.0
    runs: tuple[str, ...] = ()
    reason: str = ""
    seen: frozenset[str] = frozenset()

    def is_parked(self, names: frozenset[str], pace: Pace) -> bool:
        """Whether a person must look first. names: the inbox objects of the partition."""
        return self.count >= pace.tries and names <= self.seen


@dataclass(frozen=True)
class Limit:
    """Of a table's next run, after one failed and nobody knows for which partition. most: its partitions. until: it
    waits, seconds since 1970."""

    most: int
    until: float


@dataclass(frozen=True)
class Breaker:
    """Tells a table that always fails from one that has bad partitions, by its failures since its last success."""

    failures: int
    """In a row: of partitions that had not failed before and, once it is open, of any."""
    until: float = 0.0
    """No run of the table is asked for before, seconds since 1970; then one is, of one partition."""
    run: str = ""
    """The id of the last run that failed."""

    @property
    def is_open(self) -> bool:
        return self.failures >= OPENS_AT


@dataclass(frozen=True)
class Memory:
    """strikes: by partition. limits, breakers: by table. served: by table, when a run of it was asked for last, seconds
    since 1970."""

    strikes: Mapping[Wanted, Strikes] = field(default_factory=dict)
    limits: Mapping[str, Limit] = field(default_factory=dict)
    breakers: Mapping[str, Breaker] = field(default_factory=dict)
    served: Mapping[str, float] = field(default_factory=dict)

    def of_waiting(self, waiting: Collection[Wanted]) -> Memory:
        """Without strikes of partitions that nobody asks for any more."""
        return replace(self, strikes={wanted: found for wanted, found in self.strikes.items() if wanted in waiting})


def learn(memory: Memory, ended: Iterable[Ended], paces: Mapping[str, Pace], now: float) -> Memory:
    """What is remembered after these runs. paces: by table. now: seconds since 1970."""
    for run in ended:
        memory = _learn(memory, run, paces[run.table], now)
    return memory


def _learn(memory: Memory, run: Ended, pace: Pace, now: float) -> Memory:
    of_run = {(run.table, key): names for key, names in run.covered.items()}
    rest = {wanted: found for wanted, found in memory.strikes.items() if wanted not in of_run}
    limits = {table: limit for table, limit in memory.limits.items() if table != run.table}
    breakers = {table: breaker for table, breaker in memory.breakers.items() if table != run.table}
    earlier = {wanted: memory.strikes.get(wanted, Strikes()) for wanted in of_run}
    match run.outcome:
        case Outcome.DONE:
            return replace(memory, strikes=rest, limits=limits, breakers=breakers)
        case Outcome.CANCELED:  # by a person, who does not want it at once again
            later = now + pace.backoff.total_seconds()
            waits = {wanted: replace(found, until=later) for wanted, found in earlier.items()}
            return replace(memory, strikes=rest | waits)
    bad = run.bad or (frozenset(run.covered) if len(run.covered) == 1 else frozenset())
    struck = {
        wanted: _struck(found, run, of_run[wanted], pace, now) if wanted[1] in bad else found
        for wanted, found in earlier.items()
        if wanted[1] in bad or wanted in memory.strikes
    }
    if limit := _limited(memory.limits.get(run.table), run, pace, now):
        limits |= {run.table: limit}
    new = {key for key in bad if not earlier[run.table, key].count}
    breaker = _broken(memory.breakers.get(run.table, Breaker(0)), run, new, pace, now)
    return replace(memory, strikes=rest | struck, limits=limits, breakers=breakers | {run.table: breaker})


def _limited(earlier: Limit | None, run: Ended, pace: Pace, now: float) -> Limit | None:
    """Halved where nobody knows which partition was bad. If the next run fails as well, perhaps all will: that one
    waits."""
    if run.bad or (len(run.covered) == 1 and earlier is None):
        return earlier
    wait = pace.backoff.total_seconds() if earlier else 0.0
    return Limit(max(1, len(run.covered) // 2), now + wait)


def _broken(earlier: Breaker, run: Ended, new: Collection[str], pace: Pace, now: float) -> Breaker:
    """The breaker after a failure, which holds nothing back as long as bad partitions explain what has failed.

    A run that names no partition of several is still searched by halves, and a partition that fails again tells nothing
    new of its table. new: the bad partitions that had not failed before.
    """
    if earlier.is_open:
        failures = earlier.failures + 1
    else:
        all_failed = len(new) == len(run.covered)
        failures = min(OPENS_AT, earlier.failures + (len(new) if all_failed else bool(new)))
    if failures < OPENS_AT:
        return Breaker(failures)
    return Breaker(failures, now + _backoff(pace, failures - OPENS_AT), run.run_id)


def _struck(earlier: Strikes, run: Ended, names: frozenset[str], pace: Pace, now: float) -> Strikes:
    count = earlier.count + 1
    # Once it is parked, only a new message or a person grants a try, who should not wait for long. Where that fails as
    # well, new messages are no sign that somebody mended it.
    doubled = count - 1 if count < pace.tries else count - pace.tries
    runs = (*earlier.runs, run.run_id)[-pace.tries :]
    return Strikes(count, now + _backoff(pace, doubled), runs, run.reason, names)


def _backoff(pace: Pace, doubled: int) -> float:
    """Seconds. doubled: how often."""
    return min(pace.backoff.total_seconds() * 2.0 ** min(doubled, 30), LONGEST_BACKOFF)  # 30: no overflow

"""The queue's memory of failures: which partitions and tables wait, and for how long.

A failure that a run blames on a partition is a *strike*. A partition with ``Pace.tries`` strikes is *parked*: only a
new message or a person has it tried again. If a run blames none, a *limit* halves the table's next run. If different
partitions fail in a row, the table's *breaker* opens: its partitions are tried one at a time.

Times are epoch seconds. The stored object outlives the sensor's cursor, which a person may reset.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import dagster as dg
from pydantic import BeforeValidator, PlainSerializer, TypeAdapter

from lakehouse_assets.declare.options import Pace
from lakehouse_assets.environment.catalog import catalog_properties
from lakehouse_assets.extensions.queue.messages import Wanted
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.storage.objects import Objects, objects_at
from lakehouse_assets.storage.place import place_of

logger = logging.getLogger(__name__)
LONGEST_BACKOFF = 3600.0
"""In seconds."""
OPENS_AT = 3
"""Consecutive failures of different partitions that count as the table's."""


@dataclass(frozen=True)
class EndedRun:
    """A run that ended."""

    run_id: str
    table: str
    status: dg.DagsterRunStatus
    covered: Mapping[str, frozenset[str]]
    """Names of inbox items, by partition key."""
    bad: frozenset[str] = frozenset()
    """Keys that the run blames."""
    reason: str = ""
    published: frozenset[str] = frozenset()
    """Keys that a failed run had published."""


@dataclass(frozen=True)
class Strikes:
    """The failures of one partition."""

    count: int = 0
    """Since the last success; canceled runs don't count."""
    until: float = 0.0
    """No run before then."""
    runs: tuple[str, ...] = ()
    """The last failed runs, at most ``Pace.tries``."""
    reason: str = ""
    seen: frozenset[str] = frozenset()
    """The last failed run's inbox items: newer ones deserve another try."""


@dataclass(frozen=True)
class RunLimit:
    """A table's limit after a failure that no known partition explains."""

    most: int
    """The most partitions of the next run."""
    until: float
    """Partitions that have not failed wait until then."""


@dataclass(frozen=True)
class Breaker:
    """Tells a table that always fails from one with bad partitions."""

    failures: int
    """Failures since the last success. While closed, only the first failure of each partition counts."""
    until: float = 0.0
    """While open, no run starts before then; the next one is of one partition."""
    run: str = ""
    """While open, the last failed run."""

    @property
    def is_open(self) -> bool:
        """Whether the table itself counts as failing."""
        return self.failures >= OPENS_AT


StrikesByPartition = Annotated[
    Mapping[Wanted, Strikes],
    PlainSerializer(lambda found: [(*wanted, strikes) for wanted, strikes in found.items()]),
    BeforeValidator(lambda rows: {(table, key): strikes for table, key, strikes in rows}),
]
"""A list in JSON, whose object keys are texts."""


@dataclass(frozen=True)
class QueueMemory:
    """What failed, and when each table had its turn."""

    strikes: StrikesByPartition = field(default_factory=dict)
    limits: Mapping[str, RunLimit] = field(default_factory=dict)
    breakers: Mapping[str, Breaker] = field(default_factory=dict)
    served: Mapping[str, float] = field(default_factory=dict)
    """When each table was last requested."""
    learned: tuple[str, ...] = ()
    """Ids of ended runs already counted."""
    version: Literal[2] = 2

    def strikes_of(self, wanted: Wanted) -> Strikes:
        """Returns a partition's strikes, if any."""
        return self.strikes.get(wanted, Strikes())

    def of_waiting(self, waiting: Collection[Wanted]) -> QueueMemory:
        """Returns the memory without the strikes of partitions that nobody requests any more."""
        return replace(self, strikes={wanted: found for wanted, found in self.strikes.items() if wanted in waiting})


@dataclass(frozen=True)
class MemoryStore:
    """A code location's stored memory; raises the storage's errors."""

    objects: Objects
    name: str = "state.json"

    def read(self) -> QueueMemory | None:
        """Returns the memory; None if there is none, or it is unreadable."""
        try:
            return TypeAdapter(QueueMemory).validate_json(self.objects.read(self.name))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            logger.warning("%s can't be used, so earlier failures are forgotten: %s", self.name, error)
            return None

    def write(self, memory: QueueMemory) -> None:
        """Replaces the memory."""
        self.objects.write(self.name, TypeAdapter(QueueMemory).dump_json(memory))


def memory_store(lakehouse: Lakehouse) -> MemoryStore:
    """Returns a code location's store."""
    settings = lakehouse.settings
    return MemoryStore(objects_at(catalog_properties(settings), place_of(settings.staging).child("queue")))


def learn(memory: QueueMemory, ended: Iterable[EndedRun], paces: Mapping[str, Pace], now: float) -> QueueMemory:
    """Returns the memory after these runs, oldest first."""
    for run in ended:
        memory = _learn(memory, run, paces[run.table], now)
    return memory


def _learn(memory: QueueMemory, run: EndedRun, pace: Pace, now: float) -> QueueMemory:
    # What the run published counts as a success, the rest as a failure. The breaker stays closed: the table works.
    if run.published:
        done = {key: names for key, names in run.covered.items() if key in run.published}
        left = {key: names for key, names in run.covered.items() if key not in run.published}
        good = replace(run, status=dg.DagsterRunStatus.SUCCESS, covered=done, published=frozenset())
        memory = _learn(memory, good, pace, now)
        failed = _learn(memory, replace(run, covered=left, published=frozenset()), pace, now) if left else memory
        return replace(failed, breakers=memory.breakers)
    of_run = {(run.table, key): names for key, names in run.covered.items()}
    rest = {wanted: found for wanted, found in memory.strikes.items() if wanted not in of_run}
    limits = {table: limit for table, limit in memory.limits.items() if table != run.table}
    breakers = {table: breaker for table, breaker in memory.breakers.items() if table != run.table}
    earlier = {wanted: memory.strikes_of(wanted) for wanted in of_run}
    match run.status:
        case dg.DagsterRunStatus.SUCCESS:
            return replace(memory, strikes=rest, limits=limits, breakers=breakers)
        case dg.DagsterRunStatus.CANCELED:
            # A person canceled it, and does not want a new run at once.
            later = now + pace.backoff.total_seconds()
            waits = {wanted: replace(found, until=later) for wanted, found in earlier.items()}
            return replace(memory, strikes=rest | waits)
    # A run of one partition blames it. Partitions that are not blamed keep their earlier strikes.
    bad = run.bad or (frozenset(run.covered) if len(run.covered) == 1 else frozenset())
    struck = {
        wanted: _struck(found, run, of_run[wanted], pace, now) if wanted[1] in bad else found
        for wanted, found in earlier.items()
        if wanted[1] in bad or wanted in memory.strikes
    }
    if limit := _next_limit(memory.limits.get(run.table), run, pace, now):
        limits |= {run.table: limit}
    new = {key for key in bad if not earlier[run.table, key].count}
    breaker = _next_breaker(memory.breakers.get(run.table, Breaker(0)), run, new, pace, now)
    return replace(memory, strikes=rest | struck, limits=limits, breakers=breakers | {run.table: breaker})


def _next_limit(earlier: RunLimit | None, run: EndedRun, pace: Pace, now: float) -> RunLimit | None:
    """Halves the next run if the failed run names no bad partition.

    The first such failure delays nothing; after another one, perhaps every run fails, so the next one waits.
    """
    # A failure that bad partitions explain leaves the limit as it was. So does the failure of a single partition, if
    # there is no limit yet.
    if run.bad or (len(run.covered) == 1 and earlier is None):
        return earlier
    wait = pace.backoff.total_seconds() if earlier else 0.0
    return RunLimit(max(1, len(run.covered) // 2), now + wait)


def _next_breaker(earlier: Breaker, run: EndedRun, new: Collection[str], pace: Pace, now: float) -> Breaker:
    """Counts failures, and opens the breaker at OPENS_AT.

    While it is closed, partitions that failed before don't count, nor does a run that _next_limit() halves: one bad
    partition may explain them. new: bad partitions that had not failed before. If they are the whole run, each counts;
    otherwise they count once.
    """
    if earlier.is_open:
        failures = earlier.failures + 1
    else:
        all_failed = len(new) == len(run.covered)
        failures = min(OPENS_AT, earlier.failures + (len(new) if all_failed else bool(new)))
    if failures < OPENS_AT:
        return Breaker(failures)
    return Breaker(failures, now + _backoff(pace, failures - OPENS_AT), run.run_id)


def _struck(earlier: Strikes, run: EndedRun, names: frozenset[str], pace: Pace, now: float) -> Strikes:
    count = earlier.count + 1
    # A parked partition is tried only after a new message or by a person. Neither should wait long, so parking resets
    # the wait to one backoff. If that try fails too, new messages are no sign of a repair, and the wait doubles again.
    doubled = count - 1 if count < pace.tries else count - pace.tries
    runs = (*earlier.runs, run.run_id)[-pace.tries :]
    return Strikes(count, now + _backoff(pace, doubled), runs, run.reason, names)


def _backoff(pace: Pace, doubled: int) -> float:
    # At most 30, as a large power would overflow.
    return min(pace.backoff.total_seconds() * 2.0 ** min(doubled, 30), LONGEST_BACKOFF)

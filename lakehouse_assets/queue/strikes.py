"""Remembers from tick to tick which partitions' runs failed: how often, until when they wait, when a person must look.

All but the store, a small object on the staging prefix, is pure: it outlives the sensor's cursor, which a person may
reset.
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
from lakehouse_assets.queue.messages import Wanted
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.storage.objects import Objects, objects_at
from lakehouse_assets.storage.place import place_of

logger = logging.getLogger(__name__)
LONGEST_BACKOFF = 3600.0
"""The most seconds of a backoff that doubles with each failure."""
OPENS_AT = 3
"""Failures in a row, each of another partition, after which the table itself counts as failing, not its partitions."""


@dataclass(frozen=True)
class EndedRun:
    """A run that ended."""

    run_id: str
    table: str
    """The table's identifier."""
    status: dg.DagsterRunStatus
    """SUCCESS, FAILURE or CANCELED."""
    covered: Mapping[str, frozenset[str]]
    """The names of the inbox items that the run covered, by the partition keys that it was for."""
    bad: frozenset[str] = frozenset()
    """The partition keys that the run itself names as the reason of its failure, if it names any."""
    reason: str = ""
    """Why it failed, for a person."""


@dataclass(frozen=True)
class Strikes:
    """The failures of one partition's runs."""

    count: int = 0
    """How many runs failed for it. A run that a person canceled does not count, so this may be 0."""
    until: float = 0.0
    """The time until which it waits, seconds since 1970."""
    runs: tuple[str, ...] = ()
    """The ids of the last runs that failed for it, at most ``Pace.tries`` of them."""
    reason: str = ""
    """Why the last of them failed, for a person."""
    seen: frozenset[str] = frozenset()
    """The names of the inbox items that the last of them covered: those that came since are worth another try."""


@dataclass(frozen=True)
class RunLimit:
    """The limit of a table's next run, after one failed and nobody knows for which partition."""

    most: int
    """The most partitions of the run."""
    until: float
    """The time until which the table's partitions that have not failed wait, seconds since 1970."""


@dataclass(frozen=True)
class Breaker:
    """Tells a table that always fails from one that has bad partitions, by its failures since its last success."""

    failures: int
    """Failures in a row: of partitions that had not failed before and, once the breaker is open, of any."""
    until: float = 0.0
    """The time until which no run of the table is asked for, seconds since 1970; then one is, of one partition."""
    run: str = ""
    """The id of the last run that failed."""

    @property
    def is_open(self) -> bool:
        """Whether there were OPENS_AT failures or more in a row, so that the table itself counts as failing."""
        return self.failures >= OPENS_AT


StrikesByPartition = Annotated[
    Mapping[Wanted, Strikes],
    PlainSerializer(lambda found: [(*wanted, strikes) for wanted, strikes in found.items()]),
    BeforeValidator(lambda rows: {(table, key): strikes for table, key, strikes in rows}),
]
"""Strikes by partition, in JSON a list of rows: its objects have texts as keys."""


@dataclass(frozen=True)
class QueueMemory:
    """The memory of the queue: what failed, and which table had its turn when."""

    strikes: StrikesByPartition = field(default_factory=dict)
    limits: Mapping[str, RunLimit] = field(default_factory=dict)
    """The limits by table."""
    breakers: Mapping[str, Breaker] = field(default_factory=dict)
    """The breakers by table."""
    served: Mapping[str, float] = field(default_factory=dict)
    """When a run of each table was asked for last, seconds since 1970."""
    learned: tuple[str, ...] = ()
    """The ids of the runs that ended and that the memory knows of."""
    version: Literal[2] = 2
    """The version of the object that holds the memory."""

    def strikes_of(self, wanted: Wanted) -> Strikes:
        """Returns the strikes of one partition, which may be none."""
        return self.strikes.get(wanted, Strikes())

    def of_waiting(self, waiting: Collection[Wanted]) -> QueueMemory:
        """Returns the memory without the strikes of partitions that nobody asks for any more."""
        return replace(self, strikes={wanted: found for wanted, found in self.strikes.items() if wanted in waiting})


@dataclass(frozen=True)
class MemoryStore:
    """The place where a code location keeps its queue's memory."""

    objects: Objects
    """The objects below ``<LAKEHOUSE_STAGING>/queue``."""
    name: str = "state.json"

    def read(self) -> QueueMemory | None:
        """Returns the memory; None if there is none that this version can read. Raises what the storage raises."""
        try:
            return TypeAdapter(QueueMemory).validate_json(self.objects.read(self.name))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            logger.warning("%s can't be used, failures are forgotten: %s", self.name, error)
            return None

    def write(self, memory: QueueMemory) -> None:
        """Replaces the memory. Raises what the storage raises."""
        self.objects.write(self.name, TypeAdapter(QueueMemory).dump_json(memory))


def memory_store(lakehouse: Lakehouse) -> MemoryStore:
    """Returns the place of a code location's memory."""
    settings = lakehouse.settings
    return MemoryStore(objects_at(catalog_properties(settings), place_of(settings.staging).child("queue")))


def learn(memory: QueueMemory, ended: Iterable[EndedRun], paces: Mapping[str, Pace], now: float) -> QueueMemory:
    """Returns the memory after these runs. paces: by table. now: seconds since 1970."""
    for run in ended:
        memory = _learn(memory, run, paces[run.table], now)
    return memory


def _learn(memory: QueueMemory, run: EndedRun, pace: Pace, now: float) -> QueueMemory:
    of_run = {(run.table, key): names for key, names in run.covered.items()}
    rest = {wanted: found for wanted, found in memory.strikes.items() if wanted not in of_run}
    limits = {table: limit for table, limit in memory.limits.items() if table != run.table}
    breakers = {table: breaker for table, breaker in memory.breakers.items() if table != run.table}
    earlier = {wanted: memory.strikes_of(wanted) for wanted in of_run}
    match run.status:
        case dg.DagsterRunStatus.SUCCESS:
            return replace(memory, strikes=rest, limits=limits, breakers=breakers)
        case dg.DagsterRunStatus.CANCELED:  # by a person, who does not want it at once again
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


def _limited(earlier: RunLimit | None, run: EndedRun, pace: Pace, now: float) -> RunLimit | None:
    """Returns the table's limit after a failure: half of the run's partitions if nobody knows which of them was bad.

    If the next run fails as well, perhaps all will: the one after it waits for the backoff. A failure that is explained
    leaves the limit as it was.
    """
    if run.bad or (len(run.covered) == 1 and earlier is None):
        return earlier
    wait = pace.backoff.total_seconds() if earlier else 0.0
    return RunLimit(max(1, len(run.covered) // 2), now + wait)


def _broken(earlier: Breaker, run: EndedRun, new: Collection[str], pace: Pace, now: float) -> Breaker:
    """Returns the breaker after a failure. It holds nothing back as long as bad partitions explain what has failed.

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


def _struck(earlier: Strikes, run: EndedRun, names: frozenset[str], pace: Pace, now: float) -> Strikes:
    count = earlier.count + 1
    # Once it is parked, only a new message or a person grants a try, who should not wait for long. Where that fails as
    # well, new messages are no sign that somebody mended it.
    doubled = count - 1 if count < pace.tries else count - pace.tries
    runs = (*earlier.runs, run.run_id)[-pace.tries :]
    return Strikes(count, now + _backoff(pace, doubled), runs, run.reason, names)


def _backoff(pace: Pace, doubled: int) -> float:
    """Returns the seconds to wait. doubled: how often the pace's backoff is doubled."""
    return min(pace.backoff.total_seconds() * 2.0 ** min(doubled, 30), LONGEST_BACKOFF)  # 30: no overflow

"""Which waiting partitions are run now, in which runs: from what waits, what runs, and what failed before. Pure.
What waits is read by inbox.py; requests are handed to Dagster by the sensor."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lakehouse_assets.declare.arrivals import Pace
from lakehouse_assets.queue.strikes import Breaker, Memory, Strikes
from lakehouse_assets.run.in_flight import meet

OVERDUE = 600.0
"""Seconds, after which a partition no longer waits for longer ranges than its own."""


@dataclass(frozen=True)
class Waiting:
    """A partition that messages ask for. since: when the oldest of them was sent, seconds since 1970. names: of the
    inbox objects that hold them. messages: how many."""

    table: str
    key: str
    since: float
    names: frozenset[str]
    messages: int = 1


@dataclass(frozen=True)
class Lane:
    """One table as it is decided on.

    keys: all its partition keys by now, in order; ("",) without partitions. asked: the keys of each of its runs that
    the queue asked for and that has not ended; None for all. others: the keys of what else is about to write it, by its
    name for a person; it takes no run of the queue's. row_of: keys with the same row may be one range of a run: those
    of several dimensions differ in the last one only. last_ended: the id of the queue's last run of it that ended.
    """

    table: str
    pace: Pace
    keys: Sequence[str]
    asked: Sequence[Collection[str] | None] = ()
    others: Mapping[str, Collection[str] | None] = field(default_factory=dict)
    row_of: Callable[[str], str] = lambda _: ""
    last_ended: str = ""

    def is_busy(self, keys: Collection[str]) -> bool:
        """Whether something is about to write one of the keys."""
        return any(meet(some, keys) for some in (*self.asked, *self.others.values()))


@dataclass(frozen=True)
class Request:
    """A run to ask for, of partitions that follow each other. names: of the inbox objects that are its reason. after:
    the id of the queue's last run of the table that ended."""

    table: str
    keys: tuple[str, ...]
    names: frozenset[str]
    after: str

    @property
    def run_key(self) -> str:
        """Dagster starts no two runs with the same, and none where the first one failed: so the same is asked for once
        after each run that ended."""
        said = repr((self.table, self.keys[0], self.keys[-1], sorted(self.names), self.after))
        return hashlib.sha256(said.encode()).hexdigest()


@dataclass(frozen=True)
class Decision:
    """parked: what a person must look at, or a new message. in_runs: what is about to be written. held_by: the names of
    the runs and backfills that write some of it although the queue has not asked for them."""

    requests: tuple[Request, ...]
    parked: tuple[Waiting, ...]
    in_runs: tuple[Waiting, ...]
    held_by: tuple[str, ...]
    memory: Memory


def decide(now: float, waiting: Collection[Waiting], lanes: Sequence[Lane], memory: Memory, most: int) -> Decision:
    """now: seconds since 1970. most: runs at once, over all tables. Tables take turns: first the one that was served
    least lately, and of those that never were the one that has waited longest."""
    by_table: dict[str, list[Waiting]] = defaultdict(list)
    for one in waiting:
        by_table[one.table].append(one)
    views = {lane.table: _View(now, lane, by_table[lane.table], memory) for lane in lanes}
    queues = {table: view.requests() for table, view in views.items()}
    free = most - sum(len(lane.asked) for lane in lanes)
    requests: list[Request] = []
    turn = _in_turn(views, memory)
    while turn and free > len(requests):
        table = turn.pop(0)
        if request := next(queues[table], None):
            requests.append(request)
            turn.append(table)
    parked_ones = tuple(one for view in views.values() for one in view.parked)
    asked = {(request.table, key) for request in requests for key in request.keys}
    in_runs = tuple(one for view in views.values() for one in view.in_runs(asked))
    served = {**memory.served, **dict.fromkeys((request.table for request in requests), now)}
    held_by = tuple(name for view in views.values() for name in view.held_by)
    return Decision(tuple(requests), parked_ones, in_runs, held_by, replace(memory, served=served))


def parked(waiting: Iterable[Waiting], pace: Pace, memory: Memory) -> list[Waiting]:
    """What a person must look at, or a new message, of what waits for one table."""
    found = ((one, memory.strikes.get((one.table, one.key), Strikes())) for one in waiting)
    return [one for one, strikes in found if strikes.is_parked(one.names, pace)]


def _in_turn(views: Mapping[str, _View], memory: Memory) -> list[str]:
    waiting = [table for table, view in views.items() if view.ready]
    oldest = {table: min(one.since for one in views[table].ready) for table in waiting}
    return sorted(waiting, key=lambda table: (memory.served.get(table, 0.0), oldest[table]))


class _View:
    """One table: what of it is ready, and the runs that this would be."""

    def __init__(self, now: float, lane: Lane, waiting: Sequence[Waiting], memory: Memory) -> None:
        self.now, self.lane, self.waiting, self.memory = now, lane, waiting, memory
        self.limit = memory.limits.get(lane.table)
        self.breaker = memory.breakers.get(lane.table, Breaker(0))
        self.position = {key: at for at, key in enumerate(lane.keys)}
        self.parked = parked(waiting, lane.pace, memory)
        self.ready = [one for one in waiting if self._is_ready(one)]

    def in_runs(self, asked: Collection[tuple[str, str]]) -> list[Waiting]:
        """asked: the partitions that are asked for just now."""
        return [one for one in self.waiting if (one.table, one.key) in asked or self.lane.is_busy([one.key])]

    @property
    def held_by(self) -> list[str]:
        """The names of what else is about to write what waits."""
        waiting = [one.key for one in self.waiting]
        return [name for name, keys in self.lane.others.items() if waiting and meet(keys, waiting)]

    def _strikes(self, one: Waiting) -> Strikes:
        return self.memory.strikes.get((one.table, one.key), Strikes())

    def _is_ready(self, one: Waiting) -> bool:
        strikes = self._strikes(one)
        waits = self.now < strikes.until or strikes.is_parked(one.names, self.lane.pace)
        return one.key in self.position and not waits and not self.lane.is_busy([one.key])

    def requests(self) -> Iterator[Request]:
        """As many as may run at once: first the longest ranges of what never failed, then what did, each alone. What
        has waited for OVERDUE comes before all of it: a busy table has new ranges all the time. Of a table that always
        fails one partition is tried."""
        if self.breaker.is_open:
            yield from self._probe()
            return
        free = self.lane.pace.runs - len(self.lane.asked)
        ready = {one.key: one for one in self.ready}
        fresh = {key: one for key, one in ready.items() if not self._strikes(one).count}
        struck = sorted(ready.keys() - fresh.keys(), key=lambda key: ready[key].since)
        ranges = [*(self._ranges(fresh) if self._is_worth(fresh.values()) else ()), *([key] for key in struck)]
        ranges.sort(key=lambda keys: self._overdue_since(keys, ready))  # stable
        yield from (self._request(keys, ready) for keys in ranges[: max(0, free)])

    def _probe(self) -> Iterator[Request]:
        """One partition, when it is time: one that has failed as seldom as any, as it may succeed."""
        if self.ready and not self.lane.asked and self.now >= self.breaker.until:
            one = min(self.ready, key=lambda one: (self._strikes(one).count, one.since, self.position[one.key]))
            yield self._request([one.key], {one.key: one})

    def _overdue_since(self, keys: Sequence[str], ready: Mapping[str, Waiting]) -> float:
        """Seconds since 1970; now, where it is not overdue."""
        oldest = min(ready[key].since for key in keys if key in ready)
        return oldest if self.now - oldest >= OVERDUE else self.now

    def _is_worth(self, fresh: Collection[Waiting]) -> bool:
        if self.limit and self.now < self.limit.until:
            return False
        pace = self.lane.pace
        oldest = min((one.since for one in fresh), default=self.now)
        return len(fresh) >= pace.floor or self.now - oldest >= pace.latency.total_seconds()

    def _request(self, keys: Sequence[str], ready: Mapping[str, Waiting]) -> Request:
        names = frozenset(name for key in keys if key in ready for name in ready[key].names)
        return Request(self.lane.table, tuple(keys), names, self.lane.last_ended)

    def _ranges(self, fresh: Mapping[str, Waiting]) -> list[Sequence[str]]:
        """Contiguous partitions, the longest range first, each at most as long as a run may be."""
        most = min(self.lane.pace.ceiling, self.limit.most if self.limit else self.lane.pace.ceiling)
        found: list[list[int]] = []
        for at in sorted(self.position[key] for key in fresh):
            if found and self._joins(found[-1], at) and at - found[-1][0] < most:
                found[-1].append(at)
            else:
                found.append([at])
        ranges = [self.lane.keys[part[0] : part[-1] + 1] for part in found]
        return sorted(ranges, key=lambda keys: (-len(keys), self.position[keys[0]]))

    def _joins(self, part: Sequence[int], at: int) -> bool:
        """Whether the gap before a key may be run as well: nothing in it runs already, waits for a failure's backoff,
        or is left to a person."""
        lane, gap = self.lane, self.lane.keys[part[-1] + 1 : at]
        same_row = lane.row_of(lane.keys[part[0]]) == lane.row_of(lane.keys[at])
        bad = any((lane.table, key) in self.memory.strikes for key in gap)
        return len(gap) <= lane.pace.bridge and same_row and not bad and not lane.is_busy(gap)

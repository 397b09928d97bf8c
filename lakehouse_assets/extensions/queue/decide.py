"""Decides which waiting partitions run, and which to give up, without any I/O. Times are epoch seconds.

strikes.py explains strikes, limits, breakers and parking.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from lakehouse_assets.declare.options import Pace
from lakehouse_assets.extensions.queue.inbox import Item, by_partition
from lakehouse_assets.extensions.queue.messages import Wanted
from lakehouse_assets.extensions.queue.strikes import Breaker, QueueMemory
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.run.in_flight import meet

OVERDUE = 600.0
"""Seconds of waiting after which a partition precedes longer ranges."""
PATIENCE = timedelta(days=14)
"""How long a missing partition is waited for: SQS's longest retention
(https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html)."""
DEPLOYED = timedelta(hours=1)
"""How long a full inbox keeps items of an undeclared table: a deployment may be about to declare it."""
AT_ONCE = 1000
"""The most items that a tick gives up, oldest first."""
LONGEST = 1_000_000
"""The most bytes of a letter's keys as JSON: SQS takes 1 MiB with attributes."""
LISTED = 5
"""The most keys that a letter's reason names."""


@dataclass(frozen=True)
class Waiting:
    """A partition that messages ask for."""

    table: str
    key: str
    since: float
    """When the oldest message was sent."""
    names: frozenset[str]
    """The inbox items' names."""
    messages: int = 1

    @property
    def wanted(self) -> Wanted:
        """The table and the key."""
        return self.table, self.key

    def is_parked(self, pace: Pace, memory: QueueMemory) -> bool:
        """Whether it waits for a person or a new message."""
        strikes = memory.strikes_of(self.wanted)
        # An item that the last failed run did not cover is from a message that came later.
        return strikes.count >= pace.tries and self.names <= strikes.seen


@dataclass(frozen=True)
class Lane:
    """One table, as a decision sees it."""

    table: str
    pace: Pace
    keys: Sequence[str]
    """All existing keys, in order; ("",) without partitions."""
    asked: Sequence[Collection[str] | None] = ()
    """Keys of each unfinished run that the queue requested; None for all."""
    others: Mapping[str, Collection[str] | None] = field(default_factory=dict)
    """Keys of other runs and backfills, by name. The queue's limits ignore them."""
    row_of: Callable[[str], str] = lambda _: ""
    """Returns a key's row: all dimensions but the last. A range stays in one row."""
    last_ended: str = ""
    """The id of the queue's run that ended last."""

    def is_busy(self, keys: Collection[str]) -> bool:
        """Whether something is about to write a key."""
        return any(meet(some, keys) for some in (*self.asked, *self.others.values()))


@dataclass(frozen=True)
class Request:
    """A run of consecutive partitions."""

    table: str
    keys: tuple[str, ...]
    names: frozenset[str]
    """The names of the inbox items that ask for these keys."""
    after: str
    """As ``Lane.last_ended``."""

    @property
    def run_key(self) -> str:
        """Dagster makes at most one run for it, even if that fails.

        ``after`` changes it, so that partitions can be requested again after each run.
        """
        said = repr((self.table, self.keys[0], self.keys[-1], sorted(self.names), self.after))
        return hashlib.sha256(said.encode()).hexdigest()


@dataclass(frozen=True)
class Decision:
    """The runs to ask for, and what becomes of other waiting partitions."""

    requests: tuple[Request, ...] = ()
    parked: tuple[Waiting, ...] = ()
    in_runs: tuple[Waiting, ...] = ()
    """Waiting partitions that unfinished runs, backfills or ``requests`` will write."""
    held_by: tuple[str, ...] = ()
    """Other runs and backfills that write waiting partitions."""
    memory: QueueMemory = field(default_factory=QueueMemory)


def waiting_of(items: Mapping[str, Item]) -> list[Waiting]:
    """Returns the requested partitions."""
    return [
        Waiting(*wanted, found.sent_ms / 1000, frozenset(found.names), found.messages)
        for wanted, found in by_partition(items).items()
    ]


def decide(now: float, waiting: Collection[Waiting], lanes: Sequence[Lane], memory: QueueMemory, most: int) -> Decision:
    """Decides which runs to ask for. most: the most unfinished runs of the queue, over all tables.

    Tables take turns: first those without an earlier request, the longest-waiting one first; then the least recently
    served.
    """
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


def _in_turn(views: Mapping[str, _View], memory: QueueMemory) -> list[str]:
    waiting = [table for table, view in views.items() if view.ready]
    oldest = {table: min(one.since for one in views[table].ready) for table in waiting}
    return sorted(waiting, key=lambda table: (memory.served.get(table, 0.0), oldest[table]))


class _View:
    """One lane, with the partitions that wait for it."""

    def __init__(self, now: float, lane: Lane, waiting: Sequence[Waiting], memory: QueueMemory) -> None:
        self.now, self.lane, self.waiting, self.memory = now, lane, waiting, memory
        self.limit = memory.limits.get(lane.table)
        self.breaker = memory.breakers.get(lane.table, Breaker(0))
        self.position = {key: at for at, key in enumerate(lane.keys)}
        self.parked = [one for one in waiting if one.is_parked(lane.pace, memory)]
        self.failures = {one.key: memory.strikes_of(one.wanted).count for one in waiting}
        self.ready = [one for one in waiting if self._is_ready(one)]

    def in_runs(self, asked: Collection[tuple[str, str]]) -> list[Waiting]:
        """Returns Decision.in_runs for this table. asked: table and key of each partition in the new requests."""
        return [one for one in self.waiting if one.wanted in asked or self.lane.is_busy([one.key])]

    @property
    def held_by(self) -> list[str]:
        waiting = [one.key for one in self.waiting]
        # meet() is true for a run of the whole table even if nothing waits.
        return [name for name, keys in self.lane.others.items() if waiting and meet(keys, waiting)]

    def _is_ready(self, one: Waiting) -> bool:
        # A key that does not exist yet goes on waiting.
        waits = self.now < self.memory.strikes_of(one.wanted).until or one.is_parked(self.lane.pace, self.memory)
        return one.key in self.position and not waits and not self.lane.is_busy([one.key])

    def requests(self) -> Iterator[Request]:
        """Yields ranges, the longest first; then each failed partition alone. If the breaker is open, see _probe().

        Overdue keys go first: in a busy table, new longer ranges would always precede them.
        """
        if self.breaker.is_open:
            yield from self._probe()
            return
        free = self.lane.pace.runs - len(self.lane.asked)
        ready = {one.key: one for one in self.ready}
        fresh = {key: one for key, one in ready.items() if not self.failures[key]}
        struck = sorted(ready.keys() - fresh.keys(), key=lambda key: ready[key].since)
        ranges = [*(self._ranges(fresh) if self._is_worth(fresh.values()) else ()), *([key] for key in struck)]
        # A stable sort: ranges that are not overdue keep their order.
        ranges.sort(key=lambda keys: self._overdue_since(keys, ready))
        yield from (self._request(keys, ready) for keys in ranges[: max(0, free)])

    def _probe(self) -> Iterator[Request]:
        """Yields a single partition if the breaker's wait is over, and no requested run of the table is unfinished."""
        if self.ready and not self.lane.asked and self.now >= self.breaker.until:
            # The one that failed least often is the likeliest to succeed.
            one = min(self.ready, key=lambda one: (self.failures[one.key], one.since, self.position[one.key]))
            yield self._request([one.key], {one.key: one})

    def _overdue_since(self, keys: Sequence[str], ready: Mapping[str, Waiting]) -> float:
        """Returns the time of the oldest message; for each range that is not overdue, the same time: now."""
        oldest = min(ready[key].since for key in keys)
        return oldest if self.now - oldest >= OVERDUE else self.now

    def _is_worth(self, fresh: Collection[Waiting]) -> bool:
        """Whether partitions without failures are many enough, or have waited long enough, for runs of their own."""
        if self.limit and self.now < self.limit.until:
            return False
        pace = self.lane.pace
        oldest = min((one.since for one in fresh), default=self.now)
        return len(fresh) >= pace.floor or self.now - oldest >= pace.latency.total_seconds()

    def _request(self, keys: Sequence[str], ready: Mapping[str, Waiting]) -> Request:
        names = frozenset(name for key in keys for name in ready[key].names)
        return Request(self.lane.table, tuple(keys), names, self.lane.last_ended)

    def _ranges(self, fresh: Mapping[str, Waiting]) -> list[Sequence[str]]:
        """Returns ranges of consecutive keys in one row, the longest first. Pace and limit bound their length."""
        most = min(self.lane.pace.ceiling, self.limit.most if self.limit else self.lane.pace.ceiling)
        found: list[list[int]] = []
        for at in sorted(self.position[key] for key in fresh):
            if found and len(found[-1]) < most and self._follows(found[-1][-1], at):
                found[-1].append(at)
            else:
                found.append([at])
        ranges = [self.lane.keys[part[0] : part[-1] + 1] for part in found]
        return sorted(ranges, key=lambda keys: (-len(keys), self.position[keys[0]]))

    def _follows(self, last: int, at: int) -> bool:
        keys, row_of = self.lane.keys, self.lane.row_of
        return at == last + 1 and row_of(keys[last]) == row_of(keys[at])


@dataclass(frozen=True)
class RequestLetter:
    """A dead letter that, if sent again, asks once more."""

    body: str
    reason: str
    names: frozenset[str]


def given_up(
    items: Mapping[str, Item],
    keys: Mapping[str, Collection[str]],
    failing: Mapping[Wanted, str],
    now: float,
    *,
    is_full: bool,
) -> list[RequestLetter]:
    """Returns letters about the items that must not wait any longer.

    keys: existing partitions of declared tables. failing: reasons why failures hold partitions back. In a full inbox,
    even new items that can't run make room for others; only those of undeclared tables stay, for DEPLOYED.
    """
    due: list[tuple[int, str, str]] = []
    for name, item in items.items():
        is_declared = item.table in keys
        is_there = is_declared and item.key in keys[item.table]
        patience_if_full = timedelta() if is_declared else DEPLOYED
        patience = (patience_if_full if is_full else PATIENCE).total_seconds()
        if not is_there and item.received_ms <= (now - patience) * 1000:
            problem = "does not exist" if is_declared else "belongs to a table that is not declared here"
            due.append((item.received_ms, name, problem))
        elif is_full and (item.table, item.key) in failing:
            due.append((item.received_ms, name, failing[item.table, item.key]))
    why = "the inbox is full" if is_full else f"{PATIENCE.days} days after it arrived"
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for _, name, problem in sorted(due)[:AT_ONCE]:
        found[items[name].table, f"{problem}; {why}"].append(name)
    return [
        _letter(table, {name: items[name].key for name in some}, reason)
        for (table, reason), names in found.items()
        for some in _parts(names, items)
    ]


def _parts(names: Sequence[str], items: Mapping[str, Item]) -> list[list[str]]:
    """Divides names among letters, so that the keys of each letter have at most LONGEST bytes."""
    parts: list[list[str]] = [[]]
    size = 0
    for name in names:
        bytes_ = len(f"{_json(items[name].key)}, ".encode())
        size += bytes_
        if parts[-1] and size > LONGEST:
            parts.append([])
            size = bytes_
        parts[-1].append(name)
    return parts


def _letter(table: str, key_of: Mapping[str, str], reason: str) -> RequestLetter:
    keys = sorted(set(key_of.values()))
    # A table without partitions has only the key "".
    asked = {"table": table, "partitions": keys} if any(keys) else {"table": table}
    said = f"table {table}: {keys_text(keys, listed=LISTED)} {reason}"
    return RequestLetter(_json(asked), said, frozenset(key_of))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)

"""One tick of the queue's sensor: take messages, look at what waits and runs, decide, remember.
What it yields reaches Dagster by sensor.py."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lakehouse_assets.inbox.inbox import Inbox, Item
from lakehouse_assets.queue.decide import Decision, Request, Waiting, decide, parked
from lakehouse_assets.queue.intake import Depth, Intake, Taken
from lakehouse_assets.queue.runs import Pending, Runs, pace_of
from lakehouse_assets.queue.state import State, StateStore
from lakehouse_assets.queue.strikes import learn

FULL = 10_000
"""Objects in the inbox, above which nothing is received: SQS keeps messages better than a folder."""


@dataclass
class Told:
    """What a tick did and found. depth: of the queue, None if it could not be read. is_full: so nothing was received.
    waiting: the partitions that messages ask for. undeclared: how many more, of tables that are not declared by now.
    state: as it was kept. faults: what went wrong, by what was being done; all else was done."""

    taken: Taken = field(default_factory=Taken)
    depth: Depth | None = None
    is_full: bool = False
    waiting: Sequence[Waiting] = ()
    undeclared: int = 0
    decision: Decision | None = None
    state: State = field(default_factory=State)
    faults: dict[str, Exception] = field(default_factory=dict)

    @property
    def requests(self) -> Sequence[Request]:
        return self.decision.requests if self.decision else ()

    @property
    def left(self) -> int:
        """How many partitions wait for their time, or for others: none is asked for, and none is parked."""
        known = (*self.parked, *self.in_runs)
        return len({(one.table, one.key) for one in self.waiting} - {(one.table, one.key) for one in known})

    @property
    def in_runs(self) -> Sequence[Waiting]:
        return self.decision.in_runs if self.decision else ()

    @property
    def held_by(self) -> Sequence[str]:
        return self.decision.held_by if self.decision else ()

    @property
    def parked(self) -> Sequence[Waiting]:
        return self.decision.parked if self.decision else ()


@dataclass(frozen=True)
class Tick:
    """now: seconds since 1970, of this process' clock. most: runs of the queue's at once, over all tables."""

    intake: Intake
    inbox: Inbox
    store: StateStore
    runs: Runs
    now: float
    most: int

    def run(self) -> Told:
        """Raises what the storage raises where the inbox or the state can't be read or kept: nothing is asked for then,
        since nobody would remember it."""
        told = Told()
        before = self.store.read()
        self.runs.look()
        items = self.inbox.waiting()
        told.is_full = len(items) > FULL and self._runnable(items, before) > FULL
        if (
            self._attempt(told, "the depth of the queue could not be read", lambda: self._depth(told))
            and not told.is_full
        ):
            self._attempt(told, "messages could not be taken", lambda: self._take(told))
        if told.taken.received:
            items = self.inbox.waiting()
        found, declared = waiting_of(items), {table.identifier for table in self.runs.tables}
        told.waiting = [one for one in found if one.table in declared]
        told.undeclared = len(found) - len(told.waiting)
        told.decision, told.state = self._decided(before, told.waiting)
        if told.state != before:
            self.store.write(told.state)
        return told

    def _runnable(self, items: Mapping[str, Item], state: State | None) -> int:
        """Objects that a run may remove without anybody's help: not those of parked partitions, of tables that are not
        declared, or of days to come."""
        waiting, memory = waiting_of(items), (state or State()).memory
        known = {table.identifier: table for table in self.runs.tables}
        waiting = [one for one in waiting if one.table in known]
        keys = {name: set(self.runs.keys_of(known[name])) for name in {one.table for one in waiting}}
        left = [one for one in waiting if one.key in keys[one.table]]
        return sum(len(one.names) for one in left if one not in parked([one], pace_of(known[one.table]), memory))

    def _depth(self, told: Told) -> None:
        told.depth = self.intake.depth()

    def _take(self, told: Told) -> None:
        told.taken = self.intake.take()
        told.faults |= told.taken.faults

    def _attempt(self, told: Told, what: str, do: Callable[[], None]) -> bool:
        """Whether SQS answered: if it is out of reach, the tick's time is for what waits."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            do()
        except (BotoCoreError, ClientError, OSError) as error:
            told.faults[what] = error
            return isinstance(error, ClientError)
        return True

    def _decided(self, before: State | None, waiting: Sequence[Waiting]) -> tuple[Decision, State]:
        state = State(learned=tuple(run.run_id for run in self.runs.ended)) if before is None else before
        lanes = self.runs.lanes({one.table for one in waiting}, state.pending, self.now)
        paces = {table.identifier: pace_of(table) for table in self.runs.tables}
        memory = learn(state.memory, self.runs.outcomes(state.learned, waiting), paces, self.now)
        memory = memory.of_waiting({(one.table, one.key) for one in waiting})
        decision = decide(self.now, waiting, lanes, memory, self.most)
        asked = [Pending(one.run_key, one.table, one.keys, self.now) for one in decision.requests]
        return decision, replace(
            state,
            memory=decision.memory,
            learned=tuple(run.run_id for run in self.runs.ended),
            pending=(*self.runs.still_pending(state.pending, self.now), *asked),
        )


def waiting_of(items: Mapping[str, Item]) -> list[Waiting]:
    """The partitions that these inbox objects, by name, ask for."""
    by_key: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, item in items.items():
        by_key[item.table, item.key].append(name)
    return [_waiting(table, key, names, items) for (table, key), names in by_key.items()]


def _waiting(table: str, key: str, names: Collection[str], items: Mapping[str, Item]) -> Waiting:
    found = [items[name] for name in names]
    since, messages = min(item.sent_ms for item in found) / 1000, sum(item.messages for item in found)
    return Waiting(table, key, since, frozenset(names), messages)

"""One tick of the queue's sensor: take messages, look at what waits and runs, decide, remember.

What it yields reaches Dagster by sensor.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lakehouse_assets.inbox.inbox import Inbox, Item
from lakehouse_assets.queue.claim import AnothersQueue, Claim
from lakehouse_assets.queue.decide import Decision, Request, Waiting, decide
from lakehouse_assets.queue.given_up import given_up
from lakehouse_assets.queue.intake import Depth, Intake, Taken, in_threads
from lakehouse_assets.queue.route import Wanted
from lakehouse_assets.queue.runs import Pending, Runs, pace_of
from lakehouse_assets.queue.state import State, StateStore
from lakehouse_assets.queue.strikes import learn

FULL = 10_000
"""The number of objects in the inbox above which nothing is received: SQS keeps messages better than a folder, and
a new process must be able to read all of them within one tick. What the objects ask for does not matter."""


@dataclass
class Told:
    """The result of a tick: what it did and found."""

    taken: Taken = field(default_factory=Taken)
    depth: Depth | None = None
    """The depth of the queue; None if it was not read."""
    is_full: bool = False
    """Whether the inbox is full, so that nothing was received."""
    waiting: Sequence[Waiting] = ()
    """The partitions that messages ask for."""
    undeclared: int = 0
    """How many more partitions they ask for, of tables that are not declared by now."""
    decision: Decision | None = None
    state: State = field(default_factory=State)
    """The state that was kept."""
    faults: dict[str, Exception] = field(default_factory=dict)
    """What went wrong, by what was being done; all else was done."""

    @property
    def requests(self) -> Sequence[Request]:
        """The runs that the tick asks for; none before it has decided."""
        return self.decision.requests if self.decision else ()

    @property
    def left(self) -> int:
        """How many partitions wait for their time, or for others: they are in no run, and are not parked."""
        known = (*self.parked, *self.in_runs)
        return len({(one.table, one.key) for one in self.waiting} - {(one.table, one.key) for one in known})

    @property
    def in_runs(self) -> Sequence[Waiting]:
        """The waiting partitions that a run or a backfill is about to write; none before the tick has decided."""
        return self.decision.in_runs if self.decision else ()

    @property
    def held_by(self) -> Sequence[str]:
        """The names of the runs and backfills that the queue has not asked for and that write what waits."""
        return self.decision.held_by if self.decision else ()

    @property
    def parked(self) -> Sequence[Waiting]:
        """The partitions that wait for a person or a new message; none before the tick has decided."""
        return self.decision.parked if self.decision else ()

    def failing(self) -> Mapping[Wanted, str]:
        """Says why partitions are not run after failures: they failed too often, or their table always fails."""
        memory, in_runs = self.state.memory, {(one.table, one.key) for one in self.in_runs}
        open_ = {table: breaker.run for table, breaker in memory.breakers.items() if breaker.is_open}
        waiting = [(one.table, one.key) for one in self.waiting if one.table in open_]
        of_table = {
            (table, key): f"waits as the table always fails, the last time in run {open_[table]}"
            for table, key in waiting
            if (table, key) not in in_runs
        }
        parked = [(one.table, one.key) for one in self.parked]
        return of_table | {one: f"failed too often: {memory.strikes[one].reason}" for one in parked}


@dataclass(frozen=True)
class QueueTick:
    """One tick, with what it works on."""

    claim: Claim
    intake: Intake
    inbox: Inbox
    store: StateStore
    runs: Runs
    now: float
    """The time by this process' clock, seconds since 1970."""
    most: int
    """The most runs that the queue may have at once, over all tables."""

    def run(self) -> Told:
        """Does the tick.

        Raises what the storage raises where the inbox or the state can't be read or kept: nothing is asked for then,
        since nobody would remember it.
        """
        told, began = Told(), self.intake.monotonic()
        before = self.store.read()
        self.runs.look()
        found_there = self.inbox.look()
        self.inbox.tidy(found_there)
        items = found_there.items
        told.is_full = found_there.objects > FULL
        self._attempt(told, "nothing was received", self.claim.hold)
        is_ours = not told.faults
        answers = is_ours and self._attempt(told, "the depth of the queue could not be read", lambda: self._depth(told))
        if answers and not told.is_full:
            self._attempt(told, "messages could not be taken", lambda: self._take(told, began))
        if told.taken.received:
            items = self.inbox.waiting()
        found, declared = waiting_of(items), {table.identifier for table in self.runs.tables}
        told.waiting = [one for one in found if one.table in declared]
        told.undeclared = len(found) - len(told.waiting)
        told.decision, told.state = self._decided(before, told.waiting)
        if told.state != before:
            self.store.write(told.state)
        if answers:
            self._give_up(told, items)
        return told

    def _depth(self, told: Told) -> None:
        told.depth = self.intake.depth()

    def _take(self, told: Told, began: float) -> None:
        """Takes messages. began: when the tick did, by the intake's monotonic clock."""
        told.taken = self.intake.take(spent=self.intake.monotonic() - began)
        told.faults |= told.taken.faults

    def _give_up(self, told: Told, items: Mapping[str, Item]) -> None:
        """Sends what nobody will run to the dead-letter queue, and only then removes it from the inbox.

        Raises what the storage raises.
        """
        waiting = {item.table for item in items.values()}
        declared = [table for table in self.runs.tables if table.identifier in waiting]
        keys = {table.identifier: frozenset(self.runs.keys_of(table)) for table in declared}
        letters = given_up(items, keys, told.failing(), self.now, is_full=told.is_full)
        sent = in_threads(lambda letter: self.intake.bury(letter.body, letter.reason, told.taken), letters)
        told.faults |= told.taken.faults
        self.inbox.remove(
            name for letter, is_sent in zip(letters, sent, strict=True) if is_sent for name in letter.names
        )

    def _attempt(self, told: Told, what: str, do: Callable[[], None]) -> bool:
        """Does something with SQS, notes what went wrong, and tells whether SQS answered.

        If SQS is out of reach, the tick's time is for what waits.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            do()
        except (AnothersQueue, BotoCoreError, ClientError, OSError) as error:
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
    """Returns the partitions that these inbox items ask for. items: by name."""
    by_key: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, item in items.items():
        by_key[item.table, item.key].append(name)
    return [_waiting(table, key, names, items) for (table, key), names in by_key.items()]


def _waiting(table: str, key: str, names: Collection[str], items: Mapping[str, Item]) -> Waiting:
    found = [items[name] for name in names]
    since, messages = min(item.sent_ms for item in found) / 1000, sum(item.messages for item in found)
    return Waiting(table, key, since, frozenset(names), messages)

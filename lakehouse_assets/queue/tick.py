"""One tick of the queue's sensor: take messages, look at what waits and runs, decide, remember.

What it yields reaches Dagster by sensor.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lakehouse_assets.inbox.inbox import Item
from lakehouse_assets.queue.decide import Decision, Waiting, decide, given_up, waiting_of
from lakehouse_assets.queue.intake import Intake, TakenMessages
from lakehouse_assets.queue.messages import Wanted
from lakehouse_assets.queue.runs import Runs, pace_of
from lakehouse_assets.queue.strikes import MemoryStore, QueueMemory, learn

FULL = 10_000
"""The number of objects in the inbox above which nothing is received: a source keeps messages better than a folder.
What the objects ask for does not matter. A tick reads no more of them that are new to its process, so that it ends in
time also where older code has left more; the next tick reads on."""


@dataclass
class Told:
    """The result of a tick: what it did and found."""

    taken: TakenMessages = field(default_factory=TakenMessages)
    depth: dict[str, int] = field(default_factory=dict)
    """The depth of the source; empty if it was not read."""
    is_full: bool = False
    """Whether the inbox is full, so that nothing was received."""
    waiting: Sequence[Waiting] = ()
    """The partitions that messages ask for, as far as the inbox has been read."""
    undeclared: int = 0
    """How many more partitions they ask for, of tables that are not declared by now."""
    decision: Decision = field(default_factory=Decision)

    @property
    def faults(self) -> Mapping[str, Exception]:
        """The errors by what was being done; all else was done."""
        return self.taken.faults

    @property
    def left(self) -> int:
        """How many partitions wait for their time, or for others: they are in no run, and are not parked."""
        known = (*self.decision.parked, *self.decision.in_runs)
        return len({one.wanted for one in self.waiting} - {one.wanted for one in known})

    def failing(self) -> Mapping[Wanted, str]:
        """Says why partitions are not run after failures: they failed too often, or their table always fails."""
        memory, in_runs = self.decision.memory, {one.wanted for one in self.decision.in_runs}
        open_ = {table: breaker.run for table, breaker in memory.breakers.items() if breaker.is_open}
        of_table = {
            one.wanted: f"waits as the table always fails, the last time in run {open_[one.table]}"
            for one in self.waiting
            if one.table in open_ and one.wanted not in in_runs
        }
        parked = {one.wanted for one in self.decision.parked} - in_runs
        return of_table | {one: f"failed too often: {memory.strikes[one].reason}" for one in parked}


@dataclass(frozen=True)
class QueueTick:
    """One tick, with what it works on."""

    intake: Intake
    """Made for this tick: its time counts from then."""
    owner: str
    """The name of this code location, by which the source is claimed."""
    store: MemoryStore
    runs: Runs
    now: float
    """The time by this process' clock, seconds since 1970."""
    most: int
    """The most runs that the queue may have at once, over all tables."""

    def run(self) -> Told:
        """Does the tick.

        Raises what the storage raises where the inbox can't be read, or the memory can't be read or kept: nothing is
        asked for then, since nobody would remember it. Whatever else fails is told, and keeps no run from being asked
        for.
        """
        told, inbox, source = Told(self.intake.taken), self.intake.inbox, self.intake.source
        before = self.store.read()
        self.runs.look()
        found = inbox.look(most=FULL)
        told.is_full = found.objects > FULL
        self._attempt("the inbox could not be tidied", lambda: inbox.tidy(found))
        is_ours = self._attempt("nothing was received", lambda: source.claim(self.owner))
        if is_ours:
            self._attempt("the depth of the queue could not be read", lambda: told.depth.update(source.depth()))
        if is_ours and not told.is_full:
            self._attempt("messages could not be taken", self.intake.take)
        if told.taken.received:
            found = inbox.look(most=FULL)
        waiting, declared = waiting_of(found.items), {table.identifier for table in self.runs.tables}
        told.waiting = [one for one in waiting if one.table in declared]
        told.undeclared = len(waiting) - len(told.waiting)
        told.decision = self._decided(before, told.waiting, is_whole=not found.unread)
        if told.decision.memory != before:
            self.store.write(told.decision.memory)
        if is_ours:
            self._attempt("what nobody will run stays in the inbox", lambda: self._give_up(told, found.items))
        return told

    def _give_up(self, told: Told, items: Mapping[str, Item]) -> None:
        """Rejects what nobody will run, and only then removes it from the inbox. Raises what the storage raises."""
        waiting = {item.table for item in items.values()}
        declared = [table for table in self.runs.tables if table.identifier in waiting]
        keys = {table.identifier: frozenset(self.runs.keys_of(table)) for table in declared}
        letters = given_up(items, keys, told.failing(), self.now, is_full=told.is_full)
        sent = self.intake.reject([(letter.body, letter.reason) for letter in letters])
        gone = (letter.names for letter, is_sent in zip(letters, sent, strict=True) if is_sent)
        self.intake.inbox.remove(name for names in gone for name in names)

    def _attempt(self, what: str, do: Callable[[], None]) -> bool:
        """Does something that the runs to ask for do not depend on, and tells whether it was done. Errors are noted."""
        try:
            do()
        except Exception as error:  # the source's, and whatever the storage raises
            self.intake.taken.faults[what] = error
            return False
        return True

    def _decided(self, before: QueueMemory | None, waiting: Sequence[Waiting], *, is_whole: bool) -> Decision:
        """Decides what to ask for, and what to remember. is_whole: whether nothing else waits for declared tables."""
        ended = tuple(run.run_id for run in self.runs.ended)
        memory = QueueMemory(learned=ended) if before is None else before
        paces = {table.identifier: pace_of(table) for table in self.runs.tables}
        memory = learn(memory, self.runs.outcomes(memory.learned, waiting), paces, self.now)
        if is_whole:
            memory = memory.of_waiting({one.wanted for one in waiting})
        lanes = self.runs.lanes({one.table for one in waiting})
        return decide(self.now, waiting, lanes, replace(memory, learned=ended), self.most)

"""One tick of the queue: takes messages, learns from ended runs, asks for new ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import dagster as dg

from lakehouse_assets.declare.options import Pace
from lakehouse_assets.declare.table import Table
from lakehouse_assets.extensions.queue.decide import Decision, Lane, Waiting, decide, given_up, waiting_of
from lakehouse_assets.extensions.queue.hook import QueueRecords
from lakehouse_assets.extensions.queue.inbox import Item
from lakehouse_assets.extensions.queue.intake import Intake, TakenMessages
from lakehouse_assets.extensions.queue.messages import Wanted
from lakehouse_assets.extensions.queue.strikes import EndedRun, MemoryStore, QueueMemory, learn
from lakehouse_assets.run.in_flight import ENDED, FIRST, LAST, PARTITION, Flight, flights, tags_of_location
from lakehouse_assets.run.plan import Plans
from lakehouse_assets.run.resume import chain_head

QUEUE_TAG, TABLE_TAG = "lakehouse/queue", "lakehouse/queue_table"
"""Tags of runs that the queue requested."""
LOOKED_AT = 500
"""The most ended runs that a tick looks at: far more than end between ticks."""


@dataclass(frozen=True)
class Runs:
    """The queue's runs in Dagster's storage."""

    instance: dg.DagsterInstance
    queue: str
    """Its name, as in QUEUE_TAG."""
    tables: Sequence[Table]
    plans_of: Callable[[str], Plans]
    """Returns a table's plans, by its identifier."""
    location: str | None
    _keys: dict[str, Sequence[str]] = field(default_factory=dict)

    def lanes(self, names: Collection[str]) -> list[Lane]:
        """Returns the lanes of these tables, and of those with runs.

        They include the runs that the last tick requested: Dagster makes these before the next tick, even if its daemon
        died.
        """
        own = {name for name, found in self._flights.items() if any(map(self._is_own, found))}
        return [self._lane(table) for table in self.tables if table.identifier in {*names, *own}]

    def _lane(self, table: Table) -> Lane:
        found = self._flights.get(table.identifier, [])
        asked = [flight.keys for flight in found if self._is_own(flight)]
        others = {flight.name: flight.keys for flight in found if not self._is_own(flight)}
        last = next((run.run_id for run in self._latest(1, {TABLE_TAG: table.identifier})), "")
        return Lane(table.identifier, pace_of(table), self.keys_of(table), asked, others, _row_of(table), last)

    def keys_of(self, table: Table) -> Sequence[str]:
        """Returns existing keys, in order; ("",) without partitions."""
        if table.identifier not in self._keys:
            partitions = table.partitions
            self._keys[table.identifier] = (
                ("",) if partitions is None else partitions.get_partition_keys(dynamic_partitions_store=self.instance)
            )
        return self._keys[table.identifier]

    def _is_own(self, flight: Flight) -> bool:
        return flight.run is not None and flight.run.tags.get(QUEUE_TAG) == self.queue

    @cached_property
    def _flights(self) -> Mapping[str, list[Flight]]:
        return flights(self.instance, self.tables, self.location)

    @cached_property
    def ended(self) -> Sequence[dg.DagsterRun]:
        """The queue's last LOOKED_AT ended runs, the latest first."""
        return self._latest(LOOKED_AT, {})

    def _latest(self, limit: int, tags: Mapping[str, str]) -> Sequence[dg.DagsterRun]:
        # Another code location may have a queue of the same name elsewhere.
        of_queue = {QUEUE_TAG: self.queue, **tags_of_location(self.location)}
        filters = dg.RunsFilter(tags={**of_queue, **tags}, statuses=ENDED)
        found = self.instance.get_run_records(filters, limit=limit, order_by="update_timestamp", ascending=False)
        return [record.dagster_run for record in found]

    def look(self) -> None:
        """Reads active and ended runs; call it before reading the inbox.

        A run that ends in between counts as active. In the other order, items that it has removed would seem to wait
        without a run, and its work would be repeated.
        """
        # Both are cached properties: the first access reads.
        self._flights  # noqa: B018
        self.ended  # noqa: B018

    def outcomes(self, known: Collection[str], waiting: Collection[Waiting]) -> list[EndedRun]:
        """Returns ended runs whose ids are not ``known``, oldest first. waiting: for runs without a readable plan."""
        return [found for run in reversed(self.ended) if run.run_id not in known for found in self._ended(run, waiting)]

    def _ended(self, run: dg.DagsterRun, waiting: Collection[Waiting]) -> Iterator[EndedRun]:
        table = next((t for t in self.tables if t.key in (run.asset_selection or ())), None)
        # The table is no longer declared.
        if table is None:
            return
        recorded, token = QueueRecords(self.plans_of(table.identifier)), chain_head(self.instance, run)
        covers, failed = recorded.covers(token), recorded.failed(token)
        covered = covers.names() if covers else self._asked_for(run, table, waiting)
        # The record is from an earlier run of the same chain.
        if failed and failed.run_id != run.run_id:
            failed = None
        bad = frozenset(failed.keys if failed else ()) & covered.keys()
        published = frozenset(failed.published if failed else ()) & covered.keys()
        reason = failed.reason if failed else "the run ended without giving a reason"
        yield EndedRun(run.run_id, table.identifier, run.status, covered, bad, reason, published)

    def _asked_for(
        self, run: dg.DagsterRun, table: Table, waiting: Collection[Waiting]
    ) -> Mapping[str, frozenset[str]]:
        """Returns what waits for the partitions in a run's tags: it has no readable plan."""
        keys = self.keys_of(table)
        ends = [run.tags.get(name) or run.tags.get(PARTITION, "") for name in (FIRST, LAST)]
        # A partition of the range may be gone.
        if not set(ends) <= set(keys):
            return {}
        wanted = set(keys[keys.index(ends[0]) : keys.index(ends[1]) + 1])
        names = {one.key: one.names for one in waiting if one.table == table.identifier}
        return {key: names.get(key, frozenset()) for key in wanted}


def pace_of(table: Table) -> Pace:
    """Returns the declared pace, or the default."""
    return table.arrivals.pace if table.arrivals else Pace()


def _row_of(table: Table) -> Callable[[str], str]:
    """Returns Lane.row_of: a Dagster range is contiguous only within the last dimension."""
    return (lambda key: key.rpartition("|")[0]) if len(table.alignment.parts) > 1 else (lambda _: "")


FULL = 10_000
"""If the inbox has more objects, a tick receives nothing: a source keeps messages better than a folder. A tick also
reads at most this many new objects, to end in time."""


@dataclass
class TickResult:
    """What a tick did and found."""

    taken: TakenMessages = field(default_factory=TakenMessages)
    depth: dict[str, int] = field(default_factory=dict)
    """Messages in the queue, by state."""
    is_full: bool = False
    waiting: Sequence[Waiting] = ()
    """For declared tables."""
    undeclared: int = 0
    """Waiting partitions of other tables."""
    decision: Decision = field(default_factory=Decision)

    @property
    def faults(self) -> Mapping[str, Exception]:
        """Errors by action; the rest was done."""
        return self.taken.faults

    @property
    def left(self) -> int:
        """Partitions neither in runs nor parked."""
        known = (*self.decision.parked, *self.decision.in_runs)
        return len({one.wanted for one in self.waiting} - {one.wanted for one in known})

    def failing(self) -> Mapping[Wanted, str]:
        """Returns why failures hold partitions back."""
        memory, in_runs = self.decision.memory, {one.wanted for one in self.decision.in_runs}
        open_ = {table: breaker.run for table, breaker in memory.breakers.items() if breaker.is_open}
        of_table = {
            one.wanted: f"waits because the table always fails, most recently in run {open_[one.table]}"
            for one in self.waiting
            if one.table in open_ and one.wanted not in in_runs
        }
        parked = {one.wanted for one in self.decision.parked} - in_runs
        return of_table | {one: f"failed too often: {memory.strikes[one].reason}" for one in parked}


@dataclass(frozen=True)
class QueueTick:
    """One tick and its inputs."""

    intake: Intake
    """Its time limit starts when it is made."""
    owner: str
    """The code location that claims the queue."""
    store: MemoryStore
    runs: Runs
    now: float
    """Epoch seconds."""
    most: int
    """The most unfinished runs of the queue."""

    def run(self) -> TickResult:
        """Does the tick; notes errors that need not stop requests.

        Raises the storage's errors if the inbox or the memory can't be used: nobody would remember requests.
        """
        result, inbox, source = TickResult(self.intake.taken), self.intake.inbox, self.intake.source
        before = self.store.read()
        self.runs.look()
        found = inbox.look(most=FULL)
        result.is_full = found.objects > FULL
        self._attempt("the inbox could not be tidied", lambda: inbox.tidy(found))
        is_ours = self._attempt("nothing was received", lambda: source.claim(self.owner))
        if is_ours:
            self._attempt("the depth of the queue could not be read", lambda: result.depth.update(source.depth()))
        if is_ours and not result.is_full:
            self._attempt("messages could not be taken", self.intake.take)
        if result.taken.received:
            # Look again, to see what was received.
            found = inbox.look(most=FULL)
        waiting, declared = waiting_of(found.items), {table.identifier for table in self.runs.tables}
        result.waiting = [one for one in waiting if one.table in declared]
        result.undeclared = len(waiting) - len(result.waiting)
        result.decision = self._decided(before, result.waiting, is_whole=not found.unread)
        if result.decision.memory != before:
            self.store.write(result.decision.memory)
        if is_ours:
            self._attempt("requests that will never run stay in the inbox", lambda: self._give_up(result, found.items))
        return result

    def _give_up(self, result: TickResult, items: Mapping[str, Item]) -> None:
        """Rejects what nobody will run, and only then removes it."""
        waiting = {item.table for item in items.values()}
        declared = [table for table in self.runs.tables if table.identifier in waiting]
        keys = {table.identifier: frozenset(self.runs.keys_of(table)) for table in declared}
        letters = given_up(items, keys, result.failing(), self.now, is_full=result.is_full)
        sent = self.intake.reject([(letter.body, letter.reason) for letter in letters])
        gone = (letter.names for letter, is_sent in zip(letters, sent, strict=True) if is_sent)
        self.intake.inbox.remove(name for names in gone for name in names)

    def _attempt(self, what: str, do: Callable[[], None]) -> bool:
        """Returns whether it succeeds. what: the name of the fault if it fails."""
        try:
            do()
        except Exception as error:  # the source's, and whatever the storage raises
            self.intake.taken.faults[what] = error
            return False
        return True

    def _decided(self, before: QueueMemory | None, waiting: Sequence[Waiting], *, is_whole: bool) -> Decision:
        """Learns from the ended runs, and decides.

        is_whole: whether ``waiting`` is all that waits. If not, the strikes of the others must stay.
        """
        ended = tuple(run.run_id for run in self.runs.ended)
        # Without a memory, nobody knows which runs were counted: those that have ended don't count.
        memory = QueueMemory(learned=ended) if before is None else before
        paces = {table.identifier: pace_of(table) for table in self.runs.tables}
        memory = learn(memory, self.runs.outcomes(memory.learned, waiting), paces, self.now)
        if is_whole:
            memory = memory.of_waiting({one.wanted for one in waiting})
        lanes = self.runs.lanes({one.table for one in waiting})
        return decide(self.now, waiting, lanes, replace(memory, learned=ended), self.most)

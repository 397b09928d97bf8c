"""Reads what Dagster knows of the runs that the queue asked for, and of all else that writes its tables.

What follows from it is decided in decide.py and strikes.py; Dagster's storage is only read here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import dagster as dg

from lakehouse_assets.declare.options import Pace
from lakehouse_assets.declare.table import Table
from lakehouse_assets.queue.decide import Lane, Waiting
from lakehouse_assets.queue.strikes import EndedRun
from lakehouse_assets.run.in_flight import ENDED, FIRST, LAST, PARTITION, Flight, flights, tags_of_location
from lakehouse_assets.run.plan import Plans
from lakehouse_assets.run.resume import chain_head

QUEUE_TAG, TABLE_TAG = "lakehouse/queue", "lakehouse/queue_table"
"""The tags of a run that the queue asked for: the queue's name, and the table's identifier."""
LOOKED_AT = 500
"""The number of ended runs that are looked at; many more than can end between two ticks."""


@dataclass(frozen=True)
class Runs:
    """The runs of the queue's tables, as Dagster's storage has them."""

    instance: dg.DagsterInstance
    queue: str
    """The queue's name."""
    tables: Sequence[Table]
    plans_of: Callable[[str], Plans]
    """Returns what the runs of a table wrote down, by the table's identifier."""
    location: str | None
    """The name of the code location, if it has one."""
    _keys: dict[str, Sequence[str]] = field(default_factory=dict)

    # What is under way

    def lanes(self, names: Collection[str]) -> list[Lane]:
        """Returns the lanes of these tables, and of all tables of which the queue has runs.

        Tables that are not declared here are left out. What the last tick asked for is under way: Dagster makes the
        runs of a tick, also after its daemon died, before it evaluates the sensor again.
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
        """Returns all partition keys that a table has by now, in order; ("",) without partitions."""
        if table.identifier not in self._keys:
            of = table.partitions
            self._keys[table.identifier] = (
                ("",) if of is None else of.get_partition_keys(dynamic_partitions_store=self.instance)
            )
        return self._keys[table.identifier]

    def _is_own(self, flight: Flight) -> bool:
        return flight.run is not None and flight.run.tags.get(QUEUE_TAG) == self.queue

    @cached_property
    def _flights(self) -> Mapping[str, list[Flight]]:
        return flights(self.instance, self.tables, self.location)

    # What has ended

    @cached_property
    def ended(self) -> Sequence[dg.DagsterRun]:
        """The last LOOKED_AT of the queue's runs that ended, the latest first."""
        return self._latest(LOOKED_AT, {})

    def _latest(self, limit: int, tags: Mapping[str, str]) -> Sequence[dg.DagsterRun]:
        # Another code location may have a queue of the same name elsewhere.
        of_queue = {QUEUE_TAG: self.queue, **tags_of_location(self.location)}
        filters = dg.RunsFilter(tags={**of_queue, **tags}, statuses=ENDED)
        found = self.instance.get_run_records(filters, limit=limit, order_by="update_timestamp", ascending=False)
        return [record.dagster_run for record in found]

    def look(self) -> None:
        """Reads what is under way and what has ended; to be called before the inbox is read.

        A run that ends in between has removed its objects, and counts as under way until the next tick. The other way
        round its work would be done again.
        """
        self._flights  # noqa: B018
        self.ended  # noqa: B018

    def outcomes(self, known: Collection[str], waiting: Collection[Waiting]) -> list[EndedRun]:
        """Returns how the runs ended that are not known yet, the oldest first. known: the ids of the others."""
        return [found for run in reversed(self.ended) if run.run_id not in known for found in self._ended(run, waiting)]

    def _ended(self, run: dg.DagsterRun, waiting: Collection[Waiting]) -> Iterator[EndedRun]:
        table = next((t for t in self.tables if t.key in (run.asset_selection or ())), None)
        if table is None:  # no longer declared
            return
        plans, token = self.plans_of(table.identifier), chain_head(self.instance, run)
        covers, failed = plans.covers(token), plans.failed(token)
        covered = covers.names() if covers else self._asked_for(run, table, waiting)
        if failed and failed.run_id != run.run_id:  # an earlier attempt's
            failed = None
        bad = frozenset(failed.keys if failed else ()) & covered.keys()
        reason = failed.reason if failed else "the run ended before it could say why"
        yield EndedRun(run.run_id, table.identifier, run.status, covered, bad, reason)

    def _asked_for(
        self, run: dg.DagsterRun, table: Table, waiting: Collection[Waiting]
    ) -> Mapping[str, frozenset[str]]:
        """Returns what a run covered that ended before it noted that: what waits for the partitions of its tags."""
        keys = self.keys_of(table)
        ends = [run.tags.get(name) or run.tags.get(PARTITION, "") for name in (FIRST, LAST)]
        if not set(ends) <= set(keys):
            return {}
        wanted = set(keys[keys.index(ends[0]) : keys.index(ends[1]) + 1])
        names = {one.key: one.names for one in waiting if one.table == table.identifier}
        return {key: names.get(key, frozenset()) for key in wanted}


def pace_of(table: Table) -> Pace:
    """Returns the declared pace; the default for a table for which only requests ask, and no object's arrival."""
    return table.arrivals.pace if table.arrivals else Pace()


def _row_of(table: Table) -> Callable[[str], str]:
    """Returns the function that gives the row of a key: all its dimensions but the last.

    Dagster's range of keys of several dimensions is the product of its dimensions' ranges: only in one row is it the
    keys that lie between.
    """
    return (lambda key: key.rpartition("|")[0]) if len(table.alignment.parts) > 1 else (lambda _: "")

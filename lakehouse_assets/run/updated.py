"""Which partitions lack what another asset published since they were made, and when Dagster asks for them.
Read from the event log anew at each look, so that no cursor can lose an update. No sensors, and nothing is written."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import dagster as dg
from dagster._core.asset_graph_view.asset_graph_view import AssetGraphView
from dagster._core.definitions.declarative_automation.automation_context import AutomationContext
from dagster._core.definitions.events import AssetKeyPartitionKey
from dagster._core.instance.utils import RUNLESS_RUN_ID
from dagster._core.storage.event_log.base import AssetEventSummaryRecord

from lakehouse_assets.run.resume import chain_head

HOURLY = "0 * * * *"
BATCH = 1000
PAGE = 10_000

Key = str | None
"""A partition key; None for an asset without partitions."""


@dataclass(frozen=True)
class Reading:
    """What a partition was made from.

    after: a storage id of the event log. What was published before that event had been read; of what came later nobody
    knows. runs: what these published themselves had been read too.
    """

    after: int
    runs: frozenset[str] = frozenset()


def outdated(
    published: Iterable[AssetEventSummaryRecord],
    readings: Mapping[Key, Reading],
    never: Reading,
    downstream: Callable[[Collection[Key]], Iterable[Key]],
) -> set[Key]:
    """The keys of which something was published since they read it.

    published: the latest materialization of each upstream partition. never: stands for keys without a reading.
    downstream: the keys that are made of some upstream keys.
    """
    marks = sorted({never.after, *(reading.after for reading in readings.values())})
    found: set[Key] = set()
    events = sorted(published, key=lambda event: event.storage_id)
    # Events of one run between the same two marks are the same to every key: they share a look at the mapping.
    for (older, run), group in groupby(events, key=lambda e: (bisect_left(marks, e.storage_id), e.run_id)):
        if older:
            keys = downstream({event.partition for event in group})
            of_key = ((key, readings.get(key, never)) for key in keys)
            found |= {key for key, reading in of_key if reading.after <= marks[older - 1] and run not in reading.runs}
    return found


class PublishedSinceRead(dg.AutomationCondition[dg.AssetKey]):
    """True for a partition while ``upstream`` has a materialization that the run which made it need not have seen.

    Storage ids of the event log are compared, no clocks: an upstream materialization is logged after its commit, and a
    run reads after it was asked for, so one that was logged before that was read. Asked for, not started: what is
    published while a run waits in the queue makes one run too many, never one too few. A re-execution from failure
    counts from the first run of its chain, whose workers' results it takes. A partition that was never made counts
    from the condition's first evaluation, its only state: history is not asked for because it is missing.
    """

    def __init__(self, *upstream: dg.AssetKey) -> None:
        self._upstream = upstream
        # By asset and run: facts that don't change, kept to look up new runs only.
        self._known: dict[dg.AssetKey, dict[str, Reading | None]] = {}

    @property
    def name(self) -> str:
        return "published_since_read"

    @property
    def description(self) -> str:
        return f"{', '.join(key.to_user_string() for key in self._upstream)} published since this was made"

    def get_node_unique_id(self, **_: object) -> str:
        """The same wherever it stands and whatever it watches: a deployment finds the cursor again."""
        return self.name

    def evaluate(self, context: AutomationContext[dg.AssetKey]) -> dg.AutomationResult[dg.AssetKey]:
        view, key = context.asset_graph_view, context.key
        first = int(context.cursor or context.previous_max_storage_id or context.max_storage_id or 0)
        # Upstream first: what is made meanwhile is newer than what is known of upstream, not older.
        published = {upstream: _latest(view, upstream) for upstream in self._upstream}
        readings = self._readings(view, key)
        found: set[Key] = set()
        for upstream, events in published.items():
            found |= outdated(events, readings, Reading(first), _downstream(view, upstream, key))
        subset = view.get_asset_subset_from_asset_partitions(key, {AssetKeyPartitionKey(key, k) for k in found})
        return dg.AutomationResult(
            context, true_subset=subset.compute_intersection(context.candidate_subset), cursor=str(first)
        )

    def _readings(self, view: AssetGraphView, key: dg.AssetKey) -> dict[Key, Reading]:
        made = _latest(view, key)
        runs = {event.run_id for event in made if event.run_id != RUNLESS_RUN_ID}
        before = self._known.get(key, {})
        known = {run: before[run] for run in runs & before.keys()}
        known |= _planned(view.instance, key, sorted(runs - known.keys()))
        self._known[key] = known
        # Reported without a run, or by one that had not planned it: up to date with what was published by then.
        return {event.partition: known.get(event.run_id) or Reading(event.storage_id) for event in made}


def when_updated(*upstream: dg.AssetKey, again: str = HOURLY) -> dg.AutomationCondition:
    """A partition is asked for when a partition of ``upstream`` that it is made of was published since it was made.

    ``AutomationCondition.eager()`` looks at the newest partition only, and forgets what is published while it waits or
    a run works; here every day of the history counts, but only the ones touched: nothing is asked for because it is
    missing, and an update of another dependency (a whole dimension, the drop zone) does not ask for the whole history.
    Waits while a dependency is missing or running. What is outdated still after it was asked for, because its run
    failed or was terminated, is asked for again at the next tick of ``again`` (cron, UTC), or when ``upstream`` is
    published again. Needs a sensor with ``use_user_code_server``.
    """
    condition = dg.AutomationCondition
    published = condition.any_deps_match(condition.newly_updated()).allow(dg.AssetSelection.assets(*upstream))
    asked = condition.newly_requested().since(condition.cron_tick_passed(again) | condition.newly_updated() | published)
    return (
        PublishedSinceRead(*upstream)
        & ~asked.with_label(f"asked for since the last tick of {again}")
        & ~condition.any_deps_missing()
        & ~condition.any_deps_in_progress()
        & ~condition.in_progress()
    ).with_label(f"{', '.join(key.to_user_string() for key in upstream)} updated")


def _latest(view: AssetGraphView, key: dg.AssetKey) -> list[AssetEventSummaryRecord]:
    """The latest materialization of each partition, or of the asset."""
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    if view.asset_graph.get(key).partitions_def is None:
        return list(view.instance.get_asset_event_summary_records(kind, asset_key=key, limit=1))
    ids = sorted(view.instance.get_latest_storage_id_by_partition(key, kind).values())
    batches = (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))
    records = (view.instance.get_asset_event_summary_records(kind, key, storage_ids=batch) for batch in batches)
    return [record for batch in records for record in batch]


def _planned(instance: dg.DagsterInstance, key: dg.AssetKey, run_ids: Sequence[str]) -> dict[str, Reading | None]:
    """The reading of each run, by run; None where it had not planned to materialize ``key``."""
    batches = (list(run_ids[start : start + BATCH]) for start in range(0, len(run_ids), BATCH))
    runs = [run for batch in batches for run in instance.get_runs(dg.RunsFilter(run_ids=batch))]
    heads = {run.run_id: chain_head(instance, run) for run in runs}
    logged = _last_planned(instance, key, {*heads, *heads.values()})
    readings: dict[str, Reading | None] = dict.fromkeys(run_ids)
    for run, head in heads.items():
        if after := logged.get(head) or logged.get(run):
            readings[run] = Reading(after, frozenset((head, run)))
    return readings


def _last_planned(instance: dg.DagsterInstance, key: dg.AssetKey, run_ids: set[str]) -> dict[str, int]:
    """The storage id of the last event by which each run planned ``key``: all are logged before the run starts.

    By pages from the newest, not by run: a query each would take longer than a tick may after a restart.
    """
    last: dict[str, int] = {}
    before = None
    while run_ids - last.keys():
        page = instance.get_asset_event_summary_records(
            dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED, key, before_storage_id=before, limit=PAGE
        )
        for event in page:
            last.setdefault(event.run_id, event.storage_id)
        if len(page) < PAGE:
            break
        before = page[-1].storage_id
    return last


def _downstream(
    view: AssetGraphView, upstream: dg.AssetKey, key: dg.AssetKey
) -> Callable[[Collection[Key]], list[Key]]:
    """What is made of some partitions of ``upstream``, by the mapping between it and ``key``."""
    partitions = view.asset_graph.get(upstream).partitions_def
    everything = view.get_full_subset(key=upstream)
    there = everything.expensively_compute_partition_keys() if partitions else frozenset()

    def downstream(keys: Collection[Key]) -> list[Key]:
        of = view.get_subset_from_partition_keys(upstream, partitions, there & set(keys)) if partitions else everything
        made = view.compute_child_subset(key, of)
        if made.is_partitioned:
            return list(made.expensively_compute_partition_keys())
        return [] if made.is_empty else [None]

    return downstream

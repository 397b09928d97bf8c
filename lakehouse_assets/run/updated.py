"""Finds partitions that are older than their upstream data, for Dagster to request.

Each evaluation reads the event log again, so no cursor can lose an update.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

import dagster as dg
from dagster._core.asset_graph_view.asset_graph_view import AssetGraphView
from dagster._core.definitions.events import AssetKeyPartitionKey
from dagster._core.instance.utils import RUNLESS_RUN_ID

if TYPE_CHECKING:
    from datetime import datetime

    from dagster._core.asset_graph_view.entity_subset import EntitySubset
    from dagster._core.storage.event_log.base import AssetEventSummaryRecord  # imports SQLAlchemy and Alembic

HOURLY = "0 * * * *"
# The most events or runs for one query by id, and the most events of one page.
BATCH = 1000
PAGE = 10_000

Key = str | None
"""None for an asset without partitions."""


@dataclass(frozen=True)
class Reading:
    """What a partition's run had read."""

    after: int
    """A storage id of the event log. The run has read all that was published before this event, perhaps more."""
    runs: frozenset[str] = frozenset()
    """Runs whose results it had read: its own, and the head of its resume chain."""


def behind_upstream(
    published: Iterable[AssetEventSummaryRecord],
    readings: Mapping[Key, Reading],
    never: Reading,
    downstream: Callable[[Collection[Key]], Iterable[Key]],
) -> set[Key]:
    """Returns the keys that depend on something published after their reading.

    never: the reading of keys without one. downstream: from upstream keys to the keys that depend on them.
    """
    # The places in the log at which readings end.
    marks = sorted({never.after, *(reading.after for reading in readings.values())})
    found: set[Key] = set()
    events = sorted(published, key=lambda event: event.storage_id)
    # Events of one run between two marks mean the same for every key: one mapping is enough. ``older`` is the number of
    # marks before the event, so marks[older - 1] is the last of them.
    for (older, run), group in groupby(events, key=lambda e: (bisect_left(marks, e.storage_id), e.run_id)):
        if older:  # else it precedes all readings, and every key has read it
            keys = downstream({event.partition for event in group})
            of_key = ((key, readings.get(key, never)) for key in keys)
            found |= {key for key, reading in of_key if reading.after <= marks[older - 1] and run not in reading.runs}
    return found


class PublishedSinceRead(dg.AutomationCondition[dg.AssetKey]):
    """Holds while ``upstream`` has a materialization that the partition's run may not have read.

    Compares storage ids of the event log, not times. A materialization is logged after its commit, and a run reads
    after its request. So the run has read whatever was logged before the request. The request counts, not the start:
    a publish while the run is queued causes one run too many, never one too few. A re-execution from failure counts
    from the request of its chain's first run, whose results it takes. A partition that was never materialized counts
    from the condition's first evaluation: missing history is not requested.
    """

    def __init__(self, *upstream: dg.AssetKey) -> None:
        self._upstream = upstream
        # Readings by asset and run; None for a run that had not planned the asset. A run's reading does not change, so
        # only new runs are looked up.
        self._known: dict[dg.AssetKey, dict[str, Reading | None]] = {}

    @property
    def name(self) -> str:
        """The condition's name."""
        return "published_since_read"

    @property
    def description(self) -> str:
        """The condition in words."""
        return f"{', '.join(key.to_user_string() for key in self._upstream)} published after this was materialized"

    def get_node_unique_id(self, **_: object) -> str:
        """Returns a constant, so that a new deployment finds its cursor."""
        return self.name

    def evaluate(self, context: dg.AutomationContext[dg.AssetKey]) -> dg.AutomationResult[dg.AssetKey]:
        """Returns the outdated candidates. The cursor keeps the log's end at the first evaluation, and never moves."""
        view, key = context.asset_graph_view, context.key
        # At the first evaluation there is no cursor yet. The sensor's previous tick counts first: what was published
        # since then is news.
        first = int(context.cursor or context.previous_max_storage_id or context.max_storage_id or 0)
        # Upstream first: if a partition is materialized between the two reads, it must look newer than upstream, not
        # older.
        published = {upstream: _latest(view, upstream) for upstream in self._upstream}
        readings = self._readings(view, key)
        found: set[Key] = set()
        for upstream, events in published.items():
            found |= behind_upstream(events, readings, Reading(first), _downstream(view, upstream, key))
        subset = view.get_asset_subset_from_asset_partitions(key, {AssetKeyPartitionKey(key, k) for k in found})
        return dg.AutomationResult(
            context, true_subset=subset.compute_intersection(context.candidate_subset), cursor=str(first)
        )

    def _readings(self, view: AssetGraphView, key: dg.AssetKey) -> dict[Key, Reading]:
        latest = _latest(view, key)
        runs = {event.run_id for event in latest if event.run_id and event.run_id != RUNLESS_RUN_ID}
        before = self._known.get(key, {})
        known = {run: before[run] for run in runs & before.keys()}
        known |= _planned(view.instance, key, sorted(runs - known.keys()))
        self._known[key] = known
        # Events without a run, or of a run that had not planned the asset, count as having read everything before.
        return {event.partition: known.get(event.run_id or "") or Reading(event.storage_id) for event in latest}


class UpstreamToCome(dg.AutomationCondition[dg.AssetKey]):
    """Holds while a partition that this one is made of does not exist yet.

    Dagster's ``any_deps_missing`` looks only at existing partitions. When a month is over, its last week may not be.
    """

    @property
    def name(self) -> str:
        """The condition's name."""
        return "upstream_to_come"

    def evaluate(self, context: dg.AutomationContext[dg.AssetKey]) -> dg.AutomationResult[dg.AssetKey]:
        """Returns the candidates that wait for an upstream partition."""
        view, key, candidates = context.asset_graph_view, context.key, context.candidate_subset
        found = view.get_empty_subset(key=key)
        for upstream in view.asset_graph.get(key).parent_keys - {key}:
            # Rarely true, so all candidates are checked together first. Only then is each one checked.
            if _to_come(view, upstream, candidates, context.evaluation_time):
                for one in candidates.expensively_compute_asset_partitions():
                    subset = view.get_asset_subset_from_asset_partitions(key, {one})
                    if _to_come(view, upstream, subset, context.evaluation_time):
                        found = found.compute_union(subset)
        return dg.AutomationResult(context, true_subset=found)


def _to_come(view: AssetGraphView, upstream: dg.AssetKey, subset: EntitySubset[dg.AssetKey], now: datetime) -> bool:
    """Whether a partition of ``upstream`` that the subset depends on will exist later."""
    definition = view.asset_graph.get(upstream).partitions_def
    # Only partitions of time windows come by themselves.
    if not isinstance(definition, dg.TimeWindowPartitionsDefinition | dg.MultiPartitionsDefinition):
        return False
    _, missing = view.compute_parent_subset_and_required_but_nonexistent_subset(upstream, subset)
    if missing.is_empty:
        return False
    windows = map(definition.time_window_for_partition_key, missing.expensively_compute_partition_keys())
    # A window beyond the definition's own end never comes.
    last = definition.end if isinstance(definition, dg.TimeWindowPartitionsDefinition) else None
    return any(window.end > now and not (last and window.end > last) for window in windows)


def when_updated(*upstream: dg.AssetKey, again: str = HOURLY) -> dg.AutomationCondition[dg.AssetKey]:
    """Requests a partition if an ``upstream`` partition that it depends on was published after its materialization.

    ``AutomationCondition.eager()`` looks only at the newest partition, and forgets what is published while it waits or
    a run is active. Here the whole history counts, but missing partitions are not requested, nor all partitions if
    another dependency changes (a whole dimension, the drop zone). Waits while a dependency is missing, running or still
    to come (the last week of a month). Requests a partition again that is still outdated at the next tick of ``again``
    (cron, UTC), or if ``upstream`` is published again. Needs a sensor with ``use_user_code_server``.

    Examples:
        >>> from lakehouse_assets import Table, column, when_updated
        >>> orders = Table("shop.orders", [column("id", "int")], "shop.steps:orders")
        >>> when_updated(orders.key).get_label()
        'shop/orders updated'
    """
    condition = dg.AutomationCondition
    published = condition.any_deps_match(condition.newly_updated()).allow(dg.AssetSelection.assets(*upstream))
    # Holds from a request until the next tick, the partition's materialization or a publish upstream.
    requested = condition.newly_requested().since(
        condition.cron_tick_passed(again) | condition.newly_updated() | published
    )
    # in_progress first: a run that ends during the tick must count either as running, or by its results. In another
    # order it could count as neither.
    return (
        ~condition.in_progress()
        & PublishedSinceRead(*upstream)
        & ~requested.with_label(f"requested since the last tick of {again}")
        & ~condition.any_deps_missing()
        & ~condition.any_deps_in_progress()
        & ~UpstreamToCome()
    ).with_label(f"{', '.join(key.to_user_string() for key in upstream)} updated")


def _latest(view: AssetGraphView, key: dg.AssetKey) -> list[AssetEventSummaryRecord]:
    kind: Final = dg.DagsterEventType.ASSET_MATERIALIZATION
    if view.asset_graph.get(key).partitions_def is None:
        return list(view.instance.get_asset_event_summary_records(kind, asset_key=key, limit=1))
    ids = sorted(view.instance.get_latest_storage_id_by_partition(key, kind).values())
    batches = (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))
    records = (view.instance.get_asset_event_summary_records(kind, key, storage_ids=batch) for batch in batches)
    return [record for batch in records for record in batch]


def _planned(instance: dg.DagsterInstance, key: dg.AssetKey, run_ids: Sequence[str]) -> dict[str, Reading | None]:
    """Returns readings by run id; None for a run that had not planned ``key``.

    Dagster logs what a run plans before the run starts: this event stands for the request.
    """
    from lakehouse_assets.run.resume import chain_head  # definitions don't need it

    batches = (list(run_ids[start : start + BATCH]) for start in range(0, len(run_ids), BATCH))
    runs = [run for batch in batches for run in instance.get_runs(dg.RunsFilter(run_ids=batch))]
    heads = {run.run_id: chain_head(instance, run) for run in runs}
    logged = _last_planned(instance, key, {*heads, *heads.values()})
    readings: dict[str, Reading | None] = dict.fromkeys(run_ids)
    for run, head in heads.items():
        # The head's request counts, but the head may be deleted.
        if after := logged.get(head) or logged.get(run):
            readings[run] = Reading(after, frozenset((head, run)))
    return readings


def _last_planned(instance: dg.DagsterInstance, key: dg.AssetKey, run_ids: set[str]) -> dict[str, int]:
    """Returns the storage id of the last event by which each run planned ``key``.

    Reads pages from the newest: after a restart, a query for each run would take longer than a tick may.
    """
    last: dict[str, int] = {}
    before = None
    while run_ids - last.keys():
        page = instance.get_asset_event_summary_records(
            dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED, key, before_storage_id=before, limit=PAGE
        )
        for event in page:
            last.setdefault(event.run_id or "", event.storage_id)
        if len(page) < PAGE:
            break
        before = page[-1].storage_id
    return last


def _downstream(
    view: AssetGraphView, upstream: dg.AssetKey, key: dg.AssetKey
) -> Callable[[Collection[Key]], list[Key]]:
    """Returns a function from keys of ``upstream`` to the keys of ``key`` that depend on them."""
    partitions = view.asset_graph.get(upstream).partitions_def
    everything = view.get_full_subset(key=upstream)
    existing = everything.expensively_compute_partition_keys() if partitions else frozenset()

    def downstream(keys: Collection[Key]) -> list[Key]:
        updated = everything
        if partitions:
            # The log may have keys that are not declared any more.
            updated = view.get_subset_from_partition_keys(upstream, partitions, existing & set(keys))
        dependent = view.compute_child_subset(key, updated)
        if dependent.is_partitioned:
            return list(dependent.expensively_compute_partition_keys())
        return [] if dependent.is_empty else [None]

    return downstream

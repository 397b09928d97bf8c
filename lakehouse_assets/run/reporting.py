"""Telling Dagster of a run's partitions, all of them at once: the seconds a key are the same however many there are.
What is told is metadata.py's, when it is told materialization.py's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
from dagster._core.events import DagsterEvent, DagsterEventBatchMetadata, generate_event_batch_id
from dagster._core.execution.context.metadata_logging import AssetMetadataHandle, OutputMetadataAccumulator


def add_metadata(
    context: dg.AssetExecutionContext, asset_key: dg.AssetKey, told: Mapping[str, Mapping[str, Any]]
) -> None:
    """As ``context.add_asset_metadata`` for each key of ``told``, which the run must be of.

    Dagster's own (1.13.27, ``StepExecutionContext.add_asset_metadata``) asks at each call for all keys of the run's
    range, dynamic ones in the database, windows one by one, and copies all that was added before: 5,000 dynamic keys
    take nine minutes.
    """
    step = context.get_step_execution_context()
    gathered = dict(step._metadata_accumulator.per_output_metadata)
    for key, metadata in told.items():
        handle = AssetMetadataHandle(asset_key=asset_key, partition_key=key)
        gathered[handle] = {**gathered.get(handle, {}), **metadata}
    step._metadata_accumulator = OutputMetadataAccumulator(per_output_metadata=gathered)


def log_materializations(context: dg.AssetExecutionContext, events: Sequence[dg.AssetMaterialization]) -> None:
    """As ``context.log_event`` for each, in batches of DAGSTER_EVENT_BATCH_SIZE, as Dagster stores those of a result:
    it (1.13.27) stores what is logged one by one, each with transactions of its own."""
    step, batch, last = context.get_step_execution_context(), generate_event_batch_id(), len(events) - 1
    for number, event in enumerate(events):
        DagsterEvent.asset_materialization(step, event, DagsterEventBatchMetadata(batch, number == last))

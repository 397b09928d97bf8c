"""Reports a run's partitions to Dagster, all of them at once: the time for each key is the same however many there are.
What is reported is metadata.py's; when, materialization.py's."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
from dagster._core.events import DagsterEvent, DagsterEventBatchMetadata
from dagster._core.execution.context.metadata_logging import AssetMetadataHandle, OutputMetadataAccumulator


def add_metadata(
    context: dg.AssetExecutionContext, asset_key: dg.AssetKey, by_key: Mapping[str, Mapping[str, Any]]
) -> None:
    """As ``context.add_asset_metadata`` for each partition key of ``by_key``, which must be the run's.

    Dagster's own (1.13.27, ``StepExecutionContext.add_asset_metadata``) looks up all keys of the run's range at each
    call (dynamic ones in the database, windows one by one) and copies everything that was added before: 5,000 dynamic
    keys take nine minutes.
    """
    step = context.get_step_execution_context()
    outputs = dict(step._metadata_accumulator.per_output_metadata)
    for key, metadata in by_key.items():
        handle = AssetMetadataHandle(asset_key=asset_key, partition_key=key)
        outputs[handle] = {**outputs.get(handle, {}), **metadata}
    step._metadata_accumulator = OutputMetadataAccumulator(per_output_metadata=outputs)


def log_materializations(context: dg.AssetExecutionContext, events: Sequence[dg.AssetMaterialization]) -> None:
    """As ``context.log_event`` for each, but in batches of DAGSTER_EVENT_BATCH_SIZE, as Dagster stores the events of a
    result. Events that are logged it stores one by one (1.13.27), each with transactions of its own."""
    step, batch, last = context.get_step_execution_context(), str(uuid.uuid4()), len(events) - 1
    for number, event in enumerate(events):
        DagsterEvent.asset_materialization(step, event, DagsterEventBatchMetadata(batch, number == last))

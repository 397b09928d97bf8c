"""Reports a run's partitions to Dagster, in a time for each that does not grow with their number; or why it failed.

What is reported of a partition is metadata.py's; when, materialization.py's.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
from dagster._core.events import DagsterEvent, DagsterEventBatchMetadata
from dagster._core.execution.context.metadata_logging import AssetMetadataHandle, OutputMetadataAccumulator

from lakehouse_assets.drive.chunk import Results, WorkerFailure
from lakehouse_assets.protocol.assignment import Assignment, Cause
from lakehouse_assets.protocol.receipts import Receipt
from lakehouse_assets.run.metadata import places
from resources.launchers.base import Attempt

CODE_VERSION = "dagster/code_version"
"""The tag that Dagster gives to each materialization that an asset with a code version returns."""


def add_metadata(
    context: dg.AssetExecutionContext, asset_key: dg.AssetKey, by_key: Mapping[str, Mapping[str, Any]]
) -> None:
    """Does what ``context.add_asset_metadata`` does, for each partition key of ``by_key``, which must be the run's.

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
    """Logs the events like ``context.log_event``, but in batches of DAGSTER_EVENT_BATCH_SIZE.

    Dagster stores a result's events in such batches, but logged events one by one (1.13.27), each with transactions of
    its own.
    """
    step, batch, last = context.get_step_execution_context(), str(uuid.uuid4()), len(events) - 1
    for number, event in enumerate(events):
        DagsterEvent.asset_materialization(step, event, DagsterEventBatchMetadata(batch, number == last))


def staging_failure(table: str, consequence: str, advice: str, results: Results[Receipt]) -> dg.Failure:
    """Returns the failure of a run some of whose chunks were not staged. It names them and shows the first one's error.

    table: its identifier. consequence: what became of the other chunks. advice: as advice_after() gives it.
    """
    failures = results.failures
    first = failures[0]
    chunks = ", ".join(str(failure.chunk) for failure in failures)
    metadata: dict[str, dg.MetadataValue] = {"partitions": dg.MetadataValue.text(chunks)}
    if links := [results.links[f.chunk.ordinal] for f in failures if f.chunk.ordinal in results.links]:
        metadata["worker"] = places(links)
    metadata["traceback"] = dg.MetadataValue.md(f"```\n{first.traceback}{first.message}\n```")
    if first.log:
        metadata["log"] = dg.MetadataValue.md(f"```\n{first.log}\n```")
    return dg.Failure(
        f"table {table}, {chunks}: {first.message.rstrip('.')}. {consequence}; {advice}", metadata=metadata
    )


def advice_after(failures: Iterable[WorkerFailure], *, added: bool) -> str:
    """Says in half a sentence what a person does after these failures.

    added: whether the other chunks' rows were added to the table, and would be added once more.
    """
    causes = {failure.cause for failure in failures}
    if added:
        return "when the cause is mended, re-execute from failure: to re-execute all would add the others' rows again"
    if Cause.INPUT in causes:
        return (
            "when the input is corrected, re-execute all: from failure, what other chunks have staged of the input as "
            "it was would be kept"
        )
    if Cause.DECLARATION in causes:
        return (
            "after a change of the declaration re-execute from failure, which also stages again what was staged under "
            "the earlier one"
        )
    if Cause.STEP in causes:
        return (
            "after a change of the step re-execute from failure, which also stages again what its earlier code has "
            "staged; after a change of its input re-execute all"
        )
    return "re-execute from failure to redo only what is missing"


def staged_again(receipts: Iterable[Receipt], attempts: Mapping[int, Attempt]) -> Iterator[str]:
    """Says why chunks that an earlier attempt has staged are staged again: a sentence for each reason.

    receipts: that attempt's, which prove nothing now. attempts: what is to be done now, by chunk.
    """
    chunks: dict[str, list[int]] = defaultdict(list)
    for receipt in receipts:
        parts = Assignment.from_json(attempts[receipt.chunk].payload).parts
        changed = (name for name, part in parts.items() if receipt.parts.get(name) != part)
        if first := next(changed, None):  # none where its worker has left the receipt only now
            chunks[first].append(receipt.chunk)
    for changed_part, ordinals in chunks.items():
        one = len(ordinals) == 1
        named, whose = ("chunk", "is staged again: its") if one else ("chunks", "are staged again: their")
        yield f"{named} {', '.join(map(str, ordinals))} {whose} {changed_part} changed"

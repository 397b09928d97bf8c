"""Reports a run to Dagster: its audit, its partitions, or why it failed, with what a person can do.

What a materialization shows is metadata.py's; what is checked, commit/audit.py's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._core.definitions.data_version import CODE_VERSION_TAG, DATA_VERSION_TAG
from dagster._core.execution.context.metadata_logging import AssetMetadataHandle, OutputMetadataAccumulator

from lakehouse_assets.commit.audit import LAKE, TEXT, AuditFinding, Rule
from lakehouse_assets.commit.staged import StagedChunk, distinct_files
from lakehouse_assets.declare.table import AUDIT, Table
from lakehouse_assets.drive.chunks import Results, WorkerFailure
from lakehouse_assets.environment.launchers.base import Attempt
from lakehouse_assets.keys_text import WHOLE, keys_text, parts_of
from lakehouse_assets.run.metadata import places
from lakehouse_assets.wire.receipts import Receipt
from lakehouse_assets.wire.work import Assignment, Cause

if TYPE_CHECKING:
    from lakehouse_assets.run.plan import RunPlan

RULES_OF_EVERY_RUN = (LAKE, TEXT)
"""What the audit checks beside the rules of a write mode."""


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


def materialized(
    context: dg.AssetExecutionContext,
    table: Table,
    plan: RunPlan,
    results: Results,
    of_run: Mapping[str, Any],
    of_key: Mapping[str, Mapping[str, Any]],
    version: dg.DataVersion,
) -> Iterator[dg.MaterializeResult[None]]:
    """Yields the materialization of a run whose rows are published.

    of_run: the metadata that hold for the whole run. of_key: what differs by partition. version: tells downstream
    assets that there are other rows. Raises Failure if some chunks have failed, after it has logged the
    materializations of the others.
    """
    if table.partitions is None:
        shown = {**of_key.get(WHOLE, {}), **of_run}
        yield dg.MaterializeResult(asset_key=table.key, metadata=shown, data_version=version, tags=plan.upstream)
        return
    failed = {key for failure in results.failures for key in failure.chunk.keys}
    # Both under each key, in this order: the UI would show a result's metadata before a key's.
    by_key = {key: {**of_key.get(key, {}), **of_run} for key in plan.keys if key not in failed}
    context.log.info(f"{table.identifier}: reporting {len(by_key)} materialized partitions to Dagster")
    if failed:
        # As Dagster gives to results.
        made_by = {CODE_VERSION_TAG: table.code_version, DATA_VERSION_TAG: version.value, **plan.upstream}
        for key, metadata in by_key.items():
            context.log_event(dg.AssetMaterialization(table.key, partition=key, metadata=metadata, tags=made_by))
        published_text = f"The other {len(by_key)} partitions are published"
        advice = advice_after(results.failures, added=table.write_mode.adds_again)
        raise staging_failure(table.identifier, published_text, advice, results)
    add_metadata(context, table.key, by_key)
    yield dg.MaterializeResult(asset_key=table.key, data_version=version, tags=plan.upstream)


def staging_failure(table: str, consequence: str, advice: str, results: Results) -> dg.Failure:
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
            "when the input is mended, re-execute all, or materialize anew: from failure, what was read of it as it "
            "was would be kept"
        )
    if Cause.STEP in causes:
        return (
            "after a change of the step or the declaration re-execute from failure, which also stages again what was "
            "staged before it; after a change of the input re-execute all"
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


def check_result(
    table: Table,
    rules: Collection[Rule],
    run_id: str,
    keys: Sequence[str],
    staged: Sequence[StagedChunk],
    findings: Sequence[AuditFinding],
    seconds: float,
) -> dg.AssetCheckResult:
    """Returns the check result of an audit by these rules that took ``seconds``, with numbers that the UI plots."""
    files = distinct_files(staged)
    broken = Counter(finding.rule for finding in findings)
    checked = (*RULES_OF_EVERY_RUN, *(rule for rule in Rule if rule in rules))
    evidence = {f"{n} {f.rule}": dg.MetadataValue.json(dict(f.evidence)) for n, f in enumerate(findings, start=1)}
    return dg.AssetCheckResult(
        check_name=AUDIT,
        asset_key=table.key,
        passed=not findings,
        description="; ".join(finding.message for finding in findings) or None,
        metadata={
            "run": dg.MetadataValue.dagster_run(run_id),
            "partitions": keys_text(keys),
            "rows": sum(file.record_count for file in files),
            "files": len(files),
            "bytes": sum(file.file_size_in_bytes for file in files),
            "seconds": round(seconds, 3),
            # Also the rules without a finding: the UI plots a line only where there are zeros.
            **{f"findings_{rule}": broken[rule] for rule in checked},
            **evidence,
        },
    )


def audit_failure(table: Table, keys: Sequence[str], findings: Sequence[AuditFinding]) -> dg.Failure:
    """Returns the failure of a run with a red audit. It is not retried: a retry would find the same."""
    advice = "; after a change of the step re-execute from failure, after a change of its input re-execute all"
    if any(finding.rule == LAKE for finding in findings):  # which says itself what to do
        advice = ""
    return dg.Failure(
        f"table {table.identifier}, {keys_text(keys)}: the audit found "
        f"{'; '.join(finding.message for finding in findings)}. Nothing was published{advice}",
        allow_retries=False,
    )


def bad_keys(failures: Iterable[WorkerFailure], findings: Iterable[AuditFinding]) -> frozenset[str]:
    """Returns the partitions that a failed run names as bad, WHOLE for a table without partitions.

    Where a worker had many partitions, only the step can say which of them made it fail: it raises BadPartitions.
    Otherwise none of that worker's is named.
    """
    named = [f.bad or (parts_of(f.chunk.keys) if len(f.chunk.keys) < 2 else ()) for f in failures]
    return frozenset(key for keys in (*named, *(finding.bad for finding in findings)) for key in keys)

"""What a run reports: checks, metadata and failures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import dagster as dg
from dagster._core.definitions.data_version import CODE_VERSION_TAG, DATA_VERSION_TAG
from dagster._core.execution.context.metadata_logging import AssetMetadataHandle, OutputMetadataAccumulator
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable

from lakehouse_assets.commit.audit import OWN_COMMITS, TEXT, AuditFinding, Rule
from lakehouse_assets.commit.commit_part import CommitPart, SummaryEntries
from lakehouse_assets.commit.deletes import live_rows
from lakehouse_assets.commit.evolution import CHANGES, evolution_texts
from lakehouse_assets.commit.publish import Published
from lakehouse_assets.commit.staged import StagedChunk, distinct_files, partition_stats
from lakehouse_assets.commit.tokens import RUN_ID
from lakehouse_assets.declare.columns import column_schema
from lakehouse_assets.declare.region import Region
from lakehouse_assets.declare.table import AUDIT, Table
from lakehouse_assets.drive.chunks import Chunk, Results, WorkerFailure
from lakehouse_assets.environment.catalog import with_retries
from lakehouse_assets.environment.launchers.base import Attempt, Usage
from lakehouse_assets.keys_text import WHOLE, keys_text, parts_of
from lakehouse_assets.run.extension import RunHook, Shown
from lakehouse_assets.run.jobs import TABLE_NAME, markdown_table
from lakehouse_assets.run.progress import Progress, report
from lakehouse_assets.run.run import Run, Staged
from lakehouse_assets.storage.objects import at_once
from lakehouse_assets.wire.receipts import Receipt
from lakehouse_assets.wire.work import Assignment, Cause

# The size of a preview. Few rows: they are stored with every materialization.
ROWS = 5
CELL_LENGTH = 40
MOST_PARTITIONS = 50
"""A run with more partitions has no previews: each one opens a file in storage."""


class RunFacts(RunHook):
    """What every run records in the snapshot's summary, and shows."""

    name: ClassVar[str] = "run"

    def parts(self, run: Run, staged: Staged) -> Iterable[CommitPart]:
        """Returns entries of the snapshot's summary."""
        facts = {
            RUN_ID: run.context.run.run_id,
            "lakehouse.asset-key": run.table.key.to_user_string(),
            "lakehouse.partitions": keys_text([key for chunk in staged.chunks for key in chunk.keys]),
            "lakehouse.code-version": run.table.code_version,
        }
        return [SummaryEntries(facts)]

    def shown(self, run: Run, forks: Sequence[StagedChunk]) -> Shown:
        """Returns the numbers of the run and its partitions."""
        table, shown = run.table, Shown(run_metadata(run, forks))
        if forks:
            region = run.region_of([run.plan.chunks[fork.receipt.chunk] for fork in forks])
            shown.of_key = shown_by_key(table, region, forks)
        # Otherwise the table's rows are those of its partitions, or the run's own, which are shown already.
        if table.partitions is None and not table.write_mode.replaces:
            now = with_retries(lambda: run.lakehouse.catalog().load_table(table.identifier))
            shown.of_run |= rows_now(now, run.published.snapshot_id)
        return shown


def run_metadata(run: Run, chunks: Sequence[StagedChunk]) -> dict[str, Any]:
    """Returns the metadata of the whole run.

    chunks: the published ones. A worker that this run started has a link and its usage; for a worker of an earlier run,
    only the receipt names a host.
    """
    target, published, results = run.staging.evolution.target, run.published, run.results
    receipts = [chunk.receipt for chunk in chunks]
    files = distinct_files(chunks)
    where = sorted({results.links.get(r.chunk, r.worker) for r in receipts})
    return {
        TABLE_NAME: run.table.identifier,
        "dagster/uri": target.location(),
        "dagster/storage_kind": "iceberg",
        "dagster/column_schema": column_schema(_declared_nulls(target.schema(), run.table)),
        **{name: dg.MetadataValue.md(text) for name, text in _schema_change(run).items()},
        "run_rows": sum(r.rows for r in receipts),
        "run_files": len(files),
        "run_bytes": sum(f.file_size_in_bytes for f in files),
        "files_replaced": published.files_removed,
        "workers": len(receipts),
        "worker": places(where),
        "stage_seconds": round(max((r.stage_seconds for r in receipts), default=0.0), 3),
        "publish_seconds": round(published.seconds, 3),
        "commit_attempts": published.attempts,
        **_usage(results.usages),
        **_merged(receipts),
    }


def _schema_change(run: Run) -> dict[str, str]:
    """Returns how the run changed the table's columns: a text for each kind of change, by the metadata's name.

    If an earlier attempt committed, the table no longer differs, so the texts come from the snapshot's summary.
    """
    evolution = run.staging.evolution
    if not run.published.repeated:
        return evolution_texts(evolution.applied)
    snapshot = evolution.found.snapshot_by_id(run.published.snapshot_id)
    summary = snapshot.summary if snapshot else None
    return {name: text for name, entry in CHANGES.items() if summary and (text := summary[entry])}


def rows_now(table: IcebergTable, snapshot_id: int) -> dict[str, int | str]:
    """Returns the row count for the UI to plot, or an upper bound as text. table: loaded after this commit."""
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    rows = live_rows(table.metadata, snapshot, table.io) if snapshot else None
    if rows is None:
        return {}
    return {"dagster/row_count": rows.count} if rows.is_exact else {"rows": str(rows)}


def _declared_nulls(schema: Schema, table: Table) -> Schema:
    """Marks columns as required that are declared so, but optional in Iceberg: the audit refuses their nulls."""
    required = {column.name for column in table.schema.columns if column.required}
    return Schema(*(c.model_copy(update={"required": True}) if c.name in required else c for c in schema.columns))


def _merged(receipts: Sequence[Receipt]) -> dict[str, int]:
    merged = [receipt.merged for receipt in receipts if receipt.merged]
    names = ("changes", "left_out", "matched", "inserted", "updated", "deleted") if merged else ()
    return {f"merge_{name}": sum(getattr(one, name) for one in merged) for name in names}


def places(links: Sequence[str]) -> dg.MetadataValue:
    """Shows where workers ran, at most three; as links unless on this machine."""
    more = f" and {len(links) - 3} more" if len(links) > 3 else ""
    if not any(link.startswith("https://") for link in links):
        return dg.MetadataValue.text(", ".join(links[:3]) + more)
    if len(links) == 1:
        return dg.MetadataValue.url(links[0])
    return dg.MetadataValue.md(", ".join(f"<{link}>" for link in links[:3]) + more)


def _usage(usages: Sequence[Usage]) -> dict[str, Any]:
    if not usages:
        return {}
    amounts = ("vcpu_hours", "gib_hours", "estimated_usd")
    used: dict[str, Any] = {name: round(sum(getattr(u, name) for u in usages), 4) for name in amounts}
    return used | {"usage_source": "; ".join(sorted({u.source for u in usages}))}


def shown_by_key(table: Table, region: Region, chunks: Sequence[StagedChunk]) -> dict[str, dict[str, Any]]:
    """Returns each partition's staged rows, files and bytes, and a preview.

    If partitions own no rows (Append, Merge), a chunk's rows belong to all its partitions together. Then only chunks of
    a single partition show numbers; and after a merge, which also rewrites rows of others, no row count.
    """
    rows = "dagster/row_count" if table.partitions is None else "dagster/partition_row_count"
    if table.partitions is None or table.write_mode.owns_partitions:  # each row belongs to one key
        first = previews(region, chunks)
        rows = rows if table.write_mode.replaces else "rows_written"  # a run that adds or merges stages only some rows
        return {
            key: dict(zip((rows, "files", "bytes"), stat, strict=True))
            | ({"preview": first[key]} if key in first else {})
            for key, stat in partition_stats(region, chunks).items()
        }
    found: dict[str, dict[str, Any]] = {key: {} for chunk in chunks for key in chunk.receipt.keys}
    alone = [chunk for chunk in chunks if len(chunk.receipt.keys) == 1]
    for chunk in alone:
        count, files, size = partition_stats(region, [chunk])[WHOLE]
        counted = {} if table.write_mode.match_on else {rows: count}
        found[chunk.receipt.keys[0]] = {**counted, "files": files, "bytes": size}
    # One preview for each chunk, shown at each of its keys.
    if len(found) <= MOST_PARTITIONS:
        for chunk, first in zip(chunks, at_once(lambda chunk: previews(region, [chunk]), chunks), strict=True):
            keys = chunk.receipt.keys
            text = first[WHOLE] if len(keys) == 1 else _of_several(keys, first[WHOLE])
            found |= {key: {**found[key], "preview": text} for key in keys}
    return found


def _of_several(keys: Sequence[str], first: dg.MetadataValue) -> dg.MetadataValue:
    return dg.MetadataValue.md(f"Of {keys_text(keys)} together:\n\n{first.value}")


def previews(region: Region, chunks: Sequence[StagedChunk]) -> dict[str, dg.MetadataValue]:
    """Returns the first rows of each partition's first staged file, or why there are none, as Markdown by key.

    Returns nothing for more than MOST_PARTITIONS.
    """
    keys = parts_of(region.keys)
    if len(keys) > MOST_PARTITIONS:
        return {}
    first: dict[str | None, tuple[StagedChunk, DataFile]] = {}
    for chunk in chunks:
        for file in chunk.files:
            if file.record_count:  # an empty file has no row to show
                first.setdefault(region.key_of(file.partition), (chunk, file))
    texts = at_once(lambda key: _preview_text(*first[key]) if key in first else "no rows", keys)
    return {key: dg.MetadataValue.md(text) for key, text in zip(keys, texts, strict=True)}


def _preview_text(chunk: StagedChunk, file: DataFile) -> str:
    if file.file_format is not FileFormat.PARQUET:
        return f"{file.file_format.value} files have no preview"
    from pyarrow.parquet import ParquetFile

    try:
        with chunk.io.new_input(file.file_path).open() as stream:
            rows = next(ParquetFile(stream).iter_batches(batch_size=ROWS)).slice(0, ROWS).to_pylist()
    except Exception as error:  # also for values that Python lacks, e.g. dates after 9999
        return f"no preview: {error}"
    names = list(rows[0])
    return markdown_table(names, ([_cell(row[name]) for name in names] for row in rows))


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= CELL_LENGTH else text[: CELL_LENGTH - 1] + "…"


# Each run is checked for these, besides the rules of its write mode.
RULES_OF_EVERY_RUN = (OWN_COMMITS, TEXT)


def add_metadata(
    context: dg.AssetExecutionContext, asset_key: dg.AssetKey, by_key: Mapping[str, Mapping[str, Any]]
) -> None:
    """Does what ``context.add_asset_metadata`` does, for each key of ``by_key``, which must be the run's.

    Dagster's (1.13.27, ``StepExecutionContext.add_asset_metadata``) looks up all keys of the run's range at each call
    and copies all earlier metadata: 5,000 dynamic keys take nine minutes.
    """
    step = context.get_step_execution_context()
    outputs = dict(step._metadata_accumulator.per_output_metadata)
    for key, metadata in by_key.items():
        handle = AssetMetadataHandle(asset_key=asset_key, partition_key=key)
        outputs[handle] = {**outputs.get(handle, {}), **metadata}
    step._metadata_accumulator = OutputMetadataAccumulator(per_output_metadata=outputs)


def log_beginning(run: Run, left: Sequence[Chunk]) -> None:
    """Logs how many chunks are left, and why a resumed run stages some again."""
    table, plan, log = run.table, run.plan, run.context.log
    log.info(
        f"{table.identifier}: {len(plan.keys) or 'no'} partitions in {len(plan.chunks)} chunks, {len(left)} to stage, "
        f"run token {run.token.text}"
    )
    if run.is_resumed and left:
        for text in staged_again(run.journal.receipts(chunk.ordinal for chunk in left), run.staging.attempts):
            log.info(f"{table.identifier}: {text}")


def report_progress(run: Run, results: Results) -> None:
    """Reports progress to the listeners of this process."""
    done = sum(len(run.plan.chunks[ordinal].keys) or 1 for ordinal in results.receipts)
    # A table without partitions counts as one.
    total = len(run.plan.keys) or 1
    report(Progress(run.table.identifier, done, total, results.running, run.started, results.waiting))


def log_published(run: Run, published: Published) -> Published:
    """Logs what was published, and returns it."""
    text = f"{run.table.identifier}: published snapshot {published.snapshot_id} in {published.seconds:.2f} s"
    text += " (already done by an earlier attempt)" if published.repeated else ""
    text += f" at attempt {published.attempts}" if published.attempts > 1 else ""
    run.context.log.info(text)
    return published


def materialized(run: Run, shown: Shown) -> Iterator[dg.MaterializeResult[None]]:
    """Yields the materialization of a published run.

    If some chunks failed (publish_others), it logs the materializations of the other partitions and raises Failure.
    """
    context, table, plan, results = run.context, run.table, run.plan, run.results
    version = dg.DataVersion(str(run.published.snapshot_id))  # tells downstream assets that rows changed
    if table.partitions is None:
        metadata = {**shown.of_key.get(WHOLE, {}), **shown.of_run}
        yield dg.MaterializeResult(asset_key=table.key, metadata=metadata, data_version=version, tags=shown.tags)
        return
    failed = {key for failure in results.failures for key in failure.chunk.keys}
    # Each key gets the run's metadata after its own: in the MaterializeResult, the UI would show the run's first.
    by_key = {key: {**shown.of_key.get(key, {}), **shown.of_run} for key in plan.keys if key not in failed}
    context.log.info(f"{table.identifier}: reporting {len(by_key)} materialized partitions to Dagster")
    if failed:
        # The run fails, so it can't yield a result: these tags are those that Dagster gives to results.
        made_by = {CODE_VERSION_TAG: table.code_version, DATA_VERSION_TAG: version.value, **shown.tags}
        for key, metadata in by_key.items():
            context.log_event(dg.AssetMaterialization(table.key, partition=key, metadata=metadata, tags=made_by))
        published_text = f"The other {len(by_key)} partitions are published"
        advice = advice_after(results.failures, added=table.write_mode.adds_again)
        raise staging_failure(table.identifier, published_text, advice, results)
    add_metadata(context, table.key, by_key)
    yield dg.MaterializeResult(asset_key=table.key, data_version=version, tags=shown.tags)


def staging_failure(table: str, consequence: str, advice: str, results: Results) -> dg.Failure:
    """Returns the failure of a run with failed chunks. Its message and traceback are the first chunk's.

    consequence: what happened to the other chunks. advice: from advice_after().
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
    """Says what to do, in half a sentence. added: whether re-executing all would add published rows again."""
    causes = {failure.cause for failure in failures}
    if added:
        return "fix the cause and re-execute from failure: re-executing all would add the other partitions' rows again"
    if Cause.INPUT in causes:
        return (
            "fix the input, then re-execute all or materialize again: a re-execution from failure would keep what was "
            "read from the old input"
        )
    if Cause.STEP in causes:
        return (
            "if you change the step or the declaration, re-execute from failure, which also stages again what was "
            "staged before the change; if you change the input, re-execute all"
        )
    return "re-execute from failure to redo only what is missing"


def staged_again(receipts: Iterable[Receipt], attempts: Mapping[int, Attempt]) -> Iterator[str]:
    """Yields why staged chunks are staged again, as a sentence that names the first changed part of their work.

    Chunks with the same part share a sentence. receipts: of an earlier attempt. attempts: the work now, by chunk.
    """
    chunks: dict[str, list[int]] = defaultdict(list)
    for receipt in receipts:
        parts = Assignment.from_json(attempts[receipt.chunk].payload).parts
        changed = (name for name in {**parts, **receipt.parts} if receipt.parts.get(name) != parts.get(name))
        if first := next(changed, None):  # None: its worker wrote the receipt only now, so it was not stale
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
    """Returns an audit's result. rules: those of the write mode. seconds: the audit's duration."""
    files = distinct_files(staged)
    broken = Counter(finding.rule for finding in findings)
    # In the order of Rule, so that each run shows the same order.
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
            # Also rules without findings: the UI plots a line only if there are zeros.
            **{f"findings_{rule}": broken[rule] for rule in checked},
            **evidence,
        },
    )


def audit_failure(table: Table, keys: Sequence[str], findings: Sequence[AuditFinding]) -> dg.Failure:
    """Returns the failure of a red audit, without retries: each would find the same."""
    advice = "; if you change the step, re-execute from failure; if you change its input, re-execute all"
    if any(finding.rule == OWN_COMMITS for finding in findings):  # its message says what to do
        advice = ""
    return dg.Failure(
        f"table {table.identifier}, {keys_text(keys)}: the audit found "
        f"{'; '.join(finding.message for finding in findings)}. Nothing was published{advice}",
        allow_retries=False,
    )

"""One run of one table's asset: plan → write → audit → publish → report, in the order that keeps every promise.
Each verb is a module of its own; here they are only strung together."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import dagster as dg
from pyiceberg.table import Table as IcebergTable

from lakehouse_assets.commit.audit import Finding, audit, own_commits
from lakehouse_assets.commit.change import Change
from lakehouse_assets.commit.fork import ForkBase, write_fork_base
from lakehouse_assets.commit.paths import check_paths
from lakehouse_assets.commit.publish import Published, publish
from lakehouse_assets.commit.staged import StagedChunk, partition_stats, read_all
from lakehouse_assets.commit.target import open_target
from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.declare.region import Region
from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.attempts import Attempts
from lakehouse_assets.drive.drive import Drive
from lakehouse_assets.drive.results import Staging, WorkerFailure
from lakehouse_assets.drive.slots import Slots
from lakehouse_assets.errors import PublishRefused
from lakehouse_assets.protocol.assignment import Assignment
from lakehouse_assets.protocol.receipts import Receipt, Receipts
from lakehouse_assets.protocol.step_code import worker_code
from lakehouse_assets.run import metadata, progress, reporting
from lakehouse_assets.run.plan import (
    Chunk,
    plan_chunks,
    publish_token,
    published_chunks,
    refuse_forgotten,
    run_token,
    usable,
    window_of,
)
from lakehouse_assets.run.reaper import process_tag
from lakehouse_assets.run.resource import Lakehouse
from resources.catalog import outlasting
from resources.launchers.base import Attempt, Launcher
from resources.secrets import public

AUDIT = "audit"


@dataclass
class Materialization:
    """One run of one table's asset."""

    context: dg.AssetExecutionContext
    table: Table
    lakehouse: Lakehouse
    staging: Staging = field(default_factory=Staging)
    started: float = field(default_factory=time.time)

    def run(self) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
        self.context.instance.add_run_tags(self.context.run.run_id, process_tag())
        with self._drive() as drive:
            self._write(drive)
            ready = self._ready()
            staged = read_all(self._table_io, [self.staging.receipts[c.ordinal] for c in ready])
            findings = audit(self.table, self._region_of(ready), staged) if ready else []
            # A JVM of this process may have been somebody else's before.
            known = {s.snapshot_id for s in self.target.snapshots()} if self.launcher.blocking else ()
            findings += own_commits(self.table, self._table_now.metadata, staged, known)
            yield self._check(findings)
            if findings:
                raise self._refusal(findings)
            published = self._publish(ready, staged) if ready else self._published_earlier()
            if self.launcher.durable:
                drive.settle()  # what is billed is known at a worker's end only
            yield from self._tell([*staged, *self._staged_earlier()], published)

    # plan

    @cached_property
    def keys(self) -> tuple[str, ...]:
        # From the asset's own partitions, never from run tags: a range run's tags reach every asset in it.
        asked = self.context.has_partition_key or self.context.has_partition_key_range
        return tuple(self.context.partition_keys) if asked and self.table.partitions is not None else ()

    @cached_property
    def region(self) -> Region:
        return self.table.alignment.region(self.keys)

    @cached_property
    def chunks(self) -> list[Chunk]:
        return plan_chunks(self.table, self.keys)

    @cached_property
    def run_token(self) -> RunToken:
        return run_token(self.table.identifier, self.context.instance, self.context.run)

    @property
    def token(self) -> str:
        return self.run_token.text

    @cached_property
    def target(self) -> IcebergTable:
        return outlasting(lambda: open_target(self.lakehouse.catalog(), self.table))

    @cached_property
    def fork_base(self) -> ForkBase:
        return write_fork_base(self.target, self.token)

    @cached_property
    def earlier(self) -> dict[int, int]:
        """What earlier attempts published: snapshot by chunk."""
        refuse_forgotten(self.table.identifier, self.target.metadata, self.run_token, self.context.run)
        return published_chunks(self.table.identifier, self.target.metadata, self.token, self.chunks)

    @cached_property
    def receipts(self) -> Receipts:
        return Receipts(self.lakehouse.staging_io(), f"{self.lakehouse.settings.staging}/{self.table.identifier}")

    @cached_property
    def launcher(self) -> Launcher:
        return self.lakehouse.launcher(self.table.compute)

    @cached_property
    def worker_code(self) -> str:
        return worker_code(self.table.step)

    @cached_property
    def worker_catalog(self) -> dict[str, str]:
        return self.lakehouse.worker_catalog()

    @cached_property
    def work(self) -> dict[int, str]:
        """By chunk, what its receipt must have been left for."""
        return {chunk.ordinal: self._assignment(chunk).work for chunk in self.chunks}

    def _attempt(self, chunk: Chunk) -> Attempt:
        tags = {
            "lakehouse:run": self.context.run.run_id,
            "lakehouse:asset": self.table.key.to_user_string(),
            "lakehouse:partitions": _span(chunk.keys),
        }
        assignment = self._assignment(chunk)
        return Attempt(
            group=self.token,
            subject=self.table.identifier,
            ordinal=chunk.ordinal,
            work=assignment.work,
            payload=assignment.to_json(),
            spark_conf=assignment.spark_conf,
            size=self.table.size,
            tags=tags,
            timeout=self.table.worker_timeout,
        )

    def _assignment(self, chunk: Chunk) -> Assignment:
        settings = self.lakehouse.settings
        return Assignment(
            table=self.table.identifier,
            step=self.table.step,
            token=self.token,
            chunk=chunk.ordinal,
            window=window_of(self.table, chunk, self.lakehouse.landing(self.table.domain)),
            fork_base=self.fork_base.location,
            base_snapshot_id=self.fork_base.snapshot_id,
            receipt=self.receipts.location(self.token, chunk.ordinal),
            code_version=self.table.code_version,
            code=self.worker_code,
            unique=tuple(self.table.unique),
            compute=self.table.compute or settings.compute,
            catalog=self.worker_catalog,
            spark_conf=public({**self.table.spark_conf, **settings.spark_conf}),
        )

    # write

    def _drive(self) -> Drive:
        attempts = Attempts(self.receipts.io, self.receipts.folder(self.token))
        return Drive(self.context, self.launcher, self.slots, self._found, self._report, attempts)

    @cached_property
    def slots(self) -> Slots:
        return Slots(self.context.instance, self.context.run.run_id, str(self.context.op_execution_context.op_handle))

    def _found(self, ordinals: Iterable[int]) -> dict[int, Receipt]:
        receipts = self.receipts.find(self.token, ordinals)
        return {r.chunk: r for r in usable(receipts, self.work)}

    def _write(self, drive: Drive) -> None:
        region = self.region  # keys that can't work are refused before the table is made
        check_paths(self.table.identifier, region, self.target)
        self.staging.receipts.update(self._found(range(len(self.chunks))))
        spared = self.staging.receipts.keys() | self.earlier.keys()
        for ordinal in spared:
            self.slots.free(ordinal)  # held since this very run's process died; Dagster frees it at the run's end only
        left = [chunk for chunk in self.chunks if chunk.ordinal not in spared]
        self.context.log.info(
            f"{self.table.identifier}: {len(self.keys) or 'no'} partitions, chunks of work: {len(self.chunks)}, "
            f"{len(left)} to stage, run token {self.token}"
        )
        drive.run(left, {c.ordinal: self._attempt(c) for c in left}, self.staging, self.table.publish_others)
        if self.staging.failures and not (self.table.publish_others and spared | self.staging.receipts.keys()):
            raise self._failure("Nothing was published", self.staging.failures)

    def _report(self, state: Staging) -> None:
        done = sum(len(self.chunks[ordinal].keys) or 1 for ordinal in state.receipts)
        total = len(self.keys) or 1
        progress.report(self.table.identifier, done, total, state.running, self.started, state.waiting)

    # audit

    def _ready(self) -> list[Chunk]:
        """The chunks to publish: staged, and not published by an earlier attempt."""
        return [c for c in self.chunks if c.ordinal in self.staging.receipts.keys() - self.earlier.keys()]

    @cached_property
    def _table_now(self) -> IcebergTable:
        """The table when all is staged."""
        return outlasting(lambda: self.lakehouse.catalog().load_table(self.table.identifier))

    @property
    def _table_io(self) -> Mapping[str, Any]:
        """Properties of a FileIO for the table's files, as of when all was staged: keys that the catalog gave out when
        the run began may have run out."""
        return self._table_now.io.properties

    def _region_of(self, chunks: Sequence[Chunk]) -> Region:
        every = len(chunks) == len(self.chunks)
        return self.region if every else self.table.alignment.region([k for c in chunks for k in c.keys])

    def _check(self, findings: Sequence[Finding]) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(
            check_name=AUDIT,
            asset_key=self.table.key,
            passed=not findings,
            description="; ".join(f.message for f in findings) or None,
            metadata={
                "run": dg.MetadataValue.dagster_run(self.context.run.run_id),
                "partitions": _span(self.keys),
                **{f"{i} {f.rule}": dg.MetadataValue.json(dict(f.evidence)) for i, f in enumerate(findings, start=1)},
            },
        )

    def _refusal(self, findings: Sequence[Finding]) -> dg.Failure:
        return dg.Failure(
            f"table {self.table.identifier}, {_span(self.keys)}: the audit found "
            f"{'; '.join(f.message for f in findings)}. Nothing was published; mend the step or its source, then "
            "materialize again",
            allow_retries=False,
        )

    # publish

    def _publish(self, ready: Sequence[Chunk], staged: Sequence[StagedChunk]) -> Published:
        region = self._region_of(ready)
        summary = {
            "lakehouse.run-id": self.context.run.run_id,
            "lakehouse.asset-key": self.table.key.to_user_string(),
            "lakehouse.partitions": _span(region.keys),
            "lakehouse.code-version": self.table.code_version,
        }
        token = replace(self.run_token, text=publish_token(self.token, self.chunks, ready))
        change = Change.of_run(self.table.write_mode, region, staged)
        published = publish(self.lakehouse.catalog(), self.table.identifier, change, token, summary)
        again = " (already done by an earlier attempt)" if published.repeated else ""
        if published.attempts > 1:
            again += f" at attempt {published.attempts}"
        self.context.log.info(
            f"{self.table.identifier}: published snapshot {published.snapshot_id} in {published.seconds:.2f} s{again}"
        )
        return published

    def _published_earlier(self) -> Published:
        snapshot_id = max(self.earlier.items())[1]
        self.context.log.info(f"{self.table.identifier}: snapshot {snapshot_id} of an earlier attempt holds it already")
        return Published(snapshot_id, True, 0, 0, 0, 0, 0, 0.0)

    # report

    def _staged_earlier(self) -> list[StagedChunk]:
        """What earlier attempts published, for the report only: gone or broken by now is no failure."""
        receipts = [r for n, r in self.staging.receipts.items() if n in self.earlier]
        try:
            return read_all(self._table_io, receipts)
        except (PublishRefused, OSError) as error:
            self.context.log.warning(f"the partitions published earlier are reported without their numbers: {error}")
            return []

    def _tell(self, staged: Sequence[StagedChunk], published: Published) -> Iterator[dg.MaterializeResult]:
        of_run = metadata.run_metadata(self.table, self.target, staged, published, self.staging)
        of_key = self._of_keys(staged)
        if self.table.partitions is None:
            yield dg.MaterializeResult(asset_key=self.table.key, metadata=of_key.get("", {}) | of_run)
        elif self.staging.failures:
            failed = {key for failure in self.staging.failures for key in failure.chunk.keys}
            good = [key for key in self.keys if key not in failed]
            self._say_reported(good)
            told = {key: of_key.get(key, {}) | of_run for key in good}
            events = [dg.AssetMaterialization(self.table.key, partition=key, metadata=told[key]) for key in good]
            reporting.log_materializations(self.context, events)
            raise self._failure(f"The other {len(good)} partitions are published", self.staging.failures)
        else:
            self._say_reported(self.keys)
            # All of it by key, in this order: the UI would show what a result carries before what a key does.
            told = {key: of_key.get(key, {}) | of_run for key in self.keys}
            reporting.add_metadata(self.context, self.table.key, told)
            yield dg.MaterializeResult(asset_key=self.table.key)

    def _say_reported(self, keys: Sequence[str]) -> None:
        self.context.log.info(f"{self.table.identifier}: reporting {len(keys)} materialized partitions to Dagster")

    def _of_keys(self, staged: Sequence[StagedChunk]) -> dict[str, dict[str, Any]]:
        partitioned = self.table.partitions is not None
        told = self._region_of([self.chunks[chunk.receipt.chunk] for chunk in staged]) if staged else None
        stats = partition_stats(told, staged) if told else {}
        return {key: metadata.partition_metadata(*s, partitioned=partitioned) for key, s in stats.items()}

    def _failure(self, consequence: str, failures: Sequence[WorkerFailure]) -> dg.Failure:
        chunks = ", ".join(str(f.chunk) for f in failures)
        reason = failures[0].message.rstrip(".")
        links = [self.staging.links[f.chunk.ordinal] for f in failures if f.chunk.ordinal in self.staging.links]
        return dg.Failure(
            f"table {self.table.identifier}, {chunks}: {reason}. {consequence}; re-execute from failure to redo only "
            "what is missing",
            metadata={
                "partitions": chunks,
                **({"worker": metadata.places(links)} if links else {}),
                "traceback": dg.MetadataValue.md(f"```\n{failures[0].traceback}{failures[0].message}\n```"),
                **({"log": dg.MetadataValue.md(f"```\n{failures[0].log}\n```")} if failures[0].log else {}),
            },
        )


def _span(keys: Sequence[str]) -> str:
    if not keys:
        return "whole table"
    return keys[0] if len(keys) == 1 else f"{keys[0]}..{keys[-1]} ({len(keys)})"

"""First attempts at chunks of a run, and at other work on a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lakehouse_assets.commit.evolution import Evolution
from lakehouse_assets.commit.fork import ForkBase
from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.chunks import Chunk
from lakehouse_assets.environment.catalog import worker_properties
from lakehouse_assets.environment.env_reader import public
from lakehouse_assets.environment.launchers.base import Attempt
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.run.run import Run
from lakehouse_assets.step.window import Window
from lakehouse_assets.wire.code import code_packages, worker_code
from lakehouse_assets.wire.work import Assignment, HookWork, RewriteAssignment


def window_of(table: Table, chunk: Chunk, landing: str) -> Window:
    """Returns the window that the chunk's step gets. landing: the domain's part of the drop zone."""
    start, end = table.alignment.window(chunk.keys) or (None, None)
    return Window(chunk.keys, start, end, table.alignment.dimensions(chunk.keys), landing)


def first_attempts(
    run: Run, fork_base: ForkBase, evolution: Evolution, extensions: Mapping[str, HookWork]
) -> dict[int, Attempt]:
    """Returns the first attempt at each chunk, by ordinal. extensions: what RunHook.work() returned, by hook name."""
    table, settings = run.table, run.lakehouse.settings
    merge, run_id = run.strategy.merge, run.context.run.run_id
    hooks, checks = [work.hook for work in extensions.values()], table.checks.values()
    landing = run.lakehouse.landing(table.domain)
    code = worker_code(table.step, checks, hooks=hooks)
    packages = code_packages(table.step, checks, hooks)
    # Assignments are stored, so they hold no secrets: the worker's own environment has them.
    catalog = worker_properties(settings)
    spark_conf = public({**table.spark_conf, **settings.spark_conf})

    def attempt(chunk: Chunk) -> Attempt:
        assignment = Assignment(
            table=table.identifier,
            step=table.step,
            token=run.plan.token,
            chunk=chunk.ordinal,
            window=window_of(table, chunk, landing),
            fork_base=fork_base.location,
            base_snapshot_id=fork_base.snapshot_id,
            receipt=run.journal.receipt_location(chunk.ordinal),
            code_version=table.code_version,
            code=code,
            unique=tuple(table.unique),
            checks=table.checks,
            merge=merge,
            left_out=tuple(evolution.left_out),
            undeclared=tuple(evolution.undeclared),
            extensions=extensions,
            compute=table.compute or settings.compute,
            catalog=catalog,
            spark_conf=spark_conf,
        )
        return replace(attempt_of(table, assignment, run_id, chunk.keys), packages=packages)

    return {chunk.ordinal: attempt(chunk) for chunk in run.plan.chunks}


def attempt_of(table: Table, work: Assignment | RewriteAssignment, run_id: str, partitions: Sequence[str]) -> Attempt:
    """Returns the first attempt at a piece of work on a table.

    run_id, partitions: for the services' lists of workers, which show them as tags.
    """
    return Attempt(
        group=work.token,
        subject=table.identifier,
        ordinal=work.chunk,
        work=work.work,
        payload=work.to_fields(),
        spark_conf=work.spark_conf,
        size=table.size,
        tags={
            "lakehouse:run": run_id,
            "lakehouse:asset": table.key.to_user_string(),
            "lakehouse:partitions": keys_text(partitions),
        },
        timeout=table.worker_limit,
    )

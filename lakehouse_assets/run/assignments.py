"""Says what each worker of a run has to do: the assignment of its chunk, and the attempt that carries it.

How the run is cut into chunks is plan.py's; drive/ starts the workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lakehouse_assets.commit.fork import ForkBase
from lakehouse_assets.commit.strategies import strategy_of
from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.chunks import Chunk, Journal
from lakehouse_assets.environment.catalog import worker_properties
from lakehouse_assets.environment.env_reader import public
from lakehouse_assets.environment.launchers.base import Attempt
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.run.plan import RunPlan, window_of
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.wire.code import code_packages, worker_code
from lakehouse_assets.wire.work import Assignment, Pin, ReadOn, RewriteAssignment, SourceRange


def first_attempts(
    table: Table,
    lakehouse: Lakehouse,
    plan: RunPlan,
    journal: Journal,
    fork_base: ForkBase,
    run_id: str,
    *,
    inputs: Sequence[Pin] = (),
    read_on: ReadOn | None = None,
    source: SourceRange | None = None,
    left_out: Sequence[str] = (),
    undeclared: Sequence[str] = (),
) -> dict[int, Attempt]:
    """Returns the first attempt at each chunk of a run, by the chunk's ordinal.

    journal: says where receipts are written. run_id: shown in the services' own lists. inputs, read_on, source,
    left_out, undeclared: see Assignment.
    """
    merge = strategy_of(table.write_mode).merge
    settings = lakehouse.settings
    code, landing = worker_code(table.step, table.checks.values()), lakehouse.landing(table.domain)
    packages = code_packages(table.step, table.checks.values())
    # Secrets are left out: the worker's own environment has them.
    catalog = worker_properties(settings)
    spark_conf = public({**table.spark_conf, **settings.spark_conf})

    def attempt(chunk: Chunk) -> Attempt:
        assignment = Assignment(
            table=table.identifier,
            step=table.step,
            token=plan.token,
            chunk=chunk.ordinal,
            window=window_of(table, chunk, landing),
            fork_base=fork_base.location,
            base_snapshot_id=fork_base.snapshot_id,
            receipt=journal.receipt_location(chunk.ordinal),
            code_version=table.code_version,
            code=code,
            unique=tuple(table.unique),
            checks=table.checks,
            merge=merge,
            left_out=tuple(left_out),
            undeclared=tuple(undeclared),
            inputs=tuple(inputs),
            read_on=read_on,
            source=source,
            compute=table.compute or settings.compute,
            catalog=catalog,
            spark_conf=spark_conf,
        )
        return replace(attempt_of(table, assignment, run_id, chunk.keys), packages=packages)

    return {chunk.ordinal: attempt(chunk) for chunk in plan.chunks}


def attempt_of(table: Table, work: Assignment | RewriteAssignment, run_id: str, partitions: Sequence[str]) -> Attempt:
    """Returns the first attempt at any work on a table. run_id, partitions: shown in the services' own lists."""
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

"""Makes the assignment of each worker of a rewrite, and the attempt that carries it.

How the work is cut into chunks is decided in spark_plan.py; drive/ starts the workers.
"""

from __future__ import annotations

from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.journal import Journal
from lakehouse_assets.protocol.rewriting import RewriteAssignment
from lakehouse_assets.rewrite.spark_plan import PlannedChunk, RewritePlan
from lakehouse_assets.run.assignments import attempt_of
from lakehouse_assets.run.resource import Lakehouse
from resources.catalog import catalog_properties
from resources.launchers.base import Attempt
from resources.secrets import public


def first_attempts(
    table: Table, lakehouse: Lakehouse, plan: RewritePlan, token: str, journal: Journal, run_id: str
) -> dict[int, Attempt]:
    """Returns the first attempt at each chunk of the plan, by ordinal.

    token: that of the landing. journal: says where receipts are written. run_id: for the services' own lists.
    """
    settings = lakehouse.settings
    # Secrets are left out: the worker's own environment has them.
    catalog = public(catalog_properties(settings))
    spark_conf = public({**table.spark_conf, **settings.spark_conf})

    def attempt(n: int, chunk: PlannedChunk) -> Attempt:
        assignment = RewriteAssignment(
            table=table.identifier,
            token=token,
            chunk=n,
            fork_base=chunk.fork_base,
            receipt=journal.receipt_location(n),
            strategy=plan.layout.strategy,
            zorder=plan.layout.zorder,
            compute=table.compute or settings.compute,
            catalog=catalog,
            spark_conf=spark_conf,
        )
        return attempt_of(table, assignment, run_id, [of.name for of in chunk.partitions])

    return {n: attempt(n, chunk) for n, chunk in enumerate(plan.chunks)}

"""Rewrites of a small table's forks by Spark, in a session of the test's own: written at one time, landed at another.
No Dagster: what an op adds is in test_spark_rewrite.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from lakehouse_assets.commit.head_fork import rewritten_units, write_head_fork
from lakehouse_assets.commit.landing import RewriteUnit
from lakehouse_assets.commit.manifests import Entries
from lakehouse_assets.maintenance.rewrite.plan import cut, listed, plan_rewrites
from lakehouse_assets.wire.receipts import Receipt
from lakehouse_assets.wire.work import RewriteAssignment
from lakehouse_assets.worker.session import TableCredentials
from tests.support.forks import Daily
from tests.support.rewrites import base_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Forks:
    """Forks of one table. folder: for receipts."""

    daily: Daily
    spark: SparkSession
    folder: Path
    receipts: list[Receipt] = field(default_factory=list)

    def rewrite(
        self,
        *partitions: str,
        sorts: bool = False,
        zorder: tuple[str, ...] = (),
        everything: bool = True,
        worker_bytes: int = 2**30,
        counts_only: bool = False,
    ) -> list[Receipt]:
        """Of these partitions (paths), of all without, at the head of now; a receipt for each chunk."""
        from lakehouse_assets.worker.fork_rewrite import rewrite  # imports PySpark

        table, base = self.daily.table, base_of(self.daily)
        tasks = plan_rewrites(base, table.io, Entries(), None, everything=everything)
        chosen = [task for task in tasks if task.name in partitions or not partitions]
        token, receipts = uuid4().hex, []
        for n, chunk in enumerate(cut(chosen, table.metadata, worker_bytes)):
            fork = write_head_fork(table, base, token, listed(chunk))
            receipt = (self.folder / f"{token}-{n}.json").as_uri()
            assignment = RewriteAssignment(
                self.daily.identifier,
                token,
                n,
                fork.location,
                receipt,
                sorts=sorts,
                zorder=zorder,
                counts_only=counts_only,
            )
            credentials = TableCredentials(table.io.properties, self.daily.identifier)
            receipts.append(rewrite(self.spark, assignment, credentials))
        self.receipts += receipts
        return receipts

    def units(self, *partitions: str, **options: object) -> list[RewriteUnit]:
        """What a rewrite made, ready to land."""
        receipts = self.rewrite(*partitions, **options)  # type: ignore[arg-type]
        return [unit for receipt in receipts for unit in rewritten_units(self.daily.table.io, receipt)]

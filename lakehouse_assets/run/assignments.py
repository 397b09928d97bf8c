"""What each worker of a run has to do: the assignment of its chunk, and the attempt that carries it.
How the run is cut into chunks is plan.py's; drive/ starts the workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from lakehouse_assets.commit.fork import ForkBase
from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.chunk import Chunk
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.protocol.assignment import Assignment
from lakehouse_assets.protocol.receipts import Receipts
from lakehouse_assets.protocol.step_code import worker_code
from lakehouse_assets.run.plan import window_of
from lakehouse_assets.run.resource import Lakehouse
from resources.launchers.base import Attempt
from resources.secrets import public


@dataclass
class Assignments:
    """The assignments of one run. token: its run token. run_id: for the services' own lists."""

    table: Table
    lakehouse: Lakehouse
    receipts: Receipts
    token: str
    fork_base: ForkBase
    run_id: str

    def attempt(self, chunk: Chunk) -> Attempt:
        """The first attempt at the chunk."""
        assignment = self.of(chunk)
        tags = {
            "lakehouse:run": self.run_id,
            "lakehouse:asset": self.table.key.to_user_string(),
            "lakehouse:partitions": keys_text(chunk.keys),
        }
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

    def of(self, chunk: Chunk) -> Assignment:
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
            code=self._code,
            unique=tuple(self.table.unique),
            compute=self.table.compute or settings.compute,
            catalog=self._catalog,
            spark_conf=public({**self.table.spark_conf, **settings.spark_conf}),
        )

    @cached_property
    def _code(self) -> str:
        return worker_code(self.table.step)

    @cached_property
    def _catalog(self) -> dict[str, str]:
        return self.lakehouse.worker_catalog()

"""The assignment of a worker that stages one chunk of a table.

Plain data. No Dagster, no Spark, no I/O: both sides of the process border import this module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from lakehouse_assets.protocol.merging import MergeWork
from lakehouse_assets.protocol.versions import Durable
from lakehouse_assets.step.window import Window

OUT_OF_REACH = "out_of_reach"
"""A key of a worker's report of its failure: whether another worker may succeed, because S3 did not answer or
credentials that the catalog vended expired."""
CAUSE = "cause"
"""A key of the same report: one of Cause, by which a person is told what to do."""


class Cause(StrEnum):
    """The side whose fault it is that a chunk was not staged."""

    DECLARATION = "declaration"
    """The table's declaration can't work."""
    INPUT = "input"
    """The step's input is missing or wrong, so that other chunks may have read it so too."""
    STEP = "step"
    """The step raised, for whatever reason, or returned rows that don't fit the table."""
    WORKER = "worker"
    """The worker was lost, could not be started, ended without a word, or lacked something: not the step's fault."""


@dataclass(frozen=True)
class Assignment(Durable):
    """Everything that one worker needs to stage one chunk.

    It is written to disk or S3, so it holds no secrets.
    """

    table: str
    """Iceberg identifier in the catalog ``lake``, such as ``nyc.flights``."""
    step: str
    """``module:function``, called as ``function(spark, window) -> DataFrame``."""
    token: str
    """The id of the run at the head of the resume chain."""
    chunk: int
    """The chunk's ordinal in the run, from 0."""
    window: Window
    fork_base: str
    """Location of the metadata file that the worker registers in its private catalog."""
    receipt: str
    """Location that the receipt is written to."""
    code_version: str
    """Table.code_version."""
    code: str
    """Hash of all that a worker of this step runs (step_code.worker_code); a worker with other code refuses."""
    base_snapshot_id: int | None = None
    """The snapshot that the fork base was made from; None: without history."""
    unique: tuple[str, ...] = ()
    """Columns that together must be unique within an Iceberg partition; counted by the worker."""
    checks: Mapping[str, str] = field(default_factory=dict)
    """Table.checks."""
    merge: MergeWork | None = None
    """How the step's rows are merged into the fork's; None: they are appended to it."""
    left_out: tuple[str, ...] = ()
    """Columns that the step returns and the table lacks."""
    undeclared: tuple[str, ...] = ()
    """Columns of the table that the step does not return. They get nulls; rows that a merge updates keep theirs."""
    compute: str = "local"
    """Where the worker runs, as LAKEHOUSE_COMPUTE has it."""
    catalog: Mapping[str, str] = field(default_factory=dict)
    """PyIceberg's properties of ``lake`` without secrets; those in the worker's environment are added and win."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    """The table's and the environment's settings, without secrets; they win over the worker's defaults."""
    kind: Literal["stage"] = "stage"
    """What a worker knows the payload by."""

    @property
    def parts(self) -> dict[str, str]:
        """Hashes of all that decides the rows, 16 hex digits each, by what a person calls the part.

        They are in the order in which a change of one explains those of the next. Left out are where the worker runs
        and its environment (secrets, a spark-defaults.conf, installed packages).
        """
        window = self.window
        bounds = [bound and bound.isoformat() for bound in (window.start, window.end)]
        parts = {
            "code": self.code,
            "declaration": (self.step, self.code_version, self.unique),
            "Spark settings": sorted(self.spark_conf.items()),
            "partitions or drop zone": (window.keys, bounds, sorted(window.dimensions.items()), window.landing),
            "table": (self.table, self.fork_base, self.base_snapshot_id),
        }
        return {name: _digest(part) for name, part in parts.items()}

    @property
    def work(self) -> str:
        """A hash of all parts, 16 hex digits, so that a receipt of other work is not taken for this chunk's."""
        return _digest((self.token, self.chunk, self.parts))


def _digest(data: object) -> str:
    return hashlib.sha256(repr(data).encode()).hexdigest()[:16]

"""What a worker is started to do: stage one chunk of a table. Plain data, to JSON and back.
No Dagster, no Spark, no I/O: both sides of the process border import this module."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from lakehouse_assets.protocol.merging import MergeWork
from lakehouse_assets.protocol.versions import with_version, without_version
from lakehouse_assets.step.window import Window

STAGE = "stage"
"""The ``kind`` of a payload that is an Assignment."""
OUT_OF_REACH = "out_of_reach"
"""In a worker's report of its failure: whether another worker may succeed, because S3 did not answer or credentials
that the catalog vended expired."""
CAUSE = "cause"
"""In such a report: one of Cause, by which a person is told what to do."""


class Cause(StrEnum):
    """Whose fault it is that a chunk was not staged."""

    DECLARATION = "declaration"
    """What is declared of the table can't work."""
    INPUT = "input"
    """What the step read is missing or wrong, so that other chunks may have read it so too."""
    STEP = "step"
    """The step raised, for whatever reason, or returned rows that don't fit the table."""
    WORKER = "worker"
    """The worker was lost, could not be started, ended without a word, or lacked something: not the step's fault."""


@dataclass(frozen=True)
class Assignment:
    """Everything one worker needs to stage one chunk. Written to disk or S3, so it holds no secrets.

    table: Iceberg identifier in the catalog ``lake``, such as ``nyc.flights``.
    step: ``module:function``, called as ``function(spark, window) -> DataFrame``.
    token: the id of the run at the head of the resume chain.
    chunk: the chunk's ordinal in the run, from 0.
    fork_base: location of the metadata file that the worker registers in its private catalog.
    receipt: location that the receipt is written to.
    code_version: Table.code_version.
    code: hash of all that a worker of this step runs (step_code.worker_code); a worker with other code refuses.
    base_snapshot_id: the snapshot that the fork base was made from; None: without history.
    unique: columns that together must be unique within an Iceberg partition; counted by the worker.
    checks: Table.checks. merge: how the step's rows are merged into the fork's; None: they are appended to it.
    left_out: columns that the step returns and the table lacks. undeclared: columns of the table that the step does not
    return, and that get nulls; a merge leaves those of the rows that it updates.
    compute: where the worker runs, as LAKEHOUSE_COMPUTE has it.
    catalog: PyIceberg's properties of ``lake`` without secrets; those in the worker's environment are added and win.
    spark_conf: the table's and the environment's settings, without secrets; they win over the worker's defaults.
    """

    table: str
    step: str
    token: str
    chunk: int
    window: Window
    fork_base: str
    receipt: str
    code_version: str
    code: str
    base_snapshot_id: int | None = None
    unique: tuple[str, ...] = ()
    checks: Mapping[str, str] = field(default_factory=dict)
    merge: MergeWork | None = None
    left_out: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ()
    compute: str = "local"
    catalog: Mapping[str, str] = field(default_factory=dict)
    spark_conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, str]:
        """All that decides the rows, by what a person calls it: 16 hex digits each, in the order in which a change of
        one explains those of the next.

        Left out are where the worker runs and its environment (secrets, a spark-defaults.conf, installed packages).
        """
        parts = {
            "code": self.code,
            "declaration": (self.step, self.code_version, self.unique),
            "Spark settings": sorted(self.spark_conf.items()),
            "partitions or drop zone": _as_json(self.window),
            "table": (self.table, self.fork_base, self.base_snapshot_id),
        }
        return {name: _digest(part) for name, part in parts.items()}

    @property
    def work(self) -> str:
        """16 hex digits over all parts, so that a receipt of other work is not taken for this chunk's."""
        return _digest((self.token, self.chunk, self.parts))

    def to_json(self) -> dict[str, Any]:
        """A worker's payload: a JSON object with its ``kind`` and version; datetimes in ISO 8601."""
        return {"kind": STAGE, **with_version(_as_json(self))}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Assignment:
        """Inverse of to_json. Raises ValueError for another version."""
        fields = {name: value for name, value in without_version(data).items() if name != "kind"}
        window = dict(fields["window"])
        for bound in ("start", "end"):
            window[bound] = datetime.fromisoformat(window[bound]) if window[bound] else None
        window["keys"] = tuple(window["keys"])
        window["dimensions"] = {name: tuple(keys) for name, keys in window["dimensions"].items()}
        merge = MergeWork.from_json(fields["merge"])
        lists = {name: tuple(fields[name]) for name in ("unique", "left_out", "undeclared")}
        return cls(**{**fields, **lists, "window": Window(**window), "merge": merge})


def _digest(data: object) -> str:
    return hashlib.sha256(repr(data).encode()).hexdigest()[:16]


def _as_json(data: Assignment | Window) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(json.dumps(asdict(data), default=datetime.isoformat))
    return fields

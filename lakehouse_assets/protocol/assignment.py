"""What a worker is told (Assignment, Window) and what it leaves behind (Receipt): plain data, JSON both ways.
No Dagster, no Spark, no I/O: both sides of the process border import this module."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import date, datetime
from typing import Any

STAGE = "stage"
"""The ``kind`` of a payload that is an Assignment."""
OUT_OF_REACH = "out_of_reach"
"""In a worker's report of its failure: S3 did not answer, so that another worker may well succeed."""


@dataclass(frozen=True)
class Window:
    """The part of a table that one call of a step computes.

    keys: the Dagster partition keys of the chunk, in order; empty for a table without partitions.
    start, end: the half-open time window [start, end) the keys cover together, timezone-aware;
        None where the partitions have no time dimension.
    dimensions: for each static, dynamic or multi dimension, the keys asked for, by dimension name.
    landing: the prefix of the drop zone (a path or a URL such as ``s3://…``), no trailing slash.
    """

    keys: tuple[str, ...] = ()
    start: datetime | None = None
    end: datetime | None = None
    dimensions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    landing: str = ""

    @property
    def start_date(self) -> date:
        """The first day of the window. Raises ValueError where there is no time dimension."""
        return _bound(self.start).date()

    @property
    def end_date(self) -> date:
        """The day behind the window's last (exclusive). Raises ValueError where there is no time dimension."""
        return _bound(self.end).date()


def _bound(bound: datetime | None) -> datetime:
    if bound is None:
        raise ValueError("this table's partitions have no time dimension: use window.keys or window.dimensions")
    return bound


@dataclass(frozen=True)
class Assignment:
    """Everything one worker needs to stage one chunk. Written to disk or S3, so there are no secrets in it.

    table: Iceberg identifier in the catalog ``lake``, such as ``nyc.flights``.
    step: ``module:function``, called as ``function(spark, window) -> DataFrame``.
    token: the run's token (see design: the head of the resume chain).
    chunk: the chunk's ordinal in the run, from 0.
    fork_base: location of the metadata file the worker registers in its private catalog.
    receipt: location the receipt is written to.
    unique: columns whose values together must be unique within an Iceberg partition; counted by the worker.
    code_version: of the step and the declaration (Table.code_version).
    code: hash of all that a worker of this step runs (step_code.worker_code); a worker with other code refuses.
    compute: where the worker runs, as LAKEHOUSE_COMPUTE has it.
    catalog: PyIceberg's properties of ``lake``, secrets left out; a worker's own environment adds to them and wins.
    spark_conf: settings that somebody gave, secrets left out; the worker puts them over its machine's defaults.
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
    unique: tuple[str, ...] = ()
    compute: str = "local"
    catalog: Mapping[str, str] = field(default_factory=dict)
    spark_conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def work(self) -> str:
        """16 hex digits over all that decides the rows: the receipt of other work is not this chunk's.

        The window with the drop zone, the fork base (so schema and spec), code, Spark settings. Not where the worker
        runs, nor what its own environment holds (secrets, a spark-defaults.conf, installed packages).
        """
        asked = (self.table, self.step, self.token, self.chunk, self.fork_base, self.unique)
        decided = (self.code_version, self.code, sorted(self.spark_conf.items()), _told(self.window))
        return hashlib.sha256(repr((asked, decided)).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """A worker's payload: a JSON object with its ``kind``; datetimes in ISO 8601."""
        return {"kind": STAGE, **_told(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Assignment:
        """Inverse of to_json. Raises TypeError on unknown or missing fields (a worker of another version)."""
        window = dict(data["window"])
        for bound in ("start", "end"):
            window[bound] = datetime.fromisoformat(window[bound]) if window[bound] else None
        window["keys"] = tuple(window["keys"])
        window["dimensions"] = {name: tuple(keys) for name, keys in window["dimensions"].items()}
        fields = {name: value for name, value in data.items() if name != "kind"}
        return cls(**{**fields, "window": Window(**window), "unique": tuple(data["unique"])})


@dataclass(frozen=True)
class Receipt:
    """The proof that a chunk was staged. Durable: outlives the worker and the run that asked for it.

    keys: the chunk's partition keys. work: its assignment's.
    fork_base, metadata_location: the fork as registered, and the one metadata file its append wrote.
    rows: staged rows. duplicates: example rows breaking ``unique``, each with its partition (at most 5), empty when it
    holds.
    stage_seconds: from the worker's start to the staged append. created_at: aware datetime, ISO 8601.
    worker: where it ran, for a person to click or read.
    """

    table: str
    token: str
    chunk: int
    keys: tuple[str, ...]
    work: str
    fork_base: str
    metadata_location: str
    rows: int
    stage_seconds: float
    created_at: str
    worker: str
    duplicates: tuple[str, ...] = ()

    @classmethod
    def of(cls, assignment: Assignment, **staged: Any) -> Receipt:
        """The receipt of an assignment; ``staged``: the fields that its worker found out."""
        return cls(
            table=assignment.table,
            token=assignment.token,
            chunk=assignment.chunk,
            keys=assignment.window.keys,
            work=assignment.work,
            fork_base=assignment.fork_base,
            **staged,
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Receipt:
        """Raises ValueError or TypeError for a torn or foreign file."""
        data = json.loads(text)
        return cls(**{**data, "keys": tuple(data["keys"]), "duplicates": tuple(data["duplicates"])})


def _told(data: Assignment | Window) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(data), default=datetime.isoformat))

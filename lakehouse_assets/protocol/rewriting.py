"""What a worker is started to rewrite, and the receipt that it leaves: plain data, to JSON and back.
No Dagster, no Spark, no I/O: both sides of the process border import this module."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from lakehouse_assets.protocol.versions import with_version, without_version

REWRITE = "rewrite"
"""The ``kind`` of a payload that is a RewriteAssignment."""


class Strategy(StrEnum):
    """How the rows are laid out in the new files (Iceberg's rewrite_data_files)."""

    BINPACK = "binpack"
    """In the order in which they are read."""
    SORT = "sort"
    """By the table's own sort order."""
    ZORDER = "zorder"
    """By the bits of several columns in turn."""


@dataclass(frozen=True)
class RewriteAssignment:
    """All that one worker needs to rewrite the files of one fork. Written to disk or S3, so it holds no secrets.

    table: Iceberg identifier in the catalog ``lake``, for credentials and messages. token, chunk: of the run's work.
    fork_base: location of a metadata file that lists what is to be rewritten and nothing else; all of it is rewritten,
    to files of the table's current partition spec. receipt: where the receipt is written.
    zorder: the columns of Strategy.ZORDER. compute, catalog, spark_conf: as in Assignment.
    """

    table: str
    token: str
    chunk: int
    fork_base: str
    receipt: str
    strategy: Strategy = Strategy.BINPACK
    zorder: tuple[str, ...] = ()
    compute: str = "local"
    catalog: Mapping[str, str] = field(default_factory=dict)
    spark_conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def work(self) -> str:
        """16 hex digits over all that decides the result. The worker's code does not: whoever lands what it wrote
        trusts its proof, not its code."""
        identity = (self.table, self.token, self.chunk, self.fork_base, str(self.strategy), self.zorder)
        return hashlib.sha256(repr((identity, sorted(self.spark_conf.items()))).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """A worker's payload: a JSON object with its ``kind`` and version."""
        fields: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return {"kind": REWRITE, **with_version(fields)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RewriteAssignment:
        """Inverse of to_json. Raises ValueError for another version."""
        fields = {name: value for name, value in without_version(data).items() if name != "kind"}
        return cls(**{**fields, "strategy": Strategy(fields["strategy"]), "zorder": tuple(fields["zorder"])})


class RowSums(NamedTuple):
    """Rows as a multiset, by their 64-bit hashes; what the numbers are is commit/proof.py's Digest's."""

    rows: int
    low: int
    high: int
    xor: int


@dataclass(frozen=True)
class RewriteReceipt:
    """The proof that the files of a fork were rewritten. Durable: it outlives the worker and its run.

    work: RewriteAssignment.work. fork_base, metadata_location: the metadata file that the worker registered, and the
    one that the rewrite committed. before, after: by file path, the rows that were read of the fork's data files before
    and after; a file without rows may be missing. said: the numbers that Spark's procedure returned, for a person to
    read. seconds: of the rewrite and of both readings. created_at: with a timezone, ISO 8601. worker: its host.
    """

    table: str
    token: str
    chunk: int
    work: str
    fork_base: str
    metadata_location: str
    before: Mapping[str, RowSums]
    after: Mapping[str, RowSums]
    said: Mapping[str, int]
    seconds: Mapping[str, float]
    created_at: str
    worker: str

    def to_json(self) -> str:
        return json.dumps(with_version(asdict(self)))

    @classmethod
    def from_json(cls, text: str) -> RewriteReceipt:
        """Raises ValueError, for a torn or foreign file also TypeError, KeyError or AttributeError."""
        fields = without_version(json.loads(text))
        sides = {side: {path: RowSums(*sums) for path, sums in fields[side].items()} for side in ("before", "after")}
        return cls(**{**fields, **sides})

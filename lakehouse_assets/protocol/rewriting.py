"""The assignment of a worker that rewrites files, and what its receipt tells of it: plain data.

No Dagster, no Spark, no I/O: both sides of the process border import this module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

from lakehouse_assets.protocol.versions import Durable


class Strategy(StrEnum):
    """The way in which rows are laid out in the new files (Iceberg's rewrite_data_files)."""

    BINPACK = "binpack"
    """Rows stay in the order in which they are read."""
    SORT = "sort"
    """Rows are sorted by the table's own sort order."""
    ZORDER = "zorder"
    """Rows are sorted by the bits of several columns in turn."""


@dataclass(frozen=True)
class RewriteAssignment(Durable):
    """Everything that one worker needs to rewrite the files of one fork.

    It is written to disk or S3, so it holds no secrets. compute, catalog and spark_conf are as in Assignment.
    """

    table: str
    """Iceberg identifier in the catalog ``lake``, for credentials and messages."""
    token: str
    """The token of the run's work."""
    chunk: int
    """The ordinal of the chunk in that work."""
    fork_base: str
    """Location of a metadata file that lists what is to be rewritten and nothing else. All of it is rewritten, to files
    of the table's current partition spec."""
    receipt: str
    """Location that the receipt is written to."""
    strategy: Strategy = Strategy.BINPACK
    zorder: tuple[str, ...] = ()
    """The columns of Strategy.ZORDER."""
    counts_only: bool = False
    """Whether the rows on both sides are counted, and not hashed."""
    compute: str = "local"
    catalog: Mapping[str, str] = field(default_factory=dict)
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    kind: Literal["rewrite"] = "rewrite"
    """What a worker knows the payload by."""

    @property
    def work(self) -> str:
        """A hash of all that decides the result, 16 hex digits.

        The worker's code is no part of it: whoever lands what it wrote trusts its proof, not its code.
        """
        how = (str(self.strategy), self.zorder, self.counts_only, sorted(self.spark_conf.items()))
        identity = (self.table, self.token, self.chunk, self.fork_base, how)
        return hashlib.sha256(repr(identity).encode()).hexdigest()[:16]


class RowSums(NamedTuple):
    """A multiset of rows, by their 64-bit hashes; commit/proof.py's Digest says what the numbers are."""

    rows: int
    low: int
    high: int
    xor: int


@dataclass(frozen=True)
class Rewritten:
    """The proof that the rows of rewritten files are the same, and the rewrite's numbers; a part of its Receipt."""

    before: Mapping[str, RowSums]
    """By file path, the rows that were read of the fork's data files before; a file without rows may be missing."""
    after: Mapping[str, RowSums]
    """The same of the data files after."""
    said: Mapping[str, int]
    """The numbers that Iceberg's procedure returned, for a person to read."""
    seconds: Mapping[str, float]
    """``rewrite``: of the procedure and of the count of the rows before, which runs beside it. ``count again``: of the
    count of the rows after."""

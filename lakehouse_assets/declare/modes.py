"""Write modes, and how rows are written: distribution, file sizes, Parquet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Protocol, runtime_checkable

import dagster as dg
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import UUIDType

from lakehouse_assets.declare.sql_conditions import condition_problem

MERGE_MODE = "write.merge.mode"
NO_NAME = re.compile(r"[(),`]|\s(asc|desc)(\s+nulls\s+(first|last))?\s*$", re.IGNORECASE)
"""Marks of an expression or an order in SQL, which the name of a column doesn't have."""


class Declared(Protocol):
    """The part of a declared table that a mode or its tuning looks at."""

    @property
    def schema(self) -> Schema: ...

    @property
    def spec(self) -> PartitionSpec: ...

    @property
    def partitions(self) -> dg.PartitionsDefinition | None: ...

    @property
    def unique(self) -> Sequence[str]: ...

    @property
    def publish_others(self) -> bool: ...

    @property
    def properties(self) -> Mapping[str, str]: ...

    @property
    def write_mode(self) -> WriteMode: ...


@runtime_checkable
class WriteMode(Protocol):
    """The way a run changes its table, as it is declared.

    Modes are frozen dataclasses, whose repr is a part of Table.code_version: a receipt staged for one mode is not
    published in another.
    """

    @property
    def owns_partitions(self) -> bool:
        """Whether a run's rows must lie in its own partitions.

        Each Dagster partition must then be a whole number of Iceberg partitions.
        """

    @property
    def replaces(self) -> bool:
        """Whether a run replaces all rows of its partitions."""

    @property
    def splits(self) -> bool:
        """Whether several workers may share a run."""

    @property
    def adds_again(self) -> bool:
        """Whether a run that is repeated as a whole leaves its rows twice in the table."""

    @property
    def match_on(self) -> Sequence[str]:
        """The columns by which a run finds rows of the table to merge its own with; empty if it does not merge."""

    def problems(self, table: Declared) -> Iterator[str]:
        """Yields the reasons why the table can't be written in this mode, each with what to do."""


@dataclass(frozen=True)
class Overwrite:
    """A run replaces exactly its partitions.

    Example:
        >>> from lakehouse_assets import Overwrite, Table, column
        >>> Table("shop.days", [column("day", "date")], "shop.steps:days").write_mode == Overwrite()
        True
    """

    owns_partitions = replaces = splits = True
    adds_again = False
    match_on = ()

    def problems(self, table: Declared) -> Iterator[str]:
        """Yields no problem: alignment checks whether the partitions line up."""
        return iter(())


@dataclass(frozen=True)
class FullRefresh(Overwrite):
    """A run replaces the whole table in one commit; earlier snapshots stay readable.

    Example:
        >>> from lakehouse_assets import FullRefresh, Table, column
        >>> Table("shop.rates", [column("euros", "double")], "shop.steps:rates", write_mode=FullRefresh()).write_mode
        FullRefresh()
    """

    def problems(self, table: Declared) -> Iterator[str]:
        """Yields a problem for a table with Dagster partitions."""
        if table.partitions is not None:
            yield (
                "FullRefresh replaces the whole table, so the table can't have Dagster partitions: leave them out, or "
                "declare Overwrite() to replace a run's partitions"
            )


@dataclass(frozen=True)
class Append:
    """A run adds its rows, once: a retry and a re-execution from failure add nothing twice.

    "Re-execute all" of a run that has added them is refused without the tag ``lakehouse/append_again``, whose value is
    that run's id.

    Example:
        >>> from datetime import timedelta
        >>> from lakehouse_assets import Append
        >>> Append(dedup_on=["event_id"], within=timedelta(days=14)).dedup_on
        ['event_id']
    """

    dedup_on: Sequence[str] = ()
    """Columns that identify a row. Rows whose values of them are in the table, or that come twice in the run, are left
    out and counted."""
    within: timedelta | None = None
    """How far back the table is looked at for such rows, by when they were committed; None for all of it. Older rows
    count as well where no snapshot is left that tells their age."""
    owns_partitions = replaces = False

    @property
    def match_on(self) -> Sequence[str]:
        """The columns of ``dedup_on``."""
        return self.dedup_on

    @property
    def splits(self) -> bool:
        """Whether several workers may share a run: only without ``dedup_on``."""
        return not self.dedup_on

    @property
    def adds_again(self) -> bool:
        """Whether a run that is repeated as a whole leaves its rows twice in the table: only without ``dedup_on``."""
        return not self.dedup_on

    def problems(self, table: Declared) -> Iterator[str]:
        """Yields problems of ``dedup_on`` and ``within``, and one for a table that is declared ``unique``."""
        yield from _unknown("Append(dedup_on=…)", self.dedup_on, table)
        if self.within is not None and self.within <= timedelta(0):
            yield f"Append has within={self.within}, it must be above 0"
        if self.within is not None and not self.dedup_on:
            yield "Append(within=…) has no effect without dedup_on: leave it out, or name the columns of dedup_on"
        if table.unique:
            yield "Append can't keep columns unique: leave out `unique`, or declare Merge(keys=…)"


class Rewrites(StrEnum):
    """The way a merge changes rows of the table (Iceberg's write.merge.mode).

    Example:
        >>> from lakehouse_assets import Rewrites
        >>> [*map(str, Rewrites)]
        ['copy-on-write', 'merge-on-read']
    """

    COPY_ON_WRITE = "copy-on-write"
    """The files of changed rows are written anew: slower to merge, and readers have nothing more to do."""
    MERGE_ON_READ = "merge-on-read"
    """Delete files name the changed rows: faster to merge, slower to read until maintenance has applied them."""


@dataclass(frozen=True)
class Merge:
    """A run's rows are changes, each of which inserts, updates or deletes the row with its key.

    The step may return columns beside the table's if delete_when or order_by names them.

    Example:
        >>> from lakehouse_assets import Merge, Rewrites
        >>> Merge(["id"], delete_when="op = 'D'", order_by="at", rewrites=Rewrites.MERGE_ON_READ).keys
        ['id']
    """

    keys: Sequence[str]
    """The columns that identify a row; none of them is ever null."""
    delete_when: str = ""
    """A condition in SQL over the step's columns, such as ``op = 'D'``; a change deletes its row where it is true."""
    order_by: str = ""
    """The step's column by which the latest of several changes with one key is taken; without it they fail the run."""
    rewrites: Rewrites = Rewrites.COPY_ON_WRITE
    """Whether data files are written anew, or delete files beside them."""
    by_partition: bool = False
    """Whether a run's changes all lie in the run's own partitions, so that workers can share it. If not, Dagster's
    partitions are those of the changes, such as the days on which they came, and one worker merges them all."""
    at_most_changed: float | None = None
    """The share of the table's rows that a run may update and delete; more fail the audit. None for any share."""
    replaces = adds_again = False

    @property
    def match_on(self) -> Sequence[str]:
        """The columns of ``keys``."""
        return self.keys

    @property
    def owns_partitions(self) -> bool:
        """Whether a run's changes must lie in its own partitions: only with ``by_partition``."""
        return self.by_partition

    @property
    def splits(self) -> bool:
        """Whether several workers may share a run: only with ``by_partition``."""
        return self.by_partition

    def problems(self, table: Declared) -> Iterator[str]:
        """Yields problems of the mode's own options, and of those of the table that can't go with it."""
        if not self.keys:
            yield "Merge has no keys, they must be a list of columns such as ['id']"
        yield from _unknown("Merge(keys=…)", self.keys, table)
        if self.delete_when and (problem := condition_problem(self.delete_when)):
            yield f"delete_when ({self.delete_when}) of its Merge can't be evaluated: {problem}"
        if NO_NAME.search(self.order_by):
            yield (
                f"Merge has order_by={self.order_by!r}, it must be the name of one column of the step's rows: of "
                "several changes the one with its greatest value counts"
            )
        bound = self.at_most_changed
        if bound is not None and not 0 <= bound <= 1:
            yield f"Merge has at_most_changed={bound!r}, it must be a share from 0 to 1"
        of_partitions = [table.schema.find_column_name(field.source_id) for field in table.spec.fields]
        if self.by_partition and (apart := sorted({*map(str, of_partitions)} - {*self.keys})):
            yield f"Merge(by_partition=True) needs the partitions' columns among its keys, it lacks {', '.join(apart)}"
        if self.by_partition and table.partitions is None:
            yield (
                "Merge(by_partition=True) shares a run by its Dagster partitions, and the table has no Dagster "
                "partitions: leave it out, or declare `partitions`"
            )
        if MERGE_MODE in table.properties:
            yield f"a run's merge does not heed the property {MERGE_MODE}: declare Merge(rewrites=…)"
        if table.unique:
            yield "Merge keeps its keys unique: leave out `unique`"
        if table.publish_others:
            yield "Merge lands as a whole, so publish_others can't be declared with it"


def _unknown(option: str, names: Sequence[str], table: Declared) -> Iterator[str]:
    """Yields a problem for each name that is no column, is named twice, or has values that can't be compared."""
    if twice := sorted({name for name in names if [*names].count(name) > 1}):
        yield f"{option} names {', '.join(twice)} twice"
    known = {column.name: column.field_type for column in table.schema.columns}
    for name in dict.fromkeys(names):
        if name not in known:
            yield f"{option} names the column {name!r}, the table has {', '.join(known)}"
        elif not known[name].is_primitive:
            yield f"{option} names {name!r}, whose type is nested: such values can't be compared"
        elif isinstance(known[name], UUIDType):
            # https://github.com/apache/iceberg/issues/14216
            yield f"{option} names {name!r}, a uuid: Iceberg may skip files that hold such a value, declare it string"


METRICS = ("none", "counts", "full")
TRUNCATE = re.compile(r"truncate\([1-9]\d*\)")
MIB = 2**20
ZSTD_LEVELS = range(1, 23)


class Distribution(StrEnum):
    """The way rows are brought together before they are written (Iceberg's write.distribution-mode).

    Example:
        >>> from lakehouse_assets import Distribution, Tuning
        >>> Tuning(distribution=Distribution.NONE).distribution.value
        'none'
    """

    NONE = "none"
    """Rows stay as the step has them: for steps whose rows are clustered already."""
    HASH = "hash"
    """Rows are brought together by partition: few files. Spark splits a partition that is larger than ``partition_mib``
    over several tasks."""
    RANGE = "range"
    """Rows are brought together by partition and sort order, so that files of one partition hold different ranges of
    that order; the step is computed twice, to sample it."""


class Planning(StrEnum):
    """The place where Spark plans scans (Iceberg's read.data-planning-mode).

    Example:
        >>> from lakehouse_assets import Planning, Tuning
        >>> Tuning(planning=Planning.DISTRIBUTED).planning.value
        'distributed'
    """

    AUTO = "auto"
    """By the size of the metadata, as Iceberg decides."""
    LOCAL = "local"
    """On the driver."""
    DISTRIBUTED = "distributed"
    """On the executors, where the driver's memory does not suffice."""


class Compression(StrEnum):
    """Parquet's codecs (write.parquet.compression-codec).

    Example:
        >>> from lakehouse_assets import Compression, Tuning
        >>> Tuning(compression=Compression.SNAPPY).compression.value
        'snappy'
    """

    ZSTD = "zstd"
    """Small, and read fast."""
    SNAPPY = "snappy"
    """Larger, and read faster."""
    GZIP = "gzip"
    """Small, and read slowly; Spark's choice where a table has none."""
    UNCOMPRESSED = "uncompressed"
    """As it is, for values that are compressed already."""


@dataclass(frozen=True)
class Tuning:
    """Table properties by typed names.

    None leaves a property as it is: hash distribution and zstd where a run created the table, else Iceberg's default.

    Example:
        >>> from lakehouse_assets import Tuning
        >>> Tuning(file_mib=128, metrics={"name": "truncate(32)"}).file_mib
        128
    """

    distribution: Distribution | None = None
    """The distribution of rows that are added."""
    merge_distribution: Distribution | None = None
    """The distribution of rows that a merge writes."""
    partition_mib: int | None = None
    """How much Spark aims to write in one task, in MiB (write.spark.advisory-partition-size-bytes); a file becomes a
    fraction of it, as Parquet compresses."""
    file_mib: int | None = None
    """The size in MiB at which a writer begins another data file, and at which maintenance aims."""
    compression: Compression | None = None
    """The codec of data files."""
    compression_level: int | None = None
    """The level of zstd, 1 to 22."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """The metrics of columns, by name: ``none``, ``counts``, ``truncate(n)`` or ``full``. By Iceberg's default the
    first 100 columns have them, and those of the sort order."""
    object_storage: bool | None = None
    """Whether files are spread over prefixes by a hash, for tables that S3 throttles."""
    planning: Planning | None = None
    """Where Spark plans scans."""

    def properties(self) -> dict[str, str]:
        """Returns Iceberg's names and values of what is declared."""
        values: dict[str, object] = {
            "write.distribution-mode": self.distribution,
            "write.merge.distribution-mode": self.merge_distribution,
            "write.spark.advisory-partition-size-bytes": self.partition_mib and self.partition_mib * MIB,
            "write.target-file-size-bytes": self.file_mib and self.file_mib * MIB,
            "write.parquet.compression-codec": self.compression,
            "write.parquet.compression-level": self.compression_level,
            "write.object-storage.enabled": None if self.object_storage is None else str(self.object_storage).lower(),
            "read.data-planning-mode": self.planning,
            "read.delete-planning-mode": self.planning,
        }
        metrics = {f"write.metadata.metrics.column.{name}": mode for name, mode in self.metrics.items()}
        return {name: str(value) for name, value in values.items() if value is not None} | metrics

    def problems(self, table: Declared) -> Iterator[str]:
        """Yields the reasons why the table can't be written so."""
        if self.merge_distribution is not None and not table.write_mode.match_on:
            mode = type(table.write_mode).__name__
            yield f"tuning has merge_distribution, which has no effect with this {mode}: declare distribution"
        level = self.compression_level
        if level is not None and not (level in ZSTD_LEVELS and self.compression == "zstd"):
            least, most = min(ZSTD_LEVELS), max(ZSTD_LEVELS)
            yield (
                f"tuning has compression_level={level!r}, it must be from {least} to {most}, with "
                "compression=Compression.ZSTD: other codecs here have no levels"
            )
        for name in ("partition_mib", "file_mib"):
            if (value := getattr(self, name)) is not None and value < 1:
                yield f"tuning has {name}={value!r}, it must be 1 or more"
        known = [column.name for column in table.schema.columns]
        for name, mode in self.metrics.items():
            if name not in known:
                yield f"tuning has metrics of {name!r}, the table has {', '.join(known)}"
            if mode not in METRICS and not TRUNCATE.fullmatch(str(mode)):
                yield f"tuning has metrics of {name} {mode!r}, known are {', '.join(METRICS)}, truncate(16)"
        if twice := sorted(self.properties().keys() & table.properties.keys()):
            yield f"{', '.join(twice)} is set by tuning and by properties: leave out one"

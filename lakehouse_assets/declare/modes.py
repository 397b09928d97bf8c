"""Write modes, and how files are written."""

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
"""Signs that a text is an SQL expression or order, and not a column's name."""


class Declared(Protocol):
    """The properties of Table that modes and tuning check; they can't import Table, whose module imports this one."""

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
    """How a run changes its table.

    Modes are frozen dataclasses, because Table.code_version contains their repr: what is staged for one mode is not
    published in another.
    """

    @property
    def owns_partitions(self) -> bool:
        """Whether a run's rows must lie in its own partitions, each a whole number of Iceberg partitions."""

    @property
    def replaces(self) -> bool:
        """Whether a run replaces all rows of its partitions."""

    @property
    def splits(self) -> bool:
        """Whether several workers may share a run."""

    @property
    def adds_again(self) -> bool:
        """Whether repeating a whole run adds its rows twice."""

    @property
    def match_on(self) -> Sequence[str]:
        """The columns by which a run's rows are compared with the table's; empty if the mode compares none."""

    @property
    def row_texts(self) -> Sequence[str]:
        """The conditions and names in which the step's rows may have columns besides the table's."""

    def problems(self, table: Declared) -> Iterator[str]:
        """Yields the reasons why the table can't be written in this mode, each with a remedy."""


@dataclass(frozen=True)
class Overwrite:
    """A run replaces exactly its partitions.

    Examples:
        >>> from lakehouse_assets import Overwrite, Table, column
        >>> Table("shop.days", [column("day", "date")], "shop.steps:days").write_mode == Overwrite()
        True
    """

    owns_partitions = replaces = splits = True
    adds_again = False
    match_on = row_texts = ()

    def problems(self, table: Declared) -> Iterator[str]:
        """Yields nothing: alignment.py checks the partitions."""
        return iter(())


@dataclass(frozen=True)
class FullRefresh(Overwrite):
    """A run replaces the whole table in one commit; earlier snapshots stay readable.

    Examples:
        >>> from lakehouse_assets import FullRefresh, Table, column
        >>> Table("shop.rates", [column("euros", "double")], "shop.steps:rates", write_mode=FullRefresh()).write_mode
        FullRefresh()
    """

    def problems(self, table: Declared) -> Iterator[str]:
        """Yields a problem for Dagster partitions."""
        if table.partitions is not None:
            yield (
                "FullRefresh replaces the whole table, so the table can't have Dagster partitions: leave them out, or "
                "declare Overwrite() to replace a run's partitions"
            )


@dataclass(frozen=True)
class Append:
    """A run adds its rows once: neither a retry nor a re-execution from failure adds them again.

    "Re-execute all" of a run that has added its rows is refused without the tag ``lakehouse/append_again``, whose value
    is that run's id.

    Examples:
        >>> from datetime import timedelta
        >>> from lakehouse_assets import Append
        >>> Append(dedup_on=["event_id"], within=timedelta(days=14)).dedup_on
        ['event_id']
    """

    dedup_on: Sequence[str] = ()
    """Columns that identify a row. Rows that are already in the table, or repeat within the run, are left out and
    counted."""
    within: timedelta | None = None
    """How far back to look for such rows in the table, by commit time; None for the whole table. Older rows count too
    if no remaining snapshot tells their age."""
    owns_partitions = replaces = False
    row_texts = ()

    @property
    def match_on(self) -> Sequence[str]:
        """Its ``dedup_on``."""
        return self.dedup_on

    @property
    def splits(self) -> bool:
        """Only without ``dedup_on``: one worker must see all rows to find repeated ones."""
        return not self.dedup_on

    @property
    def adds_again(self) -> bool:
        """Only without ``dedup_on``: with it, the repeated rows are left out."""
        return not self.dedup_on

    def problems(self, table: Declared) -> Iterator[str]:
        """Yields problems of its options, and of ``unique``."""
        yield from _unknown("Append(dedup_on=…)", self.dedup_on, table)
        if self.within is not None and self.within <= timedelta(0):
            yield f"Append has within={self.within}, it must be above 0"
        if self.within is not None and not self.dedup_on:
            yield "Append(within=…) has no effect without dedup_on: leave it out, or name the columns of dedup_on"
        if table.unique:
            yield "Append can't keep columns unique: leave out `unique`, or declare Merge(keys=…)"


class Rewrites(StrEnum):
    """How a merge changes rows (Iceberg's write.merge.mode).

    Examples:
        >>> from lakehouse_assets import Rewrites
        >>> [*map(str, Rewrites)]
        ['copy-on-write', 'merge-on-read']
    """

    COPY_ON_WRITE = "copy-on-write"
    """Rewrites the files of changed rows: slower to merge, no extra work for readers."""
    MERGE_ON_READ = "merge-on-read"
    """Writes delete files for the changed rows: faster to merge, slower to read until maintenance applies them."""


@dataclass(frozen=True)
class Merge:
    """A run's rows are changes: each inserts, updates or deletes the row with its key.

    The step may also return columns only for delete_when and order_by.

    Examples:
        >>> from lakehouse_assets import Merge, Rewrites
        >>> Merge(["id"], delete_when="op = 'D'", order_by="at", rewrites=Rewrites.MERGE_ON_READ).keys
        ['id']
    """

    keys: Sequence[str]
    """The columns that identify a row, never null."""
    delete_when: str = ""
    """An SQL condition over the step's columns, such as ``op = 'D'``; if true, a change deletes its row."""
    order_by: str = ""
    """The step's column that selects the latest of several changes with one key; without it, they fail the run."""
    rewrites: Rewrites = Rewrites.COPY_ON_WRITE
    """Whether to rewrite data files or add delete files."""
    by_partition: bool = False
    """Whether all of a run's changes lie in its own partitions, so that workers can share it. If not, Dagster's
    partitions are those of the changes, such as the days on which they came, and one worker merges them all."""
    at_most_changed: float | None = None
    """The largest share of the table's rows that a run may update and delete; more fails the audit. None for no
    limit."""
    replaces = adds_again = False

    @property
    def match_on(self) -> Sequence[str]:
        """Its ``keys``."""
        return self.keys

    @property
    def row_texts(self) -> Sequence[str]:
        """``delete_when`` and ``order_by``."""
        return self.delete_when, self.order_by

    @property
    def owns_partitions(self) -> bool:
        """Only with ``by_partition``: else any row of the table may change."""
        return self.by_partition

    @property
    def splits(self) -> bool:
        """Only with ``by_partition``: two workers then never change the same row."""
        return self.by_partition

    def problems(self, table: Declared) -> Iterator[str]:
        """Yields problems of its options, and conflicts with the table's."""
        if not self.keys:
            yield "Merge has no keys; declare a list of columns such as ['id']"
        yield from _unknown("Merge(keys=…)", self.keys, table)
        if self.delete_when and (problem := condition_problem(self.delete_when)):
            yield f"delete_when ({self.delete_when}) of its Merge can't be evaluated: {problem}"
        if NO_NAME.search(self.order_by):
            yield (
                f"Merge has order_by={self.order_by!r}; it must name one column of the step's rows: if a key has "
                "several changes, the one with the greatest value counts"
            )
        bound = self.at_most_changed
        if bound is not None and not 0 <= bound <= 1:
            yield f"Merge has at_most_changed={bound!r}, it must be a share from 0 to 1"
        # The column of each partition field: without it among the keys, equal keys could lie in two partitions.
        of_partitions = [table.schema.find_column_name(field.source_id) for field in table.spec.fields]
        if self.by_partition and (apart := sorted({*map(str, of_partitions)} - {*self.keys})):
            yield f"Merge(by_partition=True) needs the partitions' columns among its keys, but lacks {', '.join(apart)}"
        if self.by_partition and table.partitions is None:
            yield (
                "Merge(by_partition=True) splits a run by its Dagster partitions, but the table has none: leave it "
                "out, or declare `partitions`"
            )
        if MERGE_MODE in table.properties:
            yield f"a run's merge ignores the property {MERGE_MODE}: declare Merge(rewrites=…)"
        if table.unique:
            yield "Merge already keeps its keys unique: leave out `unique`"
        if table.publish_others:
            yield "Merge lands in one commit, so it can't be declared with publish_others"


def _unknown(option: str, names: Sequence[str], table: Declared) -> Iterator[str]:
    """Yields problems of the columns that an option names."""
    if twice := sorted({name for name in names if [*names].count(name) > 1}):
        yield f"{option} names {', '.join(twice)} twice"
    known = {column.name: column.field_type for column in table.schema.columns}
    for name in dict.fromkeys(names):
        if name not in known:
            yield f"{option} names the column {name!r}, but the table has {', '.join(known)}"
        elif not known[name].is_primitive:
            yield f"{option} names {name!r}, which has a nested type: such values can't be compared"
        elif isinstance(known[name], UUIDType):
            # https://github.com/apache/iceberg/issues/14216
            yield (
                f"{option} names {name!r}, a uuid: Iceberg may skip files that contain such a value; declare it string"
            )


METRICS = ("none", "counts", "full")
"""Iceberg's metrics modes, besides TRUNCATE."""
TRUNCATE = re.compile(r"truncate\([1-9]\d*\)")
MIB = 2**20
ZSTD_LEVELS = range(1, 23)


class Distribution(StrEnum):
    """How rows are grouped before they are written (Iceberg's write.distribution-mode).

    Examples:
        >>> from lakehouse_assets import Distribution, Tuning
        >>> Tuning(distribution=Distribution.NONE).distribution.value
        'none'
    """

    NONE = "none"
    """Keeps the step's order, for rows that are clustered already."""
    HASH = "hash"
    """Groups rows by partition: few files. Spark splits a partition larger than ``partition_mib`` over several
    tasks."""
    RANGE = "range"
    """Groups rows by partition and sort order, so that a partition's files hold different ranges. The step is computed
    twice, to sample it."""


class Planning(StrEnum):
    """Where Spark plans scans (Iceberg's read.data-planning-mode).

    Examples:
        >>> from lakehouse_assets import Planning, Tuning
        >>> Tuning(planning=Planning.DISTRIBUTED).planning.value
        'distributed'
    """

    AUTO = "auto"
    """Iceberg decides by the size of the metadata."""
    LOCAL = "local"
    """On the driver."""
    DISTRIBUTED = "distributed"
    """On the executors, if the driver's memory does not suffice."""


class Compression(StrEnum):
    """Parquet's codecs (write.parquet.compression-codec).

    Examples:
        >>> from lakehouse_assets import Compression, Tuning
        >>> Tuning(compression=Compression.SNAPPY).compression.value
        'snappy'
    """

    ZSTD = "zstd"
    """Small and fast to read."""
    SNAPPY = "snappy"
    """Larger and faster to read."""
    GZIP = "gzip"
    """Small and slow to read; Spark's choice if a table has none."""
    UNCOMPRESSED = "uncompressed"
    """No compression, for values that are compressed already."""


@dataclass(frozen=True)
class Tuning:
    """Table properties by typed names.

    None leaves a property as it is: hash distribution and zstd if a run created the table, else Iceberg's default.

    Examples:
        >>> from lakehouse_assets import Tuning
        >>> Tuning(file_mib=128, metrics={"name": "truncate(32)"}).file_mib
        128
    """

    distribution: Distribution | None = None
    """The distribution of added rows."""
    merge_distribution: Distribution | None = None
    """The distribution of rows that a merge writes."""
    partition_mib: int | None = None
    """MiB that Spark aims to write in one task (write.spark.advisory-partition-size-bytes); files are a fraction of it,
    as Parquet compresses."""
    file_mib: int | None = None
    """The target size of data files in MiB, for writers and maintenance."""
    compression: Compression | None = None
    """The codec of data files."""
    compression_level: int | None = None
    """The level of zstd, 1 to 22."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """The metrics of columns, by name: ``none``, ``counts``, ``truncate(n)`` or ``full``. By default, the first 100
    columns and those of the sort order have them."""
    object_storage: bool | None = None
    """Whether a hash spreads files over prefixes, for tables that S3 throttles."""
    planning: Planning | None = None
    """Where Spark plans scans."""

    def properties(self) -> dict[str, str]:
        """Returns Iceberg's table properties for the fields that are set."""
        # ``x and x * MIB`` keeps None, which is left out below.
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
        """Yields the reasons why the table can't have this tuning."""
        if self.merge_distribution is not None and not table.write_mode.match_on:
            mode = type(table.write_mode).__name__
            yield f"tuning has merge_distribution, which has no effect with this {mode}: declare distribution"
        level = self.compression_level
        if level is not None and not (level in ZSTD_LEVELS and self.compression == "zstd"):
            least, most = min(ZSTD_LEVELS), max(ZSTD_LEVELS)
            yield (
                f"tuning has compression_level={level!r}, it must be from {least} to {most}, with "
                "compression=Compression.ZSTD: the other codecs have no levels"
            )
        for name in ("partition_mib", "file_mib"):
            if (value := getattr(self, name)) is not None and value < 1:
                yield f"tuning has {name}={value!r}, it must be 1 or more"
        known = [column.name for column in table.schema.columns]
        for name, mode in self.metrics.items():
            if name not in known:
                yield f"tuning has metrics for {name!r}, but the table has {', '.join(known)}"
            if mode not in METRICS and not TRUNCATE.fullmatch(str(mode)):
                yield (
                    f"tuning has the metrics {mode!r} for {name}; the possible values "
                    f"are {', '.join(METRICS)}, truncate(16)"
                )
        if twice := sorted(self.properties().keys() & table.properties.keys()):
            yield f"{', '.join(twice)} is set both by tuning and by properties: leave out one"

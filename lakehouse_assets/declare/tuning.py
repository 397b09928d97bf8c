"""Declares how a table's files are written and planned: typed names for table properties, with checked values.

Which rows there are is not decided here; how tables are kept fast is in care.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lakehouse_assets.declare.modes import Declared

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

"""Tables as the simulated month has them: partitions that get small files and deletes, and what a rewrite does to them.
Numbers only, no files; what is rewritten when is decided in simulated_month.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from math import ceil
from random import Random
from uuid import UUID

from lakehouse_assets.maintenance.health.health import FRAGMENT, UNDERSIZED, TableHealth
from lakehouse_assets.maintenance.health.partition_health import EQUALITY, PartitionHealth
from lakehouse_assets.maintenance.health.summaries import SizeLimits
from lakehouse_assets.maintenance.level import MIB

TABLES, DAYS = 20, 30
TARGET = 512 * MIB
LIMITS = SizeLimits(int(TARGET * FRAGMENT), int(TARGET * UNDERSIZED))
ROW = 100
"""Bytes."""
FIRST = date(2026, 1, 1)
HOUR = 3600.0


@dataclass(frozen=True)
class Write:
    """What one hour brings to one partition. deleted: the share of its rows that a delete file deletes. by_equality:
    whether it is one that only Spark applies."""

    table: int
    day: int
    sizes: tuple[int, ...]
    deleted: float = 0.0
    by_equality: bool = False


def month(seed: int) -> list[list[Write]]:
    """The writes of each hour. The busiest table gets 27 times the files of the calmest, in random order; a seventh of
    all files come late. Files are of 0.5 MiB in some tables and of up to 18 in others (medians), as streams and batches
    write them; every fourth table is merged on read, half of these by equality deletes."""
    random = Random(seed)
    busy = [*range(1, TABLES + 1)]
    random.shuffle(busy)  # so that the order of names says nothing
    return [[w for table, rank in enumerate(busy) for w in _hour(random, table, rank, h)] for h in range(DAYS * 24)]


def _hour(random: Random, table: int, rank: int, hour: int) -> Iterator[Write]:
    today = hour // 24
    files = round(random.gauss(20 / rank**1.1, 1))
    by_day: dict[int, list[int]] = {}
    for _ in range(max(0, files)):
        late = random.randint(1, 7) if random.random() < 1 / 7 else 0
        size = min(LIMITS.undersized, round(random.lognormvariate(0.9 * (table % 5) - 0.7, 0.7) * MIB))
        by_day.setdefault(max(0, today - late), []).append(size)
    for day, sizes in by_day.items():
        yield Write(table, day, tuple(sizes))
    if table % 4 == 0:
        yield Write(table, max(0, today - random.randint(0, 5)), (), 0.004, by_equality=table % 8 == 0)


@dataclass
class Partition:
    """sizes: of its data files, in bytes. deleted: the share of its rows that delete files delete."""

    table: int
    day: int
    sizes: list[int] = field(default_factory=list)
    delete_files: int = 0
    deleted: float = 0.0
    by_equality: bool = False
    written: float = 0.0

    def take(self, write: Write, now: float) -> None:
        self.sizes += write.sizes
        self.written = now if write.sizes else self.written
        if write.deleted and self.sizes:
            self.delete_files += 1
            self.deleted = 1 - (1 - self.deleted) * (1 - write.deleted)
            self.by_equality |= write.by_equality

    @property
    def small(self) -> list[int]:
        return [size for size in self.sizes if size <= LIMITS.undersized]

    @property
    def read(self) -> list[int]:
        """What a rewrite reads."""
        return list(self.sizes) if self.delete_files else self.small

    def rewrite(self) -> None:
        """Small files, or all where rows are deleted, become few of like size."""
        left = round(sum(self.read) * (1 - self.deleted))
        files = ceil(left / TARGET)
        stay = [] if self.delete_files else [size for size in self.sizes if size > LIMITS.undersized]
        self.sizes = [*stay, *(left // files for _ in range(files))]
        self.delete_files, self.deleted, self.by_equality = 0, 0.0, False

    def health(self) -> PartitionHealth:
        fragments = [size for size in self.sizes if size <= LIMITS.fragment]
        undersized = [size for size in self.sizes if LIMITS.fragment < size <= LIMITS.undersized]
        rows = sum(self.sizes) // ROW
        name = (FIRST + timedelta(days=self.day)).isoformat()
        return PartitionHealth(
            name=name,
            key=name,
            spec_id=0,
            values=(self.day,),
            files=len(self.sizes),
            size=sum(self.sizes),
            rows=rows,
            fragments=len(fragments),
            fragment_size=sum(fragments),
            undersized=len(undersized),
            undersized_size=sum(undersized),
            delete_files=self.delete_files,
            rows_deleted_at_most=round(rows * self.deleted),
            written_ms=round(self.written * 1000),
            needs_spark=(EQUALITY,) if self.by_equality else (),
        )


@dataclass
class Lake:
    """All partitions, by table and day."""

    partitions: dict[tuple[int, int], Partition] = field(default_factory=dict)

    def take(self, write: Write, now: float) -> None:
        key = write.table, write.day
        self.partitions.setdefault(key, Partition(*key)).take(write, now)

    def small_files(self) -> int:
        """Small data files, and delete files."""
        return sum(len(partition.small) + partition.delete_files for partition in self.partitions.values())

    def healths(self) -> list[TableHealth]:
        of_table: dict[int, list[PartitionHealth]] = {}
        for (table, _), partition in sorted(self.partitions.items()):
            of_table.setdefault(table, []).append(partition.health())
        return [_table(table, found) for table, found in of_table.items()]


def table_name(table: int) -> str:
    return f"lake.t{table:02}"


def _table(table: int, partitions: list[PartitionHealth]) -> TableHealth:
    return TableHealth(
        identifier=table_name(table),
        uuid=UUID(int=table),
        target=TARGET,
        limits=LIMITS,
        data_manifests=0,
        delete_manifests=0,
        empty_manifests=0,
        manifest_size=0,
        snapshots=0,
        metadata_size=0,
        last_write_ms=None,
        format_version=2,
        location="s3://lake/t",
        is_sorted=False,
        needs_spark=(),
        partitions=tuple(partitions),
    )

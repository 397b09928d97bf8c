"""What is wrong with a table's health, and which kind of work mends it. Pure.
The numbers are health.py's; how findings are shown is in health_verdicts.py."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from lakehouse_assets.maintenance.health import PartitionHealth, TableHealth

MIB = 2**20
WORST = 10
"""So many partitions are named with a finding."""


class Check(StrEnum):
    """The asset check that a finding belongs to."""

    FILES = "files"
    HISTORY = "history"
    STORAGE = "storage"


class Severity(StrEnum):
    """WARN: mend it soon. ERROR: readers and writers already suffer."""

    WARN = "WARN"
    ERROR = "ERROR"


class Level(StrEnum):
    """The kinds of maintenance, by the names that jobs take."""

    FRAGMENTS = "fragments"
    UNDERSIZED = "undersized"
    DELETES = "deletes"
    MANIFESTS = "manifests"
    EXPIRE = "expire"


@dataclass(frozen=True)
class Limit:
    """From ``warn`` on a finding is a warning, from ``error`` on an error."""

    warn: float
    error: float

    def severity(self, found: float) -> Severity | None:
        """None below both."""
        if found >= self.error:
            return Severity.ERROR
        return Severity.WARN if found >= self.warn else None


@dataclass(frozen=True)
class Thresholds:
    """When a number becomes a finding. Errors come at ten times a warning, where nothing better is known.

    fragments: in one partition; Amoro's minor optimizing begins at 12. undersized_targets: bytes of undersized files in
    one partition, as a multiple of the target size; Amoro's major optimizing begins at 1. deleted_share: of a
    partition's rows; Amoro's 0.1; an error when more rows may be deleted than stay. snapshots: a commit takes 0.3 s
    longer for each 1,000 (measured with PyIceberg), so 10,000 cost it three seconds. metadata_size: bytes that each
    commit writes and each load reads; a snapshot takes about 1 KiB, so it is more than 1,000 of them explain.
    manifests: Iceberg merges from 100 on (commit.manifest.min-count-to-merge); planning a day among 1,000 takes 10 s.
    manifest_entries: what a manifest holds after it was rewritten; fewer manifests than four times the number needed
    for that are no finding.
    """

    fragments: Limit = Limit(12, 120)
    undersized_targets: Limit = Limit(1, 10)
    deleted_share: Limit = Limit(0.1, 0.5)
    snapshots: Limit = Limit(1_001, 10_000)
    metadata_size: Limit = Limit(8 * MIB, 80 * MIB)
    manifests: Limit = Limit(101, 1_000)
    manifest_entries: int = 1_000


DEFAULTS = Thresholds()


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a table. message: a sentence with the numbers. action: what mends it.
    partitions: how many have it; worst: at most WORST of them, the worst first; none if it is of the whole table."""

    check: Check
    severity: Severity
    action: Level
    message: str
    partitions: int = 0
    worst: tuple[PartitionHealth, ...] = ()


def findings(health: TableHealth, thresholds: Thresholds = DEFAULTS) -> list[Finding]:
    """Everything that is wrong with a table, in the order of the levels."""
    return [*_files(health, thresholds), *_manifests(health, thresholds), *_history(health, thresholds)]


def _files(health: TableHealth, thresholds: Thresholds) -> Iterator[Finding]:
    target, limits = size_text(health.target), health.limits
    yield from _of_partitions(
        health,
        Level.FRAGMENTS,
        thresholds.fragments,
        lambda partition: partition.fragments,
        lambda found: f"{found:,.0f} fragments (files of at most {size_text(limits.fragment)}, target {target})",
    )
    yield from _of_partitions(
        health,
        Level.UNDERSIZED,
        thresholds.undersized_targets,
        lambda partition: partition.undersized_size / health.target,
        lambda found: (
            f"{size_text(found * health.target)} in files of at most {size_text(limits.undersized)}, "
            f"enough for files of the target {target}"
        ),
    )
    yield from _of_partitions(
        health,
        Level.DELETES,
        thresholds.deleted_share,
        lambda partition: partition.rows_deleted_at_most / partition.rows if partition.rows else 0,
        lambda found: f"delete files for up to {found:.0%} of their rows",
    )


def _of_partitions(
    health: TableHealth,
    action: Level,
    limit: Limit,
    number: Callable[[PartitionHealth], float],
    text: Callable[[float], str],
) -> Iterator[Finding]:
    """One finding for all partitions whose number is over its limit. text: says the worst partition's number."""
    found = [partition for partition in health.partitions if limit.severity(number(partition))]
    if not found:
        return
    worst = heapq.nlargest(WORST, found, key=number)
    most = number(worst[0])
    severity = limit.severity(most)
    assert severity
    message = f"{_counted(len(found), len(health.partitions))} {text(most)}"
    yield Finding(Check.FILES, severity, action, message, len(found), tuple(worst))


def _counted(found: int, of: int) -> str:
    if of == 1:
        return "there are"
    return f"{found:,} of {of:,} partitions have up to" if found > 1 else f"1 of {of:,} partitions has"


def _manifests(health: TableHealth, thresholds: Thresholds) -> Iterator[Finding]:
    files = health.total("files") + health.total("delete_files")
    needed = -(-files // thresholds.manifest_entries)
    severity = thresholds.manifests.severity(health.manifests)
    if severity and health.manifests > 4 * needed:
        message = f"{health.manifests:,} manifests list {files:,} files; {max(1, needed):,} would do"
        yield Finding(Check.STORAGE, severity, Level.MANIFESTS, message)


def _history(health: TableHealth, thresholds: Thresholds) -> Iterator[Finding]:
    if severity := thresholds.snapshots.severity(health.snapshots):
        most = int(thresholds.snapshots.warn) - 1
        message = f"there are {health.snapshots:,} snapshots, expected at most {most:,}: each makes every commit slower"
        yield Finding(Check.HISTORY, severity, Level.EXPIRE, message)
    if severity := thresholds.metadata_size.severity(health.metadata_size):
        message = f"metadata.json has {size_text(health.metadata_size)}: every commit writes it, every load reads it"
        yield Finding(Check.STORAGE, severity, Level.EXPIRE, message)


def size_text(size: float) -> str:
    """A number of bytes for a person, with three digits: ``64 MiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if size < 999.5 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:,.4g} TiB"


def by_check(found: Iterable[Finding]) -> dict[Check, list[Finding]]:
    """The findings of each check, the gravest first; an empty list where there is none."""
    ordered = sorted(found, key=lambda finding: finding.severity is not Severity.ERROR)
    return {check: [finding for finding in ordered if finding.check is check] for check in Check}

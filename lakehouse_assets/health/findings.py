"""Finds what is wrong with a table's health, and which kind of work mends it. Pure.

The numbers are health.py's; how findings are shown is in health_verdicts.py.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from lakehouse_assets.declare.care import Level
from lakehouse_assets.health.demand import demand, manifests_needed, number, too_many_manifests
from lakehouse_assets.health.health import TableHealth
from lakehouse_assets.health.partition_health import PartitionHealth
from lakehouse_assets.health.text import Check, size_text
from lakehouse_assets.health.thresholds import DEFAULTS, Severity, Thresholds

WORST = 10
"""The most partitions that are named with a finding."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a table."""

    check: Check
    severity: Severity
    action: Level | None
    """The level of maintenance that mends it; None where a person must."""
    message: str
    """What is wrong, as a sentence with the numbers."""
    partitions: int = 0
    """How many partitions have it; 0 if it is of the whole table."""
    worst: tuple[PartitionHealth, ...] = ()
    """At most WORST of these partitions, the worst first; none if it is of the whole table."""


def findings(health: TableHealth, thresholds: Thresholds = DEFAULTS) -> list[Finding]:
    """Finds everything that is wrong with a table, in the order of the levels."""
    of_metadata = [*_manifests(health, thresholds), *_history(health, thresholds)]
    return [*_files(health, thresholds), *of_metadata, *_storage(health, thresholds)]


def _files(health: TableHealth, thresholds: Thresholds) -> Iterator[Finding]:
    target, limits = size_text(health.target), health.limits
    texts: dict[Level, Callable[[float], str]] = {
        Level.FRAGMENTS: lambda found: (
            f"{found:,.0f} fragments (files of at most {size_text(limits.fragment)}, target {target})"
        ),
        Level.UNDERSIZED: lambda found: (
            f"{size_text(found * health.target)} in files of at most {size_text(limits.undersized)}, "
            f"enough for files of the target {target}"
        ),
        Level.DELETES: lambda found: f"delete files for up to {found:.0%} of their rows",
    }
    for level, text in texts.items():
        yield from _of_partitions(health, level, thresholds, text)


def _of_partitions(
    health: TableHealth, level: Level, thresholds: Thresholds, text: Callable[[float], str]
) -> Iterator[Finding]:
    """Yields one finding for all partitions that ask for a level. text: says the worst partition's number."""
    found = [partition for partition in health.partitions if demand(level, partition, health.target, thresholds)]
    if not found:
        return
    worst = heapq.nlargest(WORST, found, key=lambda partition: number(level, partition, health.target))
    severity = demand(level, worst[0], health.target, thresholds)
    assert severity
    message = f"{_counted(len(found), len(health.partitions))} {text(number(level, worst[0], health.target))}"
    yield Finding(Check.FILES, severity, level, message, len(found), tuple(worst))


def _counted(found: int, of: int) -> str:
    if of == 1:
        return "there are"
    return f"{found:,} of {of:,} partitions have up to" if found > 1 else f"1 of {of:,} partitions has"


def _manifests(health: TableHealth, thresholds: Thresholds) -> Iterator[Finding]:
    files = health.total("files") + health.total("delete_files")
    if severity := too_many_manifests(health, thresholds):
        needed = manifests_needed(health, thresholds)
        message = f"{health.manifests:,} manifests list {files:,} files; {needed:,} would do"
        yield Finding(Check.STORAGE, severity, Level.MANIFESTS, message)


def _history(health: TableHealth, thresholds: Thresholds) -> Iterator[Finding]:
    if severity := thresholds.snapshots.severity(health.snapshots):
        most = int(thresholds.snapshots.warn) - 1
        message = f"there are {health.snapshots:,} snapshots, expected at most {most:,}: each makes every commit slower"
        yield Finding(Check.HISTORY, severity, Level.EXPIRE, message)
    if severity := thresholds.metadata_size.severity(health.metadata_size):
        message = f"metadata.json has {size_text(health.metadata_size)}: every commit writes it, every load reads it"
        yield Finding(Check.STORAGE, severity, Level.EXPIRE, message)


def _storage(health: TableHealth, thresholds: Thresholds) -> Iterator[Finding]:
    """Finds what the collector's last look says. Its problems keep it from working, so each is an error."""
    found = health.collected
    if found is None:
        return
    for problem in found.problems:
        yield Finding(Check.STORAGE, Severity.ERROR, None, problem)
    share = found.size / max(1, found.size + health.total("size"))
    if severity := thresholds.unneeded_share.severity(share):
        message = f"{found.files:,} files with {size_text(found.size)} that nobody needs, {share:.0%} of all its files"
        yield Finding(Check.STORAGE, severity, Level.COLLECT, message)


def by_check(found: Iterable[Finding]) -> dict[Check, list[Finding]]:
    """Returns the findings of each check, the gravest first; an empty list where there is none."""
    ordered = sorted(found, key=lambda finding: finding.severity is not Severity.ERROR)
    return {check: [finding for finding in ordered if finding.check is check] for check in Check}

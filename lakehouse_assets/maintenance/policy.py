"""Which maintenance is worth its cost: from the health of tables and a budget to ranked actions, with reasons. Pure.
What is wrong with a table is findings.py's; the actions are carried out by actions.py."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, inf

from lakehouse_assets.maintenance.findings import DEFAULTS, MIB, Level, Thresholds, size_text
from lakehouse_assets.maintenance.health import PartitionHealth, TableHealth

SMALL = 128 * MIB
"""The most bytes of one table that one run rewrites in its own process, without a JVM."""
REWRITES = (Level.DELETES, Level.UNDERSIZED, Level.FRAGMENTS)
"""A partition is rewritten once, for the first of these that asks for it."""
LEVELS = (*REWRITES, Level.EXPIRE)
"""What the job can carry out; ``manifests`` needs Spark's rewrite_manifests."""


@dataclass(frozen=True)
class PartitionWork:
    """The rewrite of one partition. fewer: the data and delete files that it is expected to have less. size: bytes."""

    partition: PartitionHealth
    fewer: int
    size: int


@dataclass(frozen=True)
class Action:
    """Work on one table.

    work: the partitions to rewrite, the most rewarding first; none for work on the table's history. reason: why, with
    the numbers. fewer: the files, or snapshots, that the table is expected to have less, at most. size: bytes to be
    rewritten.
    """

    table: str
    level: Level
    work: tuple[PartitionWork, ...]
    reason: str
    fewer: int
    size: int


@dataclass(frozen=True)
class NotTaken:
    """An action, or a part of one, that is worth taking, and why it is not taken."""

    action: Action
    why: str


@dataclass(frozen=True)
class Plan:
    """taken: in the order in which to take them."""

    taken: tuple[Action, ...]
    not_taken: tuple[NotTaken, ...]


def plan(
    healths: Iterable[TableHealth],
    levels: Collection[Level],
    budget: int,
    busy: Collection[str] = (),
    thresholds: Thresholds = DEFAULTS,
) -> Plan:
    """What to do on these levels: first what rewrites nothing, then by files removed for each byte rewritten.

    budget: bytes that may be rewritten over all tables, and SMALL of each table. busy: the tables that a run is about
    to write. They are not rewritten: what a writer replaces meanwhile would be rewritten in vain.
    """
    wanted = [action for health in healths for action in _wanted(health, thresholds) if action.level in levels]
    wanted.sort(key=lambda action: -action.fewer / action.size if action.size else -inf)
    taken: list[Action] = []
    not_taken: list[NotTaken] = []
    for action in wanted:
        if action.work and action.table in busy:
            not_taken.append(NotTaken(action, "a run that writes the table is queued or under way"))
            continue
        of_table = SMALL - sum(other.size for other in taken if other.table == action.table)
        in_all = budget - sum(other.size for other in taken)
        large = [of for of in action.work if of.size > SMALL]
        if large:
            more = f"more than {size_text(SMALL)} in one partition needs Spark's rewrite_data_files"
            not_taken.append(NotTaken(_rewrite(action.table, action.level, large), more))
        now, later = _split(action, min(of_table, in_all))
        taken += now
        limit = f"{size_text(SMALL)} of one table" if of_table <= in_all else f"{size_text(budget)} in all"
        not_taken += [NotTaken(rest, f"one run may rewrite {limit}") for rest in later]
    return Plan(tuple(taken), tuple(not_taken))


def _wanted(health: TableHealth, thresholds: Thresholds) -> Iterator[Action]:
    """All that the table's findings ask for."""
    if thresholds.snapshots.severity(health.snapshots) or thresholds.metadata_size.severity(health.metadata_size):
        reason = f"{health.snapshots:,} snapshots in a metadata.json of {size_text(health.metadata_size)}"
        yield Action(health.identifier, Level.EXPIRE, (), reason, health.snapshots, 0)
    left = list(health.partitions)
    for level in REWRITES:
        asking: list[PartitionHealth] = []
        others: list[PartitionHealth] = []
        for partition in left:
            (asking if _asks(level, partition, health.target, thresholds) else others).append(partition)
        left = others
        if work := [of for of in (_work(partition, health.target) for partition in asking) if of.fewer > 0]:
            work.sort(key=lambda of: of.fewer / max(1, of.size), reverse=True)
            yield _rewrite(health.identifier, level, work)


def _asks(level: Level, partition: PartitionHealth, target: int, thresholds: Thresholds) -> bool:
    """Whether the partition is to be rewritten for this level."""
    match level:
        case Level.DELETES:
            found, limit = partition.rows_deleted_at_most / max(1, partition.rows), thresholds.deleted_share
        case Level.UNDERSIZED:
            found, limit = partition.undersized_size / target, thresholds.undersized_targets
        case _:
            found, limit = partition.fragments, thresholds.fragments
    return limit.severity(found) is not None


def _work(partition: PartitionHealth, target: int) -> PartitionWork:
    """Small files are rewritten, and all files where rows are deleted."""
    files, size = partition.fragments + partition.undersized, partition.fragment_size + partition.undersized_size
    if partition.delete_files:
        files, size = partition.files + partition.delete_files, partition.size
    return PartitionWork(partition, files - ceil(size / target), size)


def _rewrite(table: str, level: Level, work: Sequence[PartitionWork]) -> Action:
    fewer, size = sum(of.fewer for of in work), sum(of.size for of in work)
    deletes = sum(of.partition.delete_files for of in work)
    files = sum(of.partition.fragments + of.partition.undersized for of in work)
    also = f", {deletes:,} delete files" if deletes else ""
    reason = f"{files:,} small files{also} in {len(work):,} partition{'s' if len(work) > 1 else ''}"
    return Action(table, level, tuple(work), reason, fewer, size)


def _split(action: Action, room: int) -> tuple[list[Action], list[Action]]:
    """The part of the action that rewrites at most ``room`` bytes, and the rest without partitions that are too large
    for any run; each a list of none or one."""
    if not action.work:
        return [action], []
    now: list[PartitionWork] = []
    later: list[PartitionWork] = []
    for of in (of for of in action.work if of.size <= SMALL):
        fits = of.size <= room
        room -= of.size if fits else 0
        (now if fits else later).append(of)
    parts = [[_rewrite(action.table, action.level, part)] if part else [] for part in (now, later)]
    return parts[0], parts[1]

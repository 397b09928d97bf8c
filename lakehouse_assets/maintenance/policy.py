"""Decides which maintenance to do now, ranked by gain and cost under one budget. Pure functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

from lakehouse_assets.commit.fork import FORMAT_VERSION
from lakehouse_assets.declare.options import MANAGED_LEVELS, Maintenance
from lakehouse_assets.maintenance.health.findings import size_text
from lakehouse_assets.maintenance.health.health import TableHealth
from lakehouse_assets.maintenance.health.partition_health import Partition, PartitionHealth
from lakehouse_assets.maintenance.level import MIB, Action, Candidate, Engine, Gain, MaintenanceLevel
from lakehouse_assets.maintenance.rewrite_levels import SMALL, rewrite_reason
from lakehouse_assets.run.in_flight import Flight, meet

S3_TABLES = "--table-s3"
"""The suffix of S3 Tables' buckets."""
SPEED = 16 * MIB
"""Bytes rewritten and proved in a second: without a JVM, 22 MB in 200 files take about 1.5 s on one core
(docs/measured.md)."""
START = {Engine.PYTHON: 0.2, Engine.SPARK: 75.0}
"""Seconds before the first byte; for Spark, those to start a task, its image and a JVM."""
EACH_FILE = {Engine.PYTHON: 0.002, Engine.SPARK: 0.01}
"""Seconds for each file read."""
VCPUS = {Engine.PYTHON: 0.5, Engine.SPARK: 2.0}
"""vCPUs kept busy in production (deploy/stacks/dagster.yaml, compute.yaml)."""


class LeftOut(StrEnum):
    """Reasons that time and other work don't change, unlike those of _too_soon(): the sensor waits for no such work."""

    DECLARED = "the table's declaration leaves this level out"
    MANAGED = "the catalog's own optimizer does it"
    OTHER_FORMAT = f"its format version is not {FORMAT_VERSION}, the only one that can be written"


@dataclass(frozen=True)
class Policy:
    """The rules of a plan."""

    levels: Sequence[MaintenanceLevel]
    """A partition for which several ask is rewritten once, for the first of these."""
    tables: Mapping[str, Maintenance]
    """The owners' choices, by identifier."""
    force: bool = False
    """As in MaintenanceLevel.candidates()."""
    patient: bool = True
    """Whether to leave recent writes for later."""

    def care(self, identifier: str) -> Maintenance:
        """Returns the owner's choices for a table."""
        return self.tables.get(identifier, Maintenance())


@dataclass(frozen=True)
class NotTaken:
    """Worthwhile work that is not taken."""

    action: Action
    why: str


@dataclass(frozen=True)
class Plan:
    """The actions to take now, in the order to carry them out, and those left out."""

    taken: tuple[Action, ...]
    not_taken: tuple[NotTaken, ...]


def candidates(health: TableHealth, policy: Policy, writing: Sequence[Flight], now: float) -> list[Candidate]:
    """Returns all work that a table asks for, and why not to do it now. now: epoch seconds.

    writing: runs that write to the table, or will.
    """
    found = list(_asked(health, policy, writing, now))
    # A partition is rewritten once: for the first level that asks and isn't left out, else for the first that asks.
    of_partition: dict[Partition, Candidate] = {}
    for one in sorted(found, key=lambda one: isinstance(one.why_not, LeftOut)):  # stable: keeps the order of levels
        if one.partition:
            of_partition.setdefault(_key(one.partition), one)
    return [one for one in found if one.partition is None or of_partition[_key(one.partition)] is one]


def _key(partition: PartitionHealth) -> Partition:
    return partition.spec_id, partition.values


def _asked(health: TableHealth, policy: Policy, writing: Sequence[Flight], now: float) -> Iterator[Candidate]:
    care = policy.care(health.identifier)
    for level in policy.levels:
        left = _left_out(level, health, care)
        for found in level.candidates(health, care, force=policy.force):
            early = _too_soon(found.partition, policy, care, writing, now) if found.partition else ""
            yield replace(found, why_not=left or early)


def _left_out(level: MaintenanceLevel, health: TableHealth, care: Maintenance) -> LeftOut | None:
    if level.name in care.without:
        return LeftOut.DECLARED
    bucket = health.location.partition("://")[2].partition("/")[0]
    if level.name in MANAGED_LEVELS and (care.managed or bucket.endswith(S3_TABLES)):
        return LeftOut.MANAGED
    return LeftOut.OTHER_FORMAT if level.commits and health.format_version != FORMAT_VERSION else None


def _too_soon(
    partition: PartitionHealth, policy: Policy, care: Maintenance, writing: Sequence[Flight], now: float
) -> str:
    """Returns why to wait, if so: a rewrite of files that a writer replaces meanwhile is wasted."""
    # Without its key, any writer may write to the partition.
    keys = None if partition.key is None else [partition.key]
    if writer := next((flight.name for flight in writing if meet(flight.keys, keys)), None):
        return f"a run that writes to it is queued or running: {writer}"
    written, quiet = partition.written_ms, care.quiet_period
    if policy.patient and written is not None and timedelta(seconds=now - written / 1000) < quiet:
        return f"written less than {quiet.total_seconds() / 60:g} minutes ago"
    return ""


def plan(found: Iterable[Candidate], policy: Policy, budget: int, spent: int = 0) -> Plan:
    """Decides what to do now, and why not the rest. budget: the most bytes to rewrite. spent: those by earlier runs.

    Ranks by scan work saved for each vCPU-second, times the table's weight. If a candidate exceeds what is left of the
    budget, smaller ones may still be taken.
    """
    found = list(found)
    # Candidates that become one action share the start of its engine.
    alike = Counter((c.table, c.level.name, c.engine) for c in found if not c.why_not)
    in_process = Counter[str]()  # bytes, by table
    used_up = f"budget: {size_text(budget)} may be rewritten in all"
    used_up += f", and earlier runs have rewritten {size_text(spent)}" if spent else ""

    def score(candidate: Candidate) -> float:
        start = START[candidate.engine] / alike[candidate.table, candidate.level.name, candidate.engine]
        cost = (start + _seconds(candidate)) * VCPUS[candidate.engine]
        return policy.care(candidate.table).weight * candidate.gain.scan_work / cost

    def take(candidate: Candidate) -> Candidate:
        """Pays for a candidate, or sets ``why_not``. Work too large for this process goes to Spark."""
        nonlocal spent
        size, here = candidate.size, candidate.partition is not None and candidate.engine is Engine.PYTHON
        if here and in_process[candidate.table] + size > SMALL:
            # With a why_spark, Candidate.engine is SPARK.
            candidate = replace(candidate, why_spark=f"more than {size_text(SMALL)} of the table are rewritten")
            here = False
        if size > budget:
            why = f"it takes {size_text(size)}, more than the budget of {size_text(budget)}"
            return replace(candidate, why_not=f"{why}: start a run by hand with a larger budget_gib")
        if spent + size > budget:
            return replace(candidate, why_not=used_up)
        spent += size
        in_process[candidate.table] += size if here else 0
        return candidate

    taken = [take(one) for one in sorted((c for c in found if not c.why_not), key=score, reverse=True)]
    actions = _actions([c for c in taken if not c.why_not])
    # What take() has left out, and what was out before.
    left = _actions([c for c in [*taken, *found] if c.why_not])
    actions.sort(key=lambda pair: pair[0].level.order)  # stable: keeps the best first
    return Plan(tuple(action for action, _ in actions), tuple(NotTaken(action, why) for action, why in left))


def _seconds(candidate: Candidate) -> float:
    return candidate.size / SPEED + candidate.files * EACH_FILE[candidate.engine]


def _actions(found: Iterable[Candidate]) -> list[tuple[Action, str]]:
    """Joins candidates of one table, level, engine and ``why_not``, which is returned with the action."""
    groups: dict[tuple[str, str, Engine, str], list[Candidate]] = defaultdict(list)
    for c in found:
        groups[c.table, c.level.name, c.engine, c.why_not].append(c)
    return [(_action(group), why) for (*_, why), group in groups.items()]


def _action(group: Sequence[Candidate]) -> Action:
    first = group[0]
    partitions = tuple(candidate.partition for candidate in group if candidate.partition)
    reason = rewrite_reason(group) if partitions else first.reason
    gain, size = sum((c.gain for c in group), Gain()), sum(c.size for c in group)
    seconds = START[first.engine] + sum(map(_seconds, group))
    return Action(first.table, first.level, first.engine, partitions, reason, gain, size, seconds)

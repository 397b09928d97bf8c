"""Decides which maintenance is done now: all tables' work, ranked by gain and cost under one budget, with reasons.

Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

from lakehouse_assets.commit.fork import FORMAT_VERSION
from lakehouse_assets.declare.options import MANAGED_LEVELS, Maintenance
from lakehouse_assets.health.findings import size_text
from lakehouse_assets.health.health import TableHealth
from lakehouse_assets.health.partition_health import Partition, PartitionHealth
from lakehouse_assets.maintenance.level import MIB, Action, Candidate, Engine, Gain, MaintenanceLevel
from lakehouse_assets.maintenance.rewrite_levels import SMALL, rewrite_reason
from lakehouse_assets.run.in_flight import Flight, meet

S3_TABLES = "--table-s3"
"""The suffix of the names of the buckets that S3 Tables makes for its tables."""
SPEED = 16 * MIB
"""Bytes that either engine rewrites in a second, with the proof: without a JVM, 22 MB in 200 files take about 1.5 s on
a core of ours (docs/measured.md)."""
START = {Engine.PYTHON: 0.2, Engine.SPARK: 75.0}
"""Seconds before the first byte is rewritten, once for each action; Spark's is a task's with its image and a JVM."""
EACH_FILE = {Engine.PYTHON: 0.002, Engine.SPARK: 0.01}
"""Seconds for each file that is read."""
VCPUS = {Engine.PYTHON: 0.5, Engine.SPARK: 2.0}
"""vCPUs that an engine keeps busy in production (deploy/stacks/dagster.yaml, compute.yaml)."""


class LeftOut(StrEnum):
    """The reason why a level is left out of a table for ever: time and other work change nothing about it."""

    DECLARED = "the table's declaration leaves this level out"
    MANAGED = "the catalog's own optimizer does it"
    OTHER_FORMAT = f"its format version is not {FORMAT_VERSION}, the only one that is written"


@dataclass(frozen=True)
class Policy:
    """The choices that a plan follows."""

    levels: Sequence[MaintenanceLevel]
    """The levels that may be done; a partition is rewritten for the first of these that asks."""
    tables: Mapping[str, Maintenance]
    """How the owners want their tables maintained, by identifier."""
    force: bool = False
    """Whether work is done below its limits too."""
    patient: bool = True
    """Whether what was written a short while ago is left for later."""

    def care(self, identifier: str) -> Maintenance:
        """Returns how the owner wants a table maintained; the defaults for a table that is not in ``tables``."""
        return self.tables.get(identifier, Maintenance())


@dataclass(frozen=True)
class NotTaken:
    """An action, or a part of one, that is worth taking, and why it is not taken."""

    action: Action
    why: str


@dataclass(frozen=True)
class Plan:
    """The actions to take now, and those that are left."""

    taken: tuple[Action, ...]
    """In the order in which to carry them out."""
    not_taken: tuple[NotTaken, ...]


def candidates(health: TableHealth, policy: Policy, writing: Sequence[Flight], now: float) -> list[Candidate]:
    """Returns all that a table's health asks for, each with what speaks against doing it now.

    writing: the runs that write the table or are about to. now: seconds since 1970.
    """
    found = list(_asked(health, policy, writing, now))
    # A partition is rewritten once: for the first level that asks and is not left out, else for the first that asks.
    of_partition: dict[Partition, Candidate] = {}
    for one in sorted(found, key=lambda one: isinstance(one.why_not, LeftOut)):  # stable: in the order of the levels
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
    """Tells why the partition is left for later: a run writes it or has just written it; empty if neither.

    A rewrite of files that a writer replaces meanwhile would be in vain.
    """
    keys = None if partition.key is None else [partition.key]
    if writer := next((flight.name for flight in writing if meet(flight.keys, keys)), None):
        return f"a run that writes it is queued or under way: {writer}"
    written, quiet = partition.written_ms, care.quiet_period
    if policy.patient and written is not None and timedelta(seconds=now - written / 1000) < quiet:
        return f"written less than {quiet.total_seconds() / 60:g} minutes ago"
    return ""


def plan(found: Iterable[Candidate], policy: Policy, budget: int) -> Plan:
    """Decides what to do now, and what not, with the reason of each.

    Pieces of work of all tables are ranked by what a scan is spared for each vCPU-second spent, times the table's
    weight. They are taken as long as the budget lasts; a piece that does not fit leaves room for smaller ones.

    budget: bytes that may be rewritten over all tables.
    """
    found = list(found)
    alike = Counter((c.table, c.level.name, c.engine) for c in found if not c.why_not)
    spent, in_process = 0, Counter[str]()  # bytes: in all, and of each table those rewritten in the run's own process

    def score(candidate: Candidate) -> float:
        start = START[candidate.engine] / alike[candidate.table, candidate.level.name, candidate.engine]
        spent = (start + _seconds(candidate)) * VCPUS[candidate.engine]
        return policy.care(candidate.table).weight * candidate.gain.scan_work / spent

    def take(candidate: Candidate) -> Candidate:
        """Pays for a candidate, and returns it; where the budget does not suffice, with the reason in ``why_not``.

        A rewrite that is too much for the run's own process is given to Spark.
        """
        nonlocal spent
        size, here = candidate.size, candidate.partition is not None and candidate.engine is Engine.PYTHON
        if here and in_process[candidate.table] + size > SMALL:
            candidate = replace(candidate, why_spark=f"more than {size_text(SMALL)} of the table are rewritten")
            here = False
        if size > budget:
            why = f"it takes {size_text(size)}, more than the budget of {size_text(budget)}"
            return replace(candidate, why_not=f"{why}: a run by hand with a larger budget_gib does it")
        if spent + size > budget:
            return replace(candidate, why_not=f"budget: {size_text(budget)} may be rewritten in all")
        spent += size
        in_process[candidate.table] += size if here else 0
        return candidate

    taken = [take(one) for one in sorted((c for c in found if not c.why_not), key=score, reverse=True)]
    actions = _actions([c for c in taken if not c.why_not])
    left = _actions([c for c in [*taken, *found] if c.why_not])
    actions.sort(key=lambda pair: pair[0].level.order)  # stable: the best first among their like
    return Plan(tuple(action for action, _ in actions), tuple(NotTaken(action, why) for action, why in left))


def _seconds(candidate: Candidate) -> float:
    """Estimates how long a piece takes, without the start of its engine."""
    return candidate.size / SPEED + candidate.files * EACH_FILE[candidate.engine]


def _actions(found: Iterable[Candidate]) -> list[tuple[Action, str]]:
    """Joins the pieces of one table, level and engine into an action, returned with the reason not to take it, or "".

    Pieces with different reasons become different actions. They keep the order of their first pieces.
    """
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

"""Decides which maintenance is worth its cost: ranks actions by tables' health and a budget, with reasons.

Pure. What a table asks for is candidates.py's; the actions are carried out by actions.py.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lakehouse_assets.declare.care import Level
from lakehouse_assets.health.gain import Gain
from lakehouse_assets.health.health import TableHealth
from lakehouse_assets.health.text import size_text
from lakehouse_assets.maintenance.candidates import SMALL, Candidate, Policy, Subject, Writing
from lakehouse_assets.maintenance.memory import Memory
from lakehouse_assets.maintenance.planned import OF_PARTITIONS, Action, Cost, Engine, NotTaken, Plan, rewrite_reason

ORDER = {Level.EXPIRE: 0, Level.SORT: 2, Level.MANIFESTS: 3, Level.COLLECT: 4}
"""The levels that do not rewrite small files or deletes (1) come before or after those: a shorter history makes the
commits after it faster, and rewrites leave manifests and files behind."""
OF_METADATA = Cost(seconds=1.0)
LEAST_SECONDS = 0.1
"""A commit takes that long, however little it changes."""

Memories = Mapping[str, Memory]
Group = tuple[str, Level, Engine, str]


def plan(
    healths: Iterable[TableHealth], policy: Policy, budget: int, memory: Memories, writing: Writing, now: float
) -> Plan:
    """Decides what to do now, and what not, with the reason of each.

    Pieces of work are ranked by what a scan is spared for each vCPU-second spent, times the table's weight. They are
    taken as long as the budget lasts; a piece that does not fit leaves room for smaller ones.

    budget: bytes that may be rewritten over all tables. memory, writing: by table. now: seconds since 1970.
    """
    found: list[Candidate] = []
    for health in healths:
        name = health.identifier
        waits = memory.get(name, Memory()) if policy.patient else Memory()  # who asks by hand waits for nothing of it
        found += Subject(health, policy, waits, writing.get(name, ()), now).candidates()
    ranking = _Ranking(policy, memory, Counter((c.table, c.level, c.engine) for c in found if not c.why_not))
    ranked = sorted((c for c in found if not c.why_not), key=ranking.score, reverse=True)
    spending = _Spending(ranking, budget)
    taken = [spending.take(candidate) for candidate in ranked]
    actions = _actions([c for c in taken if not c.why_not], ranking)
    left = _actions([c for c in [*taken, *found] if c.why_not], ranking)
    ordered = sorted(actions, key=lambda pair: ORDER.get(pair[0].level, 1))  # stable: the best first among their like
    return Plan(tuple(action for action, _ in ordered), tuple(NotTaken(action, why) for action, why in left))


@dataclass(frozen=True)
class _Ranking:
    """The order in which pieces of work are taken: the most gain for its cost first."""

    policy: Policy
    memory: Memories
    alike: Mapping[tuple[str, Level, Engine], int]
    """How many pieces share the start of their engine, by table, level and engine."""

    def gain(self, candidate: Candidate) -> Gain:
        ratio = self.memory.get(candidate.table, Memory()).ratio(candidate.level, candidate.engine).gain
        # No more than there is: the files that are there bound what a rewrite may gain.
        return candidate.gain.times(min(1.0, ratio))

    def cost(self, candidate: Candidate) -> Cost:
        """Returns the cost of the piece alone, without the start of its engine."""
        if candidate.level in (Level.EXPIRE, Level.COLLECT):
            return OF_METADATA
        ratio = self.memory.get(candidate.table, Memory()).ratio(candidate.level, candidate.engine)
        size = round(candidate.size * ratio.size)
        return self.policy.rates[candidate.engine].cost(size, candidate.files, ratio.seconds)

    def score(self, candidate: Candidate) -> float:
        rate = self.policy.rates[candidate.engine]
        shared = rate.start / max(1, self.alike[candidate.table, candidate.level, candidate.engine])
        spent = max(LEAST_SECONDS, self.cost(candidate).seconds + shared) * rate.machine.vcpus
        return self.policy.care(candidate.table).weight * self.gain(candidate).scan_work / spent


@dataclass
class _Spending:
    """The bytes that pieces of work have taken of the budget."""

    ranking: _Ranking
    budget: int
    """Bytes."""
    spent: int = 0
    """Bytes."""
    in_process: Counter[str] = field(default_factory=Counter)
    """Bytes of each table that are rewritten in the run's own process."""

    def take(self, candidate: Candidate) -> Candidate:
        """Pays for a candidate, and returns it; where the budget does not suffice, with the reason in ``why_not``.

        A rewrite that is too much for the run's own process is given to Spark.
        """
        size = self._size(candidate)
        here = candidate.engine is Engine.PYTHON and candidate.level in OF_PARTITIONS
        if here and self.in_process[candidate.table] + size > SMALL:
            candidate = replace(candidate, why_spark=f"more than {size_text(SMALL)} of the table are rewritten")
            size, here = self._size(candidate), False
        if size > self.budget:
            why_not = f"it takes {size_text(size)}, more than the budget of {size_text(self.budget)}: raise budget_gib"
            return replace(candidate, why_not=why_not)
        if self.spent + size > self.budget:
            return replace(candidate, why_not=f"budget: one run may rewrite {size_text(self.budget)} in all")
        self.spent += size
        self.in_process[candidate.table] += size if here else 0
        return candidate

    def _size(self, candidate: Candidate) -> int:
        """Returns the bytes to pay for: at least the files', as less in the past is no promise for now."""
        return max(candidate.size, self.ranking.cost(candidate).size)


def _actions(candidates: Sequence[Candidate], ranking: _Ranking) -> list[tuple[Action, str]]:
    """Joins the pieces of one table, level and engine into an action, returned with the reason not to take it, or "".

    Pieces with different reasons become different actions. They keep the order of their first pieces.
    """
    groups: dict[Group, list[Candidate]] = defaultdict(list)
    for c in candidates:
        groups[c.table, c.level, c.engine, c.why_not or ""].append(c)
    return [(_action(group, ranking), why) for (*_, why), group in groups.items()]


def _action(group: Collection[Candidate], ranking: _Ranking) -> Action:
    first = next(iter(group))
    work = tuple(candidate.work for candidate in group if candidate.work)
    rate = ranking.policy.rates[first.engine]
    cost = sum(map(ranking.cost, group), rate.of_seconds(rate.start if first.level in OF_PARTITIONS else 0.0))
    gain = sum(map(ranking.gain, group), Gain())
    reason = rewrite_reason(work, {c.why_spark for c in group if c.why_spark}) if work else first.reason
    return Action(first.table, first.level, first.engine, work, reason, gain, cost)

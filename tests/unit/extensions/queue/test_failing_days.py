"""How many runs fail while nobody mends what is wrong, counted over simulated days of ticks, messages and runs.
Single decisions are in test_decide.py."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from dagster import DagsterRunStatus

from lakehouse_assets.declare.options import Pace
from lakehouse_assets.extensions.queue.decide import Lane, Waiting, decide
from lakehouse_assets.extensions.queue.strikes import LONGEST_BACKOFF, EndedRun, QueueMemory, learn

NOW = 1_000_000.0
TABLE = "a.t"
HOUR = 3600
DAY = 24 * HOUR
KEYS = [f"{n:03d}" for n in range(400)]


@dataclass(frozen=True)
class Told:
    """runs: when each was asked for, seconds after the start, and whether it failed. memory: in the end."""

    runs: Sequence[tuple[int, bool]]
    memory: QueueMemory

    @property
    def failed(self) -> list[int]:
        return [at for at, has_failed in self.runs if has_failed]

    @property
    def good(self) -> list[int]:
        return [at for at, has_failed in self.runs if not has_failed]

    def parked(self) -> set[str]:
        return {key for (_, key), found in self.memory.strikes.items() if found.count >= Pace().tries}


def told(
    fails: Callable[[int, Collection[str]], bool],
    keys: Sequence[str] = KEYS,
    *,
    message_every: int = 0,
    days: int = 2,
    names: bool = False,
    tick: int = 300,
) -> Told:
    """Of partitions that all wait at the start. Each run has ended by the next tick.

    fails: whether a run of these keys does at a time. message_every: seconds after which a new message asks for each of
    them again; 0: none does. names: whether a failed run names all its keys. tick: seconds.
    """
    runs, memory, last = [], QueueMemory(), ""
    waiting: dict[str, Waiting] = {key: Waiting(TABLE, key, NOW, frozenset({key})) for key in keys}
    for at in range(0, days * DAY, tick):
        if message_every and at and at % message_every == 0:
            waiting = {key: _asked_again(waiting.get(key), key, at) for key in keys}
        of_table = Lane(TABLE, Pace(), keys, last_ended=last)
        for request in decide(NOW + at, waiting.values(), [of_table], memory, 4).requests:
            last, has_failed = f"r{at}", fails(at, request.keys)
            runs.append((at, has_failed))
            outcome = DagsterRunStatus.FAILURE if has_failed else DagsterRunStatus.SUCCESS
            covered = {key: waiting[key].names for key in request.keys}
            bad = frozenset(request.keys) if names else frozenset()
            memory = learn(memory, [EndedRun(last, TABLE, outcome, covered, bad)], {TABLE: Pace()}, NOW + at + tick - 1)
            if not has_failed:
                waiting = {key: one for key, one in waiting.items() if key not in request.keys}
    return Told(runs, memory)


def _asked_again(earlier: Waiting | None, key: str, at: int) -> Waiting:
    names = earlier.names if earlier else frozenset()
    return Waiting(TABLE, key, earlier.since if earlier else NOW + at, names | {f"{key} {at}"})


@pytest.mark.parametrize("keys", [["2024-01-01"], [""], ["01", "02"]], ids=["one key", "no partitions", "two keys"])
def test_what_always_fails_is_tried_once_an_hour_however_many_messages_ask_for_it(keys: Sequence[str]) -> None:
    found = told(lambda at, some: True, keys, message_every=60, tick=60)
    first, second = ([at for at in found.failed if at // DAY == day] for day in (0, 1))
    assert len(first) <= 35 * len(keys)
    assert len(second) <= 24 * len(keys)


@pytest.mark.parametrize(("keys", "message_every"), [(KEYS, 0), (KEYS[:40], 300)], ids=["", "messages come"])
@pytest.mark.parametrize("names", [False, True])
def test_a_table_that_always_fails_is_tried_by_one_partition_an_hour(
    names: bool, keys: Sequence[str], message_every: int
) -> None:
    found = told(lambda at, some: True, keys, names=names, message_every=message_every)
    assert len(found.runs) < 70
    waits = [after - before for before, after in pairwise(found.failed)]
    assert waits[-40:] == [LONGEST_BACKOFF + 300] * 40, "each has ended 300 s later"
    assert len(found.parked()) < 3, "a person is left those that failed before the table was to blame"


def test_what_is_mended_is_tried_within_the_hour_while_messages_come() -> None:
    mended = DAY + 1
    found = told(lambda at, keys: at < mended, KEYS[:1], message_every=60, tick=60)
    assert mended <= found.good[0] <= mended + LONGEST_BACKOFF


def test_a_table_that_is_mended_has_all_its_partitions_soon() -> None:
    mended = DAY
    found = told(lambda at, keys: at < mended)
    assert mended <= found.good[0] <= mended + LONGEST_BACKOFF
    assert len(found.good) < 40, "the partitions that were tried meanwhile, each alone, and ranges of the others"
    assert len(found.memory.strikes) < 3, "those that failed too often before the table was to blame"
    assert not found.memory.breakers


def test_bad_partitions_are_found_as_before_while_others_succeed() -> None:
    bad = {"010", "011", "200", "399"}
    found = told(lambda at, keys: not bad.isdisjoint(keys), tick=60)
    assert (len(found.runs), len(found.good), found.good[-1]) == (105, 20, 8940), "as without a breaker"
    assert found.parked() == bad

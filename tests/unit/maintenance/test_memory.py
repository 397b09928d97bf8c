"""What is remembered of actions: how far estimates were off, within bounds; failures in a row; the latest only."""

from __future__ import annotations

import pytest

from lakehouse_assets.declare.care import Level
from lakehouse_assets.health.gain import Gain
from lakehouse_assets.maintenance import memory as memories
from lakehouse_assets.maintenance.memory import LEAST, MOST, Ending, Found, Last, Memory, Ratios
from lakehouse_assets.maintenance.planned import Action, Cost, Engine
from tests.support.healths import partition

NOW = 1_700_000_000.0
START = 20.0


def action(things: int = 100, size: int = 1000, seconds: float = START + 10, level: Level = Level.FRAGMENTS) -> Action:
    return Action("a.t", level, Engine.SPARK, (), "", Gain(files=things), Cost(size, seconds))


def found(
    things: int = 100, size: int = 1000, seconds: float = START + 10, ending: Ending = Ending.DONE, **more: object
) -> Found:
    return Found(ending, things, Cost(size, seconds), **more)


def after(memory: Memory, of: Action, what: Found, now: float = NOW) -> Memory:
    return memory.after(of, what, "run", now, START)


def ratios(memory: Memory) -> Ratios:
    return memory.ratio(Level.FRAGMENTS, Engine.SPARK)


def test_what_was_as_expected_corrects_nothing() -> None:
    assert ratios(after(Memory(), action(), found())) == Ratios(1, 1, 1)


def test_estimates_come_near_what_is_found_and_stay_there() -> None:
    """The truth: half of the gain, three times the bytes, twice the seconds; each action is expected as corrected."""
    memory = Memory()
    for _ in range(30):
        known = ratios(memory)
        expected = action(round(1000 * known.gain), round(1000 * known.size), START + 10 * known.seconds)
        memory = after(memory, expected, found(500, 3000, START + 20))
    learned = ratios(memory)
    assert learned.gain == pytest.approx(0.5, rel=0.01)
    assert learned.size == pytest.approx(3, rel=0.01)
    assert learned.seconds == pytest.approx(2, rel=0.01)


def test_one_odd_action_moves_an_estimate_a_little_and_none_beyond_its_bounds() -> None:
    once = ratios(after(Memory(), action(), found(seconds=START + 1_000_000)))
    assert 1 < once.seconds <= 2, "ten times is the most that one is taken for, and a third of that counts"
    memory = Memory()
    for _ in range(100):
        memory = after(memory, action(), found(things=0, seconds=START + 1_000_000))
    assert ratios(memory).seconds == pytest.approx(MOST)
    assert ratios(memory).gain == pytest.approx(LEAST)


def test_where_nothing_was_to_be_done_nothing_is_learned() -> None:
    assert ratios(after(Memory(), action(), found(things=0, size=0))) == Ratios()


def test_no_more_is_expected_than_there_is() -> None:
    memory = Memory()
    for _ in range(5):
        memory = after(memory, action(), found(things=action().gain.things * 3))
    assert ratios(memory).gain == 1


def test_a_conflict_makes_the_next_gain_less_likely_and_a_failure_teaches_nothing() -> None:
    assert ratios(after(Memory(), action(), found(things=0, ending=Ending.CONFLICT))).gain < 1
    assert ratios(after(Memory(), action(), found(things=0, seconds=1, ending=Ending.FAILED))) == Ratios()


def test_failures_in_a_row_are_counted_by_level_and_by_partition_and_end_with_a_success() -> None:
    good, bad = partition(values=(1,)).id, partition(values=(2,)).id
    memory = Memory()
    for n in range(3):
        fates = {good: Ending.DONE, bad: Ending.CONFLICT}
        memory = after(memory, action(), found(ending=Ending.DONE, partitions=fates), NOW + n)
    assert memory.last[bad] == Last(NOW + 2, 3)
    assert memory.last[good] == Last(NOW + 2, 0)
    assert memory.last[Level.FRAGMENTS] == Last(NOW + 2, 0)
    memory = after(memory, action(), found(partitions={bad: Ending.DONE}), NOW + 9)
    assert memory.last[bad] == Last(NOW + 9, 0)


def test_only_the_latest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memories, "SUBJECTS", 3)
    memory = Memory()
    for n in range(60):
        memory = after(memory, action(), found(partitions={f"0:({n},)": Ending.DONE}), NOW + n)
    assert set(memory.last) == {Level.FRAGMENTS, "0:(58,)", "0:(59,)"}
    assert len(memory.records) == 50
    assert memory.records[-1].at == NOW + 59


def test_partitions_are_told_apart_by_spec_and_values() -> None:
    some = [partition(values=values, spec_id=spec) for values in ((1,), ("1",), (None,), (1.0,)) for spec in (0, 1)]
    assert len({one.id for one in some}) == 8
    assert partition("a", values=(1,)).id == partition("b", values=(1,)).id

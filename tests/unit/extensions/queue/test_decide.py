"""Which runs are asked for, of what waits: pace, ranges, turns, failures. Single cases, each with its reason.
That nothing is lost, whatever happens in between, is held by the model in test_queue_model.py."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta

import pytest
from dagster import DagsterRunStatus

from lakehouse_assets.declare.options import Pace
from lakehouse_assets.extensions.queue.decide import Decision, Lane, Waiting, decide
from lakehouse_assets.extensions.queue.strikes import Breaker, EndedRun, QueueMemory, RunLimit, Strikes, learn

NOW = 1_000_000.0
DAYS = [f"{n:02d}" for n in range(1, 32)]
TABLE = "a.t"


def wait(*days: int, table: str = TABLE, since: float = NOW - 1, name: str = "m") -> list[Waiting]:
    return [Waiting(table, f"{day:02d}", since, frozenset({f"{name}{day}"})) for day in days]


def lane(*running: Collection[str] | None, table: str = TABLE, **pace: object) -> Lane:
    return Lane(table, Pace(**pace), DAYS, running)  # type: ignore[arg-type]


def decided(
    waiting: list[Waiting], *lanes: Lane, memory: QueueMemory | None = None, now: float = NOW, most: int = 9
) -> Decision:
    return decide(now, waiting, lanes or (lane(),), memory or QueueMemory(), most)


def ranges(decision: Decision) -> list[str]:
    return [f"{r.keys[0]}..{r.keys[-1]}" for r in decision.requests]


def test_the_longest_range_goes_first_and_one_run_at_a_time() -> None:
    assert ranges(decided(wait(1, 3, 4, 5, 9, 10))) == ["03..05"]


def test_as_many_runs_as_the_table_may_have_at_once() -> None:
    waiting = wait(1, 3, 4, 5, 9, 10)
    assert ranges(decided(waiting, lane(runs=3))) == ["03..05", "09..10", "01..01"]
    assert ranges(decided(waiting, lane(["20"], runs=2))) == ["03..05"]
    assert ranges(decided(waiting, lane(runs=9), most=2)) == ["03..05", "09..10"]


def test_what_has_waited_for_ten_minutes_goes_before_longer_ranges_also_if_it_failed() -> None:
    memory = after(failed(9))
    waiting = wait(1, 2, 3) + wait(9, since=NOW - 700) + wait(20, since=NOW - 650)
    found = decided(waiting, lane(runs=3), memory=memory, now=NOW + 60)
    assert ranges(found) == ["09..09", "20..20", "01..03"]


def test_a_range_is_cut_at_the_ceiling() -> None:
    assert ranges(decided(wait(*range(1, 8)), lane(ceiling=3, runs=9))) == ["01..03", "04..06", "07..07"]


def test_few_partitions_wait_for_more_but_not_for_long() -> None:
    slow = lane(floor=3, latency=timedelta(seconds=60))
    assert not decided(wait(1, 2), slow).requests
    assert decided(wait(1, 2, 3), slow).requests
    assert decided(wait(1, since=NOW - 60) + wait(9), slow).requests


@pytest.mark.parametrize("running", [["01", "02"], None])
def test_what_a_run_is_about_to_write_is_not_asked_for_again(running: list[str] | None) -> None:
    assert not decided(wait(1, 2), lane(running, runs=9)).requests


def test_what_does_not_exist_yet_waits() -> None:
    assert ranges(decided([*wait(31), Waiting(TABLE, "32", NOW - 99, frozenset("x"))])) == ["31..31"]


def test_tables_take_turns_whoever_waited_longest_first() -> None:
    lanes = [lane(table=name, ceiling=2, runs=9) for name in ("a.t", "b.t")]
    waiting = wait(*range(1, 30)) + wait(5, table="b.t", since=NOW - 50)
    found = decided(waiting, *lanes, most=3)
    assert [request.table for request in found.requests] == ["b.t", "a.t", "a.t"]


def test_a_table_that_floods_does_not_keep_out_another() -> None:
    lanes = [lane(table=name, runs=1) for name in ("a.t", "b.t")]
    waiting = wait(*range(1, 30), since=NOW - 500) + wait(5, table="b.t")
    first = decided(waiting, *lanes, most=1)
    second = decided(waiting, *lanes, memory=first.memory, most=1)
    assert [first.requests[0].table, second.requests[0].table] == ["a.t", "b.t"]


def failed(*days: int, bad: Collection[str] = (), run: str = "r1", name: str = "m") -> EndedRun:
    covered = {f"{day:02d}": frozenset({f"{name}{day}"}) for day in days}
    return EndedRun(run, TABLE, DagsterRunStatus.FAILURE, covered, frozenset(bad), "no such column")


def after(*ended: EndedRun, memory: QueueMemory | None = None, now: float = NOW, **pace: object) -> QueueMemory:
    return learn(memory or QueueMemory(), ended, {TABLE: Pace(**pace)}, now)  # type: ignore[arg-type]


def test_good_neighbours_of_a_bad_partition_go_at_once_and_it_goes_alone_later() -> None:
    memory = after(failed(1, 2, 3, bad=["02"]))
    waiting = wait(1, 2, 3)
    assert ranges(decided(waiting, lane(runs=9), memory=memory)) == ["01..01", "03..03"]
    later = decided(waiting, lane(runs=9), memory=memory, now=NOW + 60)
    assert ranges(later) == ["01..01", "03..03", "02..02"]


def test_it_waits_twice_as_long_each_time_and_an_hour_at_most() -> None:
    memory, waits = QueueMemory(), []
    for n in range(8):
        memory = after(failed(2, run=f"r{n}"), memory=memory, tries=9)
        waits.append(memory.strikes[TABLE, "02"].until - NOW)
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600]


def test_after_its_tries_it_is_left_to_a_person_until_a_new_message_comes() -> None:
    memory = QueueMemory()
    for n in range(4):
        memory = after(failed(2, run=f"r{n}"), memory=memory)
    much_later = NOW + 10_000
    found = decided(wait(2), memory=memory, now=much_later)
    assert not found.requests
    assert [one.key for one in found.parked] == ["02"]
    assert memory.strikes[TABLE, "02"] == Strikes(
        4, NOW + 60, ("r0", "r1", "r2", "r3"), "no such column", frozenset({"m2"})
    )
    new = [Waiting(TABLE, "02", NOW, frozenset({"m2", "new"}))]
    assert ranges(decided(new, memory=memory, now=NOW + 60)) == ["02..02"]
    once_more = after(EndedRun("r9", TABLE, DagsterRunStatus.FAILURE, {"02": frozenset({"m2", "new"})}), memory=memory)
    assert not decided(new, memory=once_more, now=much_later).requests


def test_new_messages_for_what_is_parked_are_tried_soon_at_first_and_then_less_and_less_often() -> None:
    memory, waits = QueueMemory(), []
    for n in range(12):
        memory = after(failed(2, run=f"r{n}", name=f"m{n}-"), memory=memory)
        waits.append(memory.strikes[TABLE, "02"].until - NOW)
    assert waits[:4] == [60, 120, 240, 60]
    assert waits[4:] == [120, 240, 480, 960, 1920, 3600, 3600, 3600]


def test_where_a_run_names_no_partition_the_next_is_half_as_large_until_one_fails_alone() -> None:
    waiting, memory, sizes, now = wait(*range(1, 9)), QueueMemory(), [], NOW
    for n in range(4):
        request = decided(waiting, memory=memory, now=now).requests[0]
        sizes.append(len(request.keys))
        assert not memory.strikes
        memory = after(failed(*map(int, request.keys), run=f"r{n}"), memory=memory, now=now)
        now += 60
    assert sizes == [8, 4, 2, 1]
    assert memory.strikes.keys() == {(TABLE, "01")}


def test_a_table_whose_runs_all_fail_waits_after_the_second_one() -> None:
    waiting = wait(*range(1, 9))
    memory = after(failed(*range(1, 9)))
    assert ranges(decided(waiting, memory=memory)) == ["01..04"]
    memory = after(failed(1, 2, 3, 4), memory=memory)
    assert not decided(waiting, memory=memory, now=NOW + 59).requests
    assert ranges(decided(waiting, memory=memory, now=NOW + 60)) == ["01..02"]


def test_of_a_table_that_always_fails_one_partition_is_tried_when_nothing_else_of_it_runs() -> None:
    memory = QueueMemory(breakers={TABLE: Breaker(3, NOW + 60, "r1")}, strikes={(TABLE, "01"): Strikes(1)})
    waiting = wait(1, 2, 3)
    assert not decided(waiting, lane(runs=9), memory=memory).requests
    assert ranges(decided(waiting, lane(runs=9), memory=memory, now=NOW + 60)) == ["02..02"]
    assert not decided(waiting, lane(["09"], runs=9), memory=memory, now=NOW + 60).requests


def test_partitions_that_fail_again_tell_nothing_new_of_their_table() -> None:
    memory = QueueMemory()
    for n in range(8):
        memory = after(failed(1 + n % 2, run=f"r{n}"), memory=memory, tries=9)
    assert memory.breakers[TABLE] == Breaker(2)
    assert after(failed(3, run="r9"), memory=memory).breakers[TABLE] == Breaker(3, NOW + 60, "r9")


def test_a_run_that_published_others_blames_what_it_did_not_publish_and_not_its_table() -> None:
    memory = after(failed(8), failed(9), memory=QueueMemory(strikes={(TABLE, "01"): Strikes(1)}))
    assert memory.breakers[TABLE] == Breaker(2)
    memory = after(replace(failed(1, 2, 3), published=frozenset({"01", "02"})), memory=memory)
    assert not memory.breakers
    again = after(replace(failed(3, 4, run="r2"), published=frozenset({"04"})), memory=memory)
    assert {key: found.count for (_, key), found in again.strikes.items()} == {"03": 2, "08": 1, "09": 1}
    assert not again.breakers
    three = replace(failed(1, 2, 3, 4, bad=["02", "03", "04"]), published=frozenset({"01"}))
    assert not after(three).breakers
    unnamed = after(replace(failed(1, 2, 3, 4, 5), published=frozenset({"01"})))
    assert unnamed.limits[TABLE] == RunLimit(2, NOW)


def test_a_run_that_failed_after_it_had_published_all_is_a_success() -> None:
    memory = after(failed(1, 2), failed(3))
    assert after(replace(failed(1, 3), published=frozenset({"01", "03"})), memory=memory) == QueueMemory()


def test_success_forgets_all_of_it() -> None:
    memory = after(failed(1, 2), failed(3))
    done = EndedRun("r2", TABLE, DagsterRunStatus.SUCCESS, {"01": frozenset(), "03": frozenset()})
    assert after(done, memory=memory) == QueueMemory()


def test_a_run_that_a_person_canceled_is_asked_for_later_without_a_strike() -> None:
    memory = after(EndedRun("r1", TABLE, DagsterRunStatus.CANCELED, {"01": frozenset({"m1"}), "02": frozenset({"m2"})}))
    assert not decided(wait(1, 2), memory=memory).requests
    assert ranges(decided(wait(1, 2), memory=memory, now=NOW + 60)) == ["01..02"]


def test_the_same_is_asked_for_once_after_each_run_that_ended() -> None:
    def key(waiting: list[Waiting], last_ended: str = "") -> str:
        return decided(waiting, replace(lane(), last_ended=last_ended)).requests[0].run_key

    assert key(wait(2)) == key(wait(2))
    assert key(wait(2, name="new")) != key(wait(2))
    assert key(wait(2), "r1") != key(wait(2))


def test_what_else_writes_a_table_takes_no_run_of_the_queues() -> None:
    by_hand = replace(lane(), others={"run r1": ["01"], "run r2": ["09"]})
    found = decided(wait(1, 2), by_hand, most=1)
    assert ranges(found) == ["02..02"]
    assert found.held_by == ("run r1",)
    assert not decided(wait(1, 2), replace(lane(), others={"backfill b1": None})).requests


def test_a_range_of_several_dimensions_lies_in_one_row() -> None:
    keys = ["a|1", "a|2", "b|1", "b|2"]
    rows = Lane(TABLE, Pace(runs=9), keys, row_of=lambda key: key.rpartition("|")[0])
    waiting = [Waiting(TABLE, key, NOW, frozenset({key})) for key in keys[1:]]
    assert ranges(decided(waiting, rows)) == ["b|1..b|2", "a|2..a|2"]

"""What nobody will run: when it goes to the dead-letter queue, what is said there, and that it stalls nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress

import dagster as dg
import pytest

from lakehouse_assets.extensions.queue.decide import (
    AT_ONCE,
    DEPLOYED,
    PATIENCE,
    Decision,
    RequestLetter,
    Waiting,
    given_up,
)
from lakehouse_assets.extensions.queue.inbox import Item
from lakehouse_assets.extensions.queue.messages import Routes
from lakehouse_assets.extensions.queue.source import LARGEST
from lakehouse_assets.extensions.queue.strikes import QueueMemory, Strikes
from lakehouse_assets.extensions.queue.tick import FULL, TickResult
from tests.support.queue_model import HOUR, START, TICK, Calls, Killed, World
from tests.support.tables import numbers

DAYS = dg.DailyPartitionsDefinition("1950-01-01", end_date="2024-03-01")
DAY_SECONDS = 24 * 3600.0
OLD = PATIENCE.total_seconds()


def items(*keys: str, table: str = "a.t", received: float = START) -> dict[str, Item]:
    ms = round(received * 1000)
    return {f"{table}/{key}": Item(table, key, 1, ms, ms) for key in keys}


def letters(found: Mapping[str, Item], now: float, *, is_full: bool = False) -> list[tuple[str, str]]:
    failing = {("a.t", "bad"): "failed too often: no such file"}
    said = given_up(found, {"a.t": {"1", "2", "bad"}}, failing, now, is_full=is_full)
    return [(letter.body, letter.reason) for letter in said]


def test_a_partition_that_is_not_there_waits_for_two_weeks() -> None:
    found = items("1", "3", "4", "bad") | items("1", table="a.gone")
    assert not letters(found, START + OLD - 1)
    assert letters(found, START + OLD) == [
        (
            '{"table": "a.gone", "partitions": ["1"]}',
            "table a.gone: 1 belongs to a table that is not declared here; 14 days after it arrived",
        ),
        ('{"table": "a.t", "partitions": ["3", "4"]}', "table a.t: 3, 4 does not exist; 14 days after it arrived"),
    ]


def test_in_a_full_inbox_what_cant_run_makes_room() -> None:
    found = items("1", "3", "bad") | items("1", table="a.gone")
    assert letters(found, START, is_full=True) == [
        ('{"table": "a.t", "partitions": ["3"]}', "table a.t: 3 does not exist; the inbox is full"),
        ('{"table": "a.t", "partitions": ["bad"]}', "table a.t: bad failed too often: no such file; the inbox is full"),
    ]


def test_what_a_run_is_about_to_mend_is_not_given_up() -> None:
    """A person has the parked partition materialized: its request stays until that run is done."""
    parked = [Waiting("a.t", key, START, frozenset({key})) for key in ("1", "2")]
    memory = QueueMemory({one.wanted: Strikes(count=5, reason="no such file") for one in parked})
    decision = Decision(parked=tuple(parked), in_runs=(parked[0],), memory=memory)
    assert TickResult(waiting=parked, decision=decision).failing() == {("a.t", "2"): "failed too often: no such file"}


@pytest.mark.parametrize("character", ["é", "\x01"])
def test_a_letter_is_no_longer_than_sqs_takes_and_asks_for_the_same(character: str) -> None:
    """JSON writes a control character as six bytes."""
    long = {f"n{n}": Item("a.t", character * 5000 + str(n), 1, 0, 0) for n in range(300)}
    found = given_up(long, {"a.t": ()}, {}, OLD, is_full=False)
    assert len(found) > 1
    assert all(len(letter.body.encode()) < LARGEST for letter in found)
    assert sorted(key for letter in found for key in json.loads(letter.body)["partitions"]) == sorted(
        item.key for item in long.values()
    )
    assert frozenset().union(*(letter.names for letter in found)) == long.keys()
    whole = given_up({"x": Item("a.w", "", 1, 0, 0)}, {}, {}, OLD, is_full=False)
    assert whole == [
        RequestLetter(
            '{"table": "a.w"}',
            "table a.w: whole table belongs to a table that is not declared here; 14 days after it arrived",
            frozenset("x"),
        )
    ]
    table = numbers(partitions=DAYS)
    given = given_up(
        items("1950-01-01", table=table.identifier), {table.identifier: ()}, {}, START + OLD, is_full=False
    )
    assert Routes([table], "/", lambda _: ()).read(given[0].body).wanted == ((table.identifier, "1950-01-01"),)


def world(calls: Calls | None = None) -> World:
    """A table with more partitions to come than there are."""
    found = World(calls or Calls())
    found.table = numbers(partitions=DAYS)
    return found


def dead(of: World) -> list[str]:
    """The partitions of dead letters."""
    found = of.sqs.queues["dead"].messages.values()
    return sorted(key for message in found for key in json.loads(message.body)["partitions"])


def test_keys_that_never_come_stall_nobody_and_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse_assets.extensions.queue.tick.FULL", FULL // 10)
    monkeypatch.setattr("lakehouse_assets.extensions.queue.decide.AT_ONCE", AT_ONCE // 10)
    of = world()
    typos = DAYS.get_partition_keys()[: FULL // 10 + 200]
    ms = round(START * 1000)
    of.inbox.put(Item(of.table.identifier, key, 1, ms + n, ms) for n, key in enumerate(typos))
    of.arrives("2024-01-01")
    of.go(until=20 * TICK)
    assert not of.lost()
    waiting = [item.key for item in of.inbox.waiting().values()]
    assert len(waiting) <= FULL // 10
    assert sorted([*waiting, *dead(of)]) == typos
    for _ in range(10):
        of.now += PATIENCE.total_seconds()
        of.tick().run()
    assert not of.inbox.waiting()
    assert dead(of) == typos
    reasons = {m.attributes["reason"]["StringValue"] for m in of.sqs.queues["dead"].messages.values()}
    assert all("does not exist" in reason for reason in reasons)


def test_a_table_that_always_fails_leaves_room_for_the_messages_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse_assets.extensions.queue.tick.FULL", 100)
    of = world()
    of.keys = DAYS.get_partition_keys()[:150]
    of.bad = frozenset(of.keys)
    for key in of.keys:
        of.arrives(key)
        of.now += 0.001
    of.go(until=HOUR)
    assert len(of.inbox.waiting()) <= 100
    waiting = [item.key for item in of.inbox.waiting().values()]
    assert sorted([*waiting, *dead(of)]) == of.keys
    reasons = {m.attributes["reason"]["StringValue"] for m in of.sqs.queues["dead"].messages.values()}
    assert all("always fails" in reason for reason in reasons)
    of.arrives("2024-01-01")
    assert of.tick().run().taken.received == 1


def test_tables_that_are_gone_fill_the_inbox_for_an_hour_at_most() -> None:
    found = items("1", table="a.gone")
    assert not letters(found, START + DEPLOYED.total_seconds() - 1, is_full=True)
    ((_, reason),) = letters(found, START + DEPLOYED.total_seconds(), is_full=True)
    assert reason == "table a.gone: 1 belongs to a table that is not declared here; the inbox is full"


@pytest.mark.parametrize("done", [False, True])
def test_a_partition_that_is_given_up_is_in_the_dead_letters_or_the_inbox_whoever_dies(done: bool) -> None:
    def story(*kills: int) -> tuple[World, int]:
        of = world(Calls(kills, done))
        of.inbox.objects.calls = Calls()  # type: ignore[attr-defined]
        of.inbox.put([Item(of.table.identifier, key, 1, 0, 0) for key in ("1950-01-01", "1950-01-02")])
        of.inbox.objects.calls = of.calls  # type: ignore[attr-defined]
        return of, of.calls.made

    calm, _ = story()
    calm.tick().run()
    assert dead(calm) == ["1950-01-01", "1950-01-02"]
    for kill in range(calm.calls.made):
        of, _ = story(kill)
        with suppress(Killed):
            of.tick().run()
        waiting = {item.key for item in of.inbox.waiting().values()}
        assert {"1950-01-01", "1950-01-02"} <= {*waiting, *dead(of)}
        of.tick().run()
        assert not of.inbox.waiting()
        assert {*dead(of)} == {"1950-01-01", "1950-01-02"}


def test_what_the_dead_letter_queue_refuses_stays() -> None:
    of = world()
    of.inbox.put([Item(of.table.identifier, "1950-01-01", 1, 0, 0)])
    del of.sqs.queues["dead"]
    assert "requests that will never run stay in the inbox" in of.tick().run().faults
    assert of.inbox.waiting()

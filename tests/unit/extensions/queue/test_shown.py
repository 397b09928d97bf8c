"""What a person reads of a tick of the queue.
Which partitions wait, and for what, is decided in decide.py."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import dagster as dg

from lakehouse_assets.declare.options import Arrivals
from lakehouse_assets.environment.settings import QueueSettings, Settings
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.extensions.queue import sensor
from lakehouse_assets.extensions.queue.decide import Decision, Waiting
from lakehouse_assets.extensions.queue.extension import Queue
from lakehouse_assets.extensions.queue.sensor import ARRIVALS, numbers, sentence
from lakehouse_assets.extensions.queue.strikes import Breaker, QueueMemory
from lakehouse_assets.extensions.queue.tick import TickResult
from lakehouse_assets.run.asset import table_asset
from lakehouse_assets.run.resource import Lakehouse
from tests.support.tables import numbers as numbers_table
from tests.support.tables import whole

NOW = 1_000_000.0


def waiting(*keys: str) -> tuple[Waiting, ...]:
    return tuple(Waiting("a.t", key, NOW - 1, frozenset({key})) for key in keys)


def said(held_by: tuple[str, ...]) -> str:
    decision = Decision((), (), waiting("1", "2"), held_by, QueueMemory())
    return sentence(TickResult(waiting=waiting("1", "2", "3"), decision=decision), NOW)


def test_what_waits_for_a_run_that_the_queue_has_not_asked_for_is_told_with_its_name() -> None:
    assert said(()) == "received 0 for 0 partitions; 0 runs asked; 2 in runs; 1 wait; 0 parked"
    named = "2 in runs (also in runs that the queue did not request: run r1, backfill b1); 1 wait"
    assert named in said(("run r1", "backfill b1"))
    assert "run r9 and 2 more)" in said(tuple(f"run r{n}" for n in range(12)))


def test_a_table_that_always_fails_is_told_with_its_last_run() -> None:
    memory = QueueMemory(breakers={"a.t": Breaker(5, NOW + 240, "r5"), "b.t": Breaker(9, NOW, "r9")})
    told = sentence(TickResult(waiting=waiting("1", "2"), decision=Decision(memory=memory)), NOW)
    assert (
        "2 wait (a.t always fails, 5 times in a row, the last time in run r5: one partition is tried in 240 s)" in told
    )


def test_only_tables_that_declare_arrivals_have_the_check(settings: Settings) -> None:
    with_arrivals = numbers_table(arrivals=Arrivals("{day}.csv"))
    defs = Queue().definitions(
        [with_arrivals, whole()], replace(settings, queue=QueueSettings("http://x/1/q", "http://x/1/d"))
    )
    found = [key for check in defs.asset_checks or () for key in check.check_keys]  # type: ignore[union-attr]
    assert found == [dg.AssetCheckKey(with_arrivals.key, "arrivals")]


def test_the_tables_of_what_is_parked_are_named_as_not_all_have_the_check() -> None:
    decision = Decision((), waiting("1", "2"), (), (), QueueMemory())
    shown = numbers(TickResult(waiting=waiting("1", "2"), decision=decision), NOW, 0.0)
    assert (shown["parked"], shown["parked_in"]) == (2, "a.t")
    assert "parked_in" not in numbers(TickResult(), NOW, 0.0)


def test_a_verdict_that_a_run_stored_holds_only_until_the_next_tick(
    instance: dg.DagsterInstance, settings: Settings
) -> None:
    table = numbers_table(arrivals=Arrivals("{day}.csv"))
    lakehouse = {"lakehouse": Lakehouse(settings)}
    definitions = dg.Definitions([table_asset(table, EXTENSIONS)], resources=lakehouse)
    ask = sensor.queue_sensor([table], QueueSettings("http://x/1/q", "http://x/1/d"), dg.DefaultSensorStatus.STOPPED)

    def tick() -> list[bool]:
        """Whether each evaluation passed that was stored. Nothing is parked."""
        context = dg.build_sensor_context(instance, definitions=definitions, resources=lakehouse)
        with mock.patch.object(sensor, "sqs_queue"), mock.patch.object(sensor, "QueueTick") as made:
            made.return_value.run.return_value = TickResult()
            events = ask.evaluate_tick(context).asset_events
        found = [event for event in events if isinstance(event, dg.AssetCheckEvaluation)]
        for event in found:
            instance.report_runless_asset_event(event)
        return [event.passed for event in found]

    assert tick() == []
    warning = dg.AssetCheckEvaluation(asset_key=table.key, check_name=ARRIVALS, passed=False, metadata={})
    instance.report_runless_asset_event(warning)
    assert tick() == [True]
    assert tick() == []

"""When a source is moved, and what is said of it: by rows, by age, after failures."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg2
import pytest
from psycopg2.errors import QueryCanceled

from lakehouse_assets.declare.row_source import Lag, SourceState
from lakehouse_assets.errors import SourceUnreachable
from lakehouse_assets.extensions.sources.kafka import KafkaTopic
from lakehouse_assets.extensions.sources.postgres_session import ASKING, READING, Patience, connected
from lakehouse_assets.extensions.sources.sensors import SourceLook, is_due, verdict, wait_after

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOPIC = KafkaTopic("events", floor=10, latency=timedelta(minutes=5))
STATE = SourceState("id", (0,), (9,), (9,))


@pytest.mark.parametrize(
    ("rows", "minutes", "due"), [(10, 0, True), (9, 4, False), (9, 5, True), (0, None, False), (9, None, False)]
)
def test_a_run_is_due_by_rows_or_by_age(rows: int, minutes: int | None, due: bool) -> None:
    oldest = None if minutes is None else NOW - timedelta(minutes=minutes)
    assert is_due(TOPIC, Lag(rows, rows, oldest), NOW) is due


def test_each_failure_waits_twice_as_long_up_to_an_hour() -> None:
    assert [wait_after(failures) for failures in (0, 1, 2, 3, 20)] == [0, 60, 120, 240, 3600]


def test_a_record_that_is_near_its_retention_is_a_warning() -> None:
    kept = SourceState("id", (0,), (9,), (9,), timedelta(hours=1))
    lag = Lag(9, 9, NOW - timedelta(minutes=31))
    at_tick, at_next = (verdict(TOPIC, SourceLook(kept, lag, 0.0), NOW + timedelta(seconds=s)) for s in (0, 10))
    assert not at_tick.passed
    assert at_next == at_tick, "it is told once"
    assert verdict(TOPIC, SourceLook(STATE, lag, 0.0), NOW).passed


def test_a_long_transaction_is_a_warning_only_where_it_holds_rows_back() -> None:
    held = SourceState("id", (0,), (5,), (9,))
    lag = Lag(9, 0, None)
    at_tick, at_next = (verdict(TOPIC, SourceLook(held, lag, writing), NOW) for writing in (301.0, 311.0))
    assert not at_tick.passed
    assert at_next == at_tick, "it is told once"
    assert verdict(TOPIC, SourceLook(held, lag, 10.0), NOW).passed
    assert verdict(TOPIC, SourceLook(STATE, lag, 301.0), NOW).passed


@pytest.mark.parametrize(("patience", "told"), [(ASKING, "canceled; the limit is 30 s"), (READING, "canceled")])
def test_a_query_that_was_canceled_names_the_limit_if_there_is_one(
    patience: Patience, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: object, **__: object) -> None:
        raise QueryCanceled("canceled")

    monkeypatch.setattr(psycopg2, "connect", connect)
    with pytest.raises(SourceUnreachable) as error, connected("orders", patience):
        pass
    assert str(error.value) == f"orders did not answer: {told}"

"""What the sensor remembers, through its object and its cursor; neither may be what a person or a death left there."""

from __future__ import annotations

import pytest

from lakehouse_assets.queue.cursor import Cursor
from lakehouse_assets.queue.runs import Pending
from lakehouse_assets.queue.state import State, StateStore
from lakehouse_assets.queue.strikes import Breaker, QueueMemory, RunLimit, Strikes
from tests.support.queue_model import Calls, MemoryObjects

STATE = State(
    QueueMemory(
        {("a.t", "1"): Strikes(2, 5.0, ("r1",), "why", frozenset({"x"})), ("a.t", ""): Strikes()},
        {"a.t": RunLimit(3, 7.0)},
        {"a.t": Breaker(4, 8.0, "r2")},
        {"a.t": 3.0},
    ),
    ("r1", "r2"),
    (Pending("key", "a.t", ("1", "2"), 9.0),),
)


def test_it_is_read_as_it_was_written() -> None:
    store = StateStore(MemoryObjects(Calls()))
    assert store.read() is None
    store.write(STATE)
    assert store.read() == STATE


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 99}', b'{"version": 1, "memory": 3}', b"\xff"])
def test_what_cant_be_read_is_forgotten(content: bytes) -> None:
    assert StateStore(MemoryObjects(Calls(), {"state.json": content})).read() is None


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", "5", '{"failures": "many"}', '{"failures": 1e999}', '{"parked": 3}']
)
def test_a_cursor_that_is_none_of_ours_begins_anew(text: str | None) -> None:
    assert Cursor.parse(text) == Cursor()


def test_a_cursor_is_read_as_it_was_written() -> None:
    cursor = Cursor(2, 5.0, 7, {"a.t": "abc"})
    assert Cursor.parse(cursor.text()) == cursor

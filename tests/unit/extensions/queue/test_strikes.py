"""What the sensor remembers, through its object and its cursor; neither may be what a person or a death left there."""

from __future__ import annotations

import pytest

from lakehouse_assets.extensions.queue.sensor import Cursor
from lakehouse_assets.extensions.queue.strikes import Breaker, MemoryStore, QueueMemory, RunLimit, Strikes
from tests.support.queue_model import Calls, MemoryObjects

MEMORY = QueueMemory(
    {("a.t", "1"): Strikes(2, 5.0, ("r1",), "why", frozenset({"x"})), ("a.t", ""): Strikes()},
    {"a.t": RunLimit(3, 7.0)},
    {"a.t": Breaker(4, 8.0, "r2")},
    {"a.t": 3.0},
    ("r1", "r2"),
)


def test_it_is_read_as_it_was_written() -> None:
    store = MemoryStore(MemoryObjects(Calls()))
    assert store.read() is None
    store.write(MEMORY)
    assert store.read() == MEMORY


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"version": 99}', b'{"version": 2, "strikes": 3}', b'{"version": 2, "strikes": [1]}', b"\xff"],
)
def test_what_cant_be_read_is_forgotten(content: bytes) -> None:
    assert MemoryStore(MemoryObjects(Calls(), {"state.json": content})).read() is None


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", "5", '{"failures": "many"}', '{"failures": 1e999}', '{"parked": 3}']
)
def test_a_cursor_that_is_none_of_ours_begins_anew(text: str | None) -> None:
    assert Cursor.parse(text) == Cursor()


def test_a_cursor_is_read_as_it_was_written() -> None:
    cursor = Cursor(2, 5.0, 7, {"a.t": "abc"})
    assert Cursor.parse(cursor.text()) == cursor

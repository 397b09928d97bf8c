"""What a run covers of the inbox, and what it removes: single cases. That nothing is lost: test_queue_model.py.
What of it a plan keeps is in tests/unit/run/test_plan.py and test_queue_part.py."""

from __future__ import annotations

from collections.abc import Collection

from lakehouse_assets.extensions.queue.inbox import Inbox, Item, RunInbox, RunMessages, waiting_for
from tests.support.queue_model import Calls, MemoryObjects

ITEM = Item("a.t", "1", 2, 5_000, 6_000)
OTHERS: dict[str, Collection[str]] = {"other": ["1"]}


def covering(inbox: Inbox, *keys: str) -> RunInbox:
    covers = RunMessages("a.t", "r1", keys, waiting_for(inbox, "a.t", keys), None, 7_000)
    return RunInbox(inbox, covers, OTHERS.get, lambda: 7.0)


def test_it_covers_what_waits_for_its_partitions_and_removes_only_that() -> None:
    inbox = Inbox(MemoryObjects(Calls()))
    inbox.put([ITEM, Item("a.t", "2", 1, 1, 1), Item("a.other", "1", 1, 1, 1)])
    run = covering(inbox, "1", "3")
    assert run.covers.found["1"].messages == 2
    assert run.covers.found.keys() == {"1"}
    inbox.put([ITEM])
    run.remove(["1", "3"])
    left = sorted((item.table, item.key) for item in inbox.waiting().values())
    assert left == [("a.other", "1"), ("a.t", "1"), ("a.t", "2")]


def test_it_asks_again_for_what_others_published_once() -> None:
    inbox = Inbox(MemoryObjects(Calls()))
    run = covering(inbox, "1", "2")
    run.ask_again({"other", "r1"})
    run.ask_again({"other"})
    assert [item.key for item in inbox.waiting().values()] == ["1"]
    run.ask_again({"unknown"})  # of which nobody knows which partitions it wrote
    assert sorted(item.key for item in inbox.waiting().values()) == ["1", "1", "2"]

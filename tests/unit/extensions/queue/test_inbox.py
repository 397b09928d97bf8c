"""Objects for many partitions: what is left of them, what is removed when, and how often an object is read.
That nothing is lost by it is held by the model in unit/queue/test_queue_model.py."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from lakehouse_assets.extensions.queue.inbox import CROWD, Inbox, Item
from tests.support.queue_model import Calls, Killed, MemoryObjects

KEYS = [f"{n:03d}" for n in range(1, 8)]


def range_of(*keys: str, sent_ms: int = 5) -> list[Item]:
    return [Item("a.t", key, 1, sent_ms, 6) for key in keys]


def empty() -> tuple[Inbox, MemoryObjects]:
    objects = MemoryObjects(Calls())
    return Inbox(objects), objects


def keys(inbox: Inbox) -> list[str]:
    return [item.key for item in inbox.waiting().values()]


def names(inbox: Inbox, wanted: Iterable[str]) -> list[str]:
    return [name for name, item in inbox.waiting().items() if item.key in wanted]


def again(objects: MemoryObjects) -> Inbox:
    """The same inbox, to another process."""
    return Inbox(MemoryObjects(objects.calls, objects.contents))


def test_partitions_that_the_same_messages_ask_for_are_one_object() -> None:
    inbox, objects = empty()
    inbox.put([*range_of(*KEYS), *range_of("9", sent_ms=4), Item("a.other", "1", 1, 5, 6)])
    assert len(objects.contents) == 3
    assert sorted(keys(inbox)) == sorted([*KEYS, "9", "1"])
    assert again(objects).waiting() == inbox.waiting()
    assert keys(again(objects)) == keys(inbox)
    assert {item.key for item in inbox.waiting({"a.other"}).values()} == {"1"}


def test_what_is_left_of_an_object_stays_and_what_came_later_too() -> None:
    inbox, objects = empty()
    inbox.put(range_of(*KEYS))
    first, second = names(inbox, KEYS[:3]), names(inbox, KEYS[2:5])
    inbox.put(range_of(*KEYS[:2], sent_ms=9))
    inbox.remove(first)
    inbox.remove(second)  # by another run, which covered some of the same
    inbox.remove(second)
    for one in (inbox, again(objects)):
        assert sorted(keys(one)) == sorted([*KEYS[5:], *KEYS[:2]])


def test_an_object_goes_with_the_last_of_its_partitions_wherever_somebody_dies() -> None:
    inbox, objects = empty()
    inbox.put(range_of(*KEYS))
    inbox.remove(names(inbox, KEYS[:3]))
    inbox.remove(names(inbox, KEYS[3:]))
    assert not keys(inbox)
    kept, made = dict(objects.contents), objects.calls.made
    inbox.tidy(inbox.look())
    assert not objects.contents
    for death in range(1, objects.calls.made - made):
        calls = Calls((death,))
        objects = MemoryObjects(calls, dict(kept))
        with pytest.raises(Killed):
            Inbox(objects).tidy(Inbox(objects).look())
        assert not keys(again(objects))
        again(objects).tidy(again(objects).look())
        assert not objects.contents


def test_what_one_run_is_done_with_altogether_leaves_no_note() -> None:
    inbox, objects = empty()
    inbox.put(range_of(*KEYS))
    inbox.remove(names(inbox, KEYS))
    assert not objects.contents


def test_many_notes_of_an_object_become_one() -> None:
    inbox, objects = empty()
    many = [str(n) for n in range(CROWD + 9)]
    inbox.put(range_of(*many))
    for key in many[:-3]:
        inbox.remove(names(inbox, {key}))
    assert len(objects.contents) == 1 + len(many) - 3
    inbox.tidy(inbox.look())
    assert len(objects.contents) == 2
    for one in (inbox, again(objects)):
        assert keys(one) == many[-3:]


def test_a_part_is_no_object_to_older_code_which_removed_what_is_named() -> None:
    inbox, objects = empty()
    inbox.put(range_of(*KEYS))
    objects.remove(names(inbox, KEYS[:3]))
    assert keys(again(objects)) == KEYS


def test_what_another_version_wrote_waits_for_it() -> None:
    inbox, objects = empty()
    inbox.put([*range_of("1"), *range_of(*KEYS, sent_ms=1)])
    contents = {name: json.loads(content) for name, content in objects.contents.items()}
    later = MemoryObjects(Calls(), {n: json.dumps(said | {"version": 3}).encode() for n, said in contents.items()})
    found = Inbox(later).look()
    assert (found.items, found.objects) == ({}, 2)
    Inbox(later).tidy(found)
    assert len(later.contents) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"sent_ms": "5"}, {"sent_ms": 10**30}, {"received_ms": None}, {"messages": [1]}, {"messages": True},
        {"keys": [7]}, {"keys": [None]}, {"keys": "123"}, {"keys": {}}, {"table": 1}, {"more": 1},
    ],
    ids=str,
)  # fmt: skip
def test_an_object_of_other_types_says_nothing_and_stops_no_other(wrong: dict[str, object]) -> None:
    inbox, objects = empty()
    inbox.put([*range_of("1"), *range_of(*KEYS, sent_ms=1)])
    one, other = (name for name, content in sorted(objects.contents.items(), key=lambda o: b'"001"' in o[1]))
    objects.contents[one] = json.dumps({**json.loads(objects.contents[one]), **wrong}).encode()
    found = again(objects).look()
    assert sorted(item.key for item in found.items.values()) == KEYS
    assert found.objects == 2
    again(objects).tidy(found)
    assert objects.contents.keys() == {one, other}


def test_an_object_is_read_once_however_many_there_are() -> None:
    inbox, objects = empty()
    inbox.put(Item("a.t", str(n), 1, n, 6) for n in range(5_100))
    other = again(objects)
    calls = objects.calls.made
    assert len(other.waiting()) == 5_100
    assert objects.calls.made - calls == 5_101  # and the listing
    assert len(other.waiting()) == 5_100
    assert objects.calls.made - calls == 5_102
    inbox.waiting()  # of what this process has put it knows what it says
    assert objects.calls.made - calls == 5_103


def test_what_is_done_waits_no_more_while_only_a_part_of_the_objects_is_read() -> None:
    inbox, objects = empty()
    inbox.put(range_of(*KEYS))
    inbox.remove(names(inbox, KEYS[:3]))
    inbox.remove(names(inbox, KEYS[3:5]))
    other = again(objects)
    looks = [other.look(most=1) for _ in range(3)]
    assert [len(look.items) for look in looks] == [0, 0, 2]
    assert [look.unread for look in looks] == [2, 1, 0]
    assert not any(look.finished for look in looks)

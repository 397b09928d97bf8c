"""What a run notes, and what it removes: single cases. That the rules lose nothing is held by test_queue_model.py."""

from __future__ import annotations

from lakehouse_assets.inbox.covers import Covered, CoverNotes, Covers, Failed, RunCovers
from lakehouse_assets.inbox.inbox import Inbox, Item
from tests.support.queue_model import Calls, MemoryIO, MemoryObjects

ITEM = Item("a.t", "1", 2, 5_000, 6_000)


def parts() -> tuple[Inbox, CoverNotes, MemoryObjects]:
    objects = MemoryObjects(Calls())
    return Inbox(MemoryObjects(Calls())), CoverNotes(MemoryIO(objects), "staging/a.t"), objects  # type: ignore[arg-type]


def run(inbox: Inbox, notes: CoverNotes, token: str = "r1") -> RunCovers:
    return RunCovers(inbox, notes, "a.t", token, lambda: 7.0)


def test_it_notes_what_waits_for_its_partitions_and_removes_only_that() -> None:
    inbox, notes, _ = parts()
    inbox.put([ITEM, Item("a.t", "2", 1, 1, 1), Item("a.other", "1", 1, 1, 1)])
    covers = run(inbox, notes)
    covers.note(["1", "3"], 42, resumes=False)
    assert covers.covers.found["1"].messages == 2
    assert covers.covers.found.keys() == {"1"}
    assert notes.covers("r1") == covers.covers
    inbox.put([ITEM])
    covers.remove(["1", "3"])
    assert sorted((item.table, item.key) for item in inbox.waiting().values()) == [
        ("a.other", "1"),
        ("a.t", "1"),
        ("a.t", "2"),
    ]


def test_a_later_attempt_covers_what_the_first_one_did() -> None:
    inbox, notes, _ = parts()
    run(inbox, notes).note(["1"], 42, resumes=False)
    inbox.put([ITEM])
    again = run(inbox, notes)
    again.note(["1"], 43, resumes=True)
    assert (again.covers.found, again.covers.snapshot_id) == ({}, 42)


def test_a_resumed_run_whose_notes_are_torn_covers_nothing() -> None:
    inbox, notes, objects = parts()
    inbox.put([ITEM])
    run(inbox, notes).note(["1"], 42, resumes=False)
    (name,) = objects.contents
    objects.contents[name] = objects.contents[name][:30]
    again = run(inbox, notes)
    again.note(["1"], 43, resumes=True)
    assert not again.covers.found


def test_it_asks_again_for_what_others_published_once() -> None:
    inbox, notes, _ = parts()
    run(inbox, notes, "other").note(["1"], None, resumes=False)
    own = run(inbox, notes)
    own.note(["1", "2"], None, resumes=False)
    own.ask_again({"other", "r1"})
    own.ask_again({"other"})
    assert [item.key for item in inbox.waiting().values()] == ["1"]
    own.ask_again({"unknown"})  # of which nobody knows which partitions it wrote
    assert sorted(item.key for item in inbox.waiting().values()) == ["1", "1", "2"]


def test_both_notes_are_read_as_written() -> None:
    _, notes, _ = parts()
    notes.note_failed("r1", Failed("r2", ("é",), "why"))
    assert notes.failed("r1") == Failed("r2", ("é",), "why")
    covers = Covers("a.t", "r1", ("",), {"": Covered(("x", "y"), 2, 5)}, None, 5)
    notes.note(covers)
    assert notes.covers("r1") == covers
    assert covers.names() == {"": frozenset(("x", "y"))}

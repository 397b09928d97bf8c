"""Who is tried again, when and by which key, and what is said of who is not.
What the loop does about it is in test_drive.py and, with real services' answers, in test_ecs.py and test_emr.py."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_assets.drive import verdicts
from lakehouse_assets.drive.results import WorkerFailure
from lakehouse_assets.drive.verdicts import Again, Waiting, after_end, after_refusal
from lakehouse_assets.protocol.assignment import OUT_OF_REACH
from lakehouse_assets.run.plan import Chunk
from resources.launchers.base import Attempt, Ended, NotStarted

ATTEMPT = Attempt(group="token", subject="demo.t", ordinal=0, work="work", payload={})
WAITING = Waiting(Chunk(0, ("2024-01-01",)), ATTEMPT)
LOST = Ended("was lost to Spot", transient=True)
KEY_ERROR: dict[str, Any] = {"type": "KeyError", "message": "'carrier'", "traceback": "line 1"}


def again(verdict: Again | WorkerFailure) -> Again:
    assert isinstance(verdict, Again)
    return verdict


def failed(verdict: Again | WorkerFailure) -> WorkerFailure:
    assert isinstance(verdict, WorkerFailure)
    return verdict


def test_a_lost_worker_is_made_again_by_another_key_four_times_at_most() -> None:
    waiting, keys = WAITING, [WAITING.attempt.key]
    for _ in range(verdicts.ATTEMPTS - 1):
        waiting = again(after_end(waiting, LOST, None)).waiting
        keys.append(waiting.attempt.key)
    assert len(set(keys)) == 4
    assert "was lost to Spot, in attempt 4 of 4 and left no receipt" in failed(after_end(waiting, LOST, None)).message


def test_waits_grow_to_a_bound_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    refused, now = NotStarted("no capacity", transient=True), 1000.0
    for share in (0.5, 1.0):
        monkeypatch.setattr(verdicts.random, "uniform", lambda low, high, share=share: (low, high)[share == 1.0])
        waiting, waits = WAITING, []
        for _ in range(8):
            told = again(after_refusal(waiting, refused, now))
            waiting, waits = told.waiting, [*waits, told.wait]
        assert waits == [share * wait for wait in (5, 10, 20, 40, 80, 120, 120, 120)]
    assert again(after_end(WAITING, LOST, None)).wait == 5.0


def test_a_shortage_may_last_for_half_an_hour_and_is_forgotten_behind_a_start() -> None:
    refused = NotStarted("no capacity", transient=True)
    short = again(after_refusal(WAITING, refused, 1000.0)).waiting
    short = again(after_refusal(short, refused, 1000.0 + verdicts.REFUSED_SECONDS)).waiting
    assert "not started, 3 times: no capacity" in failed(after_refusal(short, refused, 2801.0)).message
    started = again(after_end(short, LOST, None)).waiting
    assert again(after_refusal(started, refused, 2801.0)).waiting.refused_since == 2801.0


def test_what_would_be_refused_again_fails_at_once() -> None:
    assert failed(after_refusal(WAITING, NotStarted("no such subnet", transient=False), 1.0)).message.endswith("subnet")


@pytest.mark.parametrize("unheard", [True, False])
def test_by_the_same_key_where_no_answer_came(unheard: bool) -> None:
    told = again(after_refusal(WAITING, NotStarted("timed out", transient=True, unheard=unheard), 1.0))
    assert (told.waiting.attempt.key == WAITING.attempt.key) == unheard


def test_what_the_step_raised_is_told_and_tried_again_only_where_its_end_was_not_its_own() -> None:
    ended = Ended("exited with 1")
    told = failed(after_end(WAITING, ended, KEY_ERROR))
    assert (told.message, told.traceback) == ("KeyError: 'carrier'", "line 1")
    assert "it said KeyError" in again(after_end(WAITING, LOST, KEY_ERROR)).reason
    assert "it said KeyError" in again(after_end(WAITING, ended, KEY_ERROR | {OUT_OF_REACH: True})).reason


def test_a_stop_by_hand_is_final_unless_it_was_meant_for_the_run_before() -> None:
    stopped = Ended("was stopped by a person", stopped=True)
    assert "by a person" in failed(after_end(WAITING, stopped, None)).message
    of_before = Waiting(WAITING.chunk, WAITING.attempt, of_before=True)
    assert not again(after_end(of_before, stopped, None)).waiting.of_before

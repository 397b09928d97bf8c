"""Which chunks are tried again, when and with which key, and how the others' failures read.
What the loop does about it is in test_drive.py and, with real services' answers, in test_ecs.py and test_emr.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lakehouse_assets.drive import chunks
from lakehouse_assets.drive.chunks import Chunk, PendingChunk, Retry, WorkerFailure, after_end, after_refusal
from lakehouse_assets.environment.launchers.base import Attempt, Ended, NotStarted
from lakehouse_assets.wire.work import CAUSE, OUT_OF_REACH, Cause

ATTEMPT = Attempt(group="token", subject="demo.t", ordinal=0, work="work", payload={})
WAITING = PendingChunk(Chunk(0, ("2024-01-01",)), ATTEMPT)
LOST = Ended("was lost to Spot", transient=True)
KEY_ERROR: dict[str, Any] = {"type": "KeyError", "message": "'carrier'", "traceback": "line 1"}


def retried(verdict: Retry | WorkerFailure) -> Retry:
    assert isinstance(verdict, Retry)
    return verdict


def failed(verdict: Retry | WorkerFailure) -> WorkerFailure:
    assert isinstance(verdict, WorkerFailure)
    return verdict


def test_a_lost_worker_s_chunk_is_tried_four_times_each_with_another_key() -> None:
    waiting, keys = WAITING, [WAITING.attempt.key]
    for _ in range(chunks.ATTEMPTS - 1):
        waiting = retried(after_end(waiting, LOST, None)).pending
        keys.append(waiting.attempt.key)
    assert len(set(keys)) == 4
    assert "was lost to Spot, in attempt 4 of 4 and left no receipt" in failed(after_end(waiting, LOST, None)).message


def test_waits_grow_to_a_bound_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    refused, now = NotStarted("no capacity", transient=True), 1000.0
    for share in (0.5, 1.0):
        monkeypatch.setattr(chunks.random, "uniform", lambda low, high, share=share: (low, high)[share == 1.0])
        waiting, waits = WAITING, []
        for _ in range(8):
            verdict = retried(after_refusal(waiting, refused, now))
            waiting, waits = replace(verdict.pending, due=now), [*waits, verdict.wait]
        assert waits == [share * wait for wait in (5, 10, 20, 40, 80, 120, 120, 120)]
    assert retried(after_end(WAITING, LOST, None)).wait == 5.0


@pytest.mark.parametrize("for_slots", [0.0, 2 * chunks.REFUSED_SECONDS])
def test_a_shortage_may_last_for_half_an_hour_beside_the_waits_for_slots(for_slots: float) -> None:
    refused, waiting, now, tries = NotStarted("no capacity", transient=True), WAITING, 1000.0, 0
    while isinstance(verdict := after_refusal(waiting, refused, now), Retry):
        waiting = replace(verdict.pending, due=now + verdict.wait)
        now, tries = waiting.due + for_slots, tries + 1
        assert tries < chunks.REFUSED_SECONDS
    assert f"not started, {tries + 1} times: no capacity" in verdict.message
    shortage = now - 1000.0 - tries * for_slots
    assert chunks.REFUSED_SECONDS < shortage <= chunks.REFUSED_SECONDS + 120


def test_a_shortage_is_forgotten_after_a_start() -> None:
    refused = NotStarted("no capacity", transient=True)
    short = retried(after_refusal(WAITING, refused, 1000.0)).pending
    started = retried(after_end(short, LOST, None)).pending
    assert retried(after_refusal(started, refused, 2801.0)).pending.shortage.since == 2801.0


def test_what_would_be_refused_again_fails_at_once() -> None:
    assert failed(after_refusal(WAITING, NotStarted("no such subnet", transient=False), 1.0)).message.endswith("subnet")


@pytest.mark.parametrize("unconfirmed", [True, False])
def test_the_key_is_kept_where_no_answer_came(unconfirmed: bool) -> None:
    verdict = retried(after_refusal(WAITING, NotStarted("timed out", transient=True, unconfirmed=unconfirmed), 1.0))
    assert (verdict.pending.attempt.key == WAITING.attempt.key) == unconfirmed


def test_what_the_step_raised_fails_the_chunk_unless_its_worker_was_ended_from_outside() -> None:
    ended = Ended("exited with 1")
    verdict = failed(after_end(WAITING, ended, KEY_ERROR))
    assert (verdict.message, verdict.traceback) == ("KeyError: 'carrier'", "line 1")
    assert "it reported KeyError" in retried(after_end(WAITING, LOST, KEY_ERROR)).reason
    assert "it reported KeyError" in retried(after_end(WAITING, ended, KEY_ERROR | {OUT_OF_REACH: True})).reason


def test_partitions_that_the_step_named_are_kept_if_they_are_the_chunks() -> None:
    named = KEY_ERROR | {"partitions": ["2024-01-01", "2024-02-30"]}
    assert failed(after_end(WAITING, Ended("exited with 1"), named)).bad == ("2024-01-01",)


def test_a_stop_by_hand_is_final_unless_it_ended_an_earlier_run() -> None:
    stopped = Ended("was stopped by a person", stopped=True)
    assert "by a person" in failed(after_end(WAITING, stopped, None)).message
    inherited = PendingChunk(WAITING.chunk, WAITING.attempt, inherited=True)
    assert not retried(after_end(inherited, stopped, None)).pending.inherited


def test_whose_fault_a_failure_is() -> None:
    reported = failed(after_end(WAITING, Ended("ended"), KEY_ERROR))
    of_input = failed(after_end(WAITING, Ended("ended"), KEY_ERROR | {CAUSE: Cause.INPUT}))
    silent = failed(after_end(WAITING, Ended("ended"), None))
    assert [verdict.cause for verdict in (reported, of_input, silent)] == [Cause.STEP, Cause.INPUT, Cause.WORKER]

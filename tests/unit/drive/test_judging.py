"""What counts as done and what as failed: reported receipts, durable ones, failures, a worker's time.
Which failures are tried again is test_chunk.py's."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lakehouse_assets.drive import chunks, loop
from tests.support.tiny_drive import Workers


def test_what_the_step_raised_is_the_failure(workers: Workers) -> None:
    (failure,) = workers.drive("complain").failures
    assert (failure.message, failure.traceback) == ("KeyError: 'carrier'", "  line 1\n")


@pytest.mark.parametrize("step", ["lose_s3", "miss_s3"])
def test_a_worker_that_lost_s3_is_tried_again(workers: Workers, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "FIRST_WAIT_SECONDS", 0.1)
    progress = workers.drive(step)
    assert sorted(progress.receipts) == [0]
    assert not progress.failures


def test_while_receipts_can_not_be_read_no_worker_is_judged_and_the_others_go_on(workers: Workers) -> None:
    workers.unreadable = 3
    progress = workers.drive("write", "work", "complain")
    assert sorted(progress.receipts) == [0, 1]
    assert [f.chunk.ordinal for f in progress.failures] == [2]
    assert workers.unreadable == 0
    assert workers.taken() == 0


def test_receipts_that_can_not_be_read_for_long_end_the_run(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "UNREADABLE_SECONDS", 0.5)
    workers.unreadable = 1000
    with pytest.raises(OSError, match="out of reach"):
        workers.drive("write_beside", "hang")
    assert workers.child_is_gone(1)
    assert workers.taken() == 0


def test_a_receipt_that_is_durable_counts_though_it_was_never_reported(workers: Workers) -> None:
    progress = workers.drive("write")
    assert sorted(progress.receipts) == [0]
    assert not progress.failures


def test_a_torn_receipt_is_none(workers: Workers) -> None:
    (failure,) = workers.drive("tear").failures
    assert "SIGKILL" in failure.message
    assert "no receipt" in failure.message


def test_garbage_among_the_messages_is_shown_and_costs_nothing(workers: Workers) -> None:
    progress = workers.drive("garble")
    assert sorted(progress.receipts) == [0]
    assert not progress.failures
    shown = [r.dagster_event.message for r in workers.instance.all_logs(workers.result.run_id) if r.dagster_event]
    assert sum("reading the message" in (text or "") for text in shown) == 5


def test_a_worker_that_hangs_is_ended_when_its_time_is_up(workers: Workers) -> None:
    (failure,) = workers.drive("hang", timeout=timedelta(seconds=15)).failures
    assert "still running after 0:00:15 (worker_timeout)" in failure.message
    assert workers.child_is_gone(0)
    assert workers.taken() == 0

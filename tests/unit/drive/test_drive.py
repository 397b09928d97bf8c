"""The poll loop over real processes without Spark: every chunk gets its worker and its proof, slot by slot.
What it drives besides tables is in test_job.py, what real workers do in tests/integration/test_faults.py."""

from __future__ import annotations

import tempfile
import time
from datetime import timedelta
from pathlib import Path

import pytest

from lakehouse_assets.drive import chunks
from lakehouse_assets.drive import slots as slots_module
from lakehouse_assets.drive import workers as workers_module
from lakehouse_assets.drive.chunks import Results
from lakehouse_assets.drive.liveness import start_time
from lakehouse_assets.drive.slots import POOL
from tests.support.tiny_drive import Workers


def test_every_chunk_that_reports_has_its_receipt(workers: Workers) -> None:
    progress = workers.drive("report", "report")
    assert sorted(progress.receipts) == [0, 1]
    assert not progress.failures
    assert progress.receipts[0].worker != progress.receipts[1].worker
    assert progress.links[0] == f"local process {progress.receipts[0].worker}"
    assert workers.taken() == 0


def test_no_more_run_at_once_than_the_pool_has_slots(workers: Workers) -> None:
    workers.instance.event_log_storage.set_concurrency_slots(POOL, 2)
    workers.drive(*["work"] * 5)
    spans = [tuple(map(float, p.read_text().split())) for p in Path(workers.folder, "token").glob("*.ran")]
    assert len(spans) == 5
    assert max(sum(start <= at < end for start, end in spans) for at, _ in spans) <= 2 == max(workers.limits)
    assert workers.taken() == 0


def test_temporary_files_lie_in_the_home(workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, system = tmp_path / "home", tmp_path / "system"
    system.mkdir()
    monkeypatch.setenv("LAKEHOUSE_HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(system))
    monkeypatch.setattr(tempfile, "tempdir", None)

    def look(_: Results) -> None:
        found = {path.name.rpartition("-")[2][:4] for path in home.glob("tmp/**/*")}
        assert not list(system.iterdir())
        if {"cont", "mess", "step"} <= found:
            raise KeyboardInterrupt

    monkeypatch.setattr(workers, "_report", look)
    with pytest.raises(KeyboardInterrupt):
        workers.drive("hang", timeout=timedelta(seconds=60))
    assert not list(home.glob("tmp/lakehouse-pipes-*"))


@pytest.mark.parametrize(("keep_on", "done"), [(False, []), (True, [1])])
def test_after_a_failure_nothing_more_starts_unless_the_others_go_on(workers: Workers, keep_on, done) -> None:
    workers.instance.event_log_storage.set_concurrency_slots(POOL, 1)
    progress = workers.drive("complain", "report", keep_on=keep_on)
    assert sorted(progress.receipts) == done
    assert [f.chunk.ordinal for f in progress.failures] == [0]
    assert workers.taken() == 0


def test_what_no_longer_starts_waits_for_no_slot(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    workers.instance.event_log_storage.set_concurrency_slots(POOL, 2)
    waiting: list[set[str]] = []

    def look(state: Results) -> None:
        if state.failures and state.running:
            info = workers.instance.event_log_storage.get_concurrency_info(POOL)
            waiting.append({step.step_key for step in info.pending_steps} - {"tiny[0]", "tiny[1]"})
            if len(waiting) > 5:
                raise KeyboardInterrupt  # the one that hangs has been looked at often enough

    monkeypatch.setattr(workers, "_report", look)
    with pytest.raises(KeyboardInterrupt):
        workers.drive("complain", "hang", "report", keep_on=False)
    assert waiting[-1] == set()


def test_a_chunk_that_was_given_a_slot_takes_it_though_others_became_due(workers: Workers, monkeypatch) -> None:
    storage = workers.instance.event_log_storage
    monkeypatch.setattr(slots_module, "CLAIM_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(chunks, "FIRST_WAIT_SECONDS", 1.0)
    waits = iter([3.0, 1.5])  # the first to wait is due last
    monkeypatch.setattr(chunks.random, "uniform", lambda *_: next(waits))
    looks: list[str] = []

    def look(state: Results) -> None:
        info = storage.get_concurrency_info(POOL)
        if not looks and len(list(Path(workers.folder, "token").glob("*.attempted"))) == 2 and not state.running:
            storage.set_concurrency_slots(POOL, 1)
            assert storage.claim_concurrency_slot(POOL, "another run", "its step").is_claimed
            looks.append("taken")
        elif looks == ["taken"] and info.pending_step_count + info.assigned_step_count > 1:
            time.sleep(1.5)
            looks.append("both are due")
        elif len(looks) == 2:
            storage.free_concurrency_slot_for_step("another run", "its step")
            looks.append("free")
        elif len(looks) > 2:
            looks.append("free")
            assert len(looks) < 100, f"a slot that nobody takes: {info}"

    monkeypatch.setattr(workers, "_report", look)
    progress = workers.drive("lose_s3_together", "lose_s3_together")
    assert sorted(progress.receipts) == [0, 1]


def test_a_chunk_that_is_staged_again_has_a_slot_though_its_first_worker_ends_late(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_module, "ENDING_SECONDS", 1.0)
    monkeypatch.setattr(workers_module, "ENDING_POLLS", 0)
    pids: list[int] = []
    taken: list[int] = []

    def look(state: Results) -> None:
        if state.receipts and not pids:
            pids.append(int(state.receipts[0].worker))
        elif pids and start_time(pids[0]) is None and state.running:
            taken.append(workers.instance.event_log_storage.get_concurrency_info(POOL).active_slot_count)
            if len(taken) == 30:
                raise KeyboardInterrupt

    monkeypatch.setattr(workers, "_report", look)
    with pytest.raises(KeyboardInterrupt):
        workers.drive("linger", again=["hang"])
    assert taken == [1] * 30

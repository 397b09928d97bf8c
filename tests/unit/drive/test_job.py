"""The loop drives work that is no table's: a job of a plain op, workers that count lines, proofs of their own shape.
What it does with a table's chunks is in test_drive.py."""

# No `from __future__ import annotations` here: Dagster compares the context's annotation itself.

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehouse_assets.drive import verdicts
from lakehouse_assets.drive.attempts import AttemptRecords
from lakehouse_assets.drive.chunk import Chunk, Results
from lakehouse_assets.drive.drive import driving
from lakehouse_assets.drive.process_tag import PROCESS_TAG, start_time
from lakehouse_assets.drive.slots import POOL
from resources.launchers.base import Attempt, Ended, Handle
from resources.launchers.local import LocalLauncher
from tests.conftest import ROOT
from tests.support.counting_worker import HANGS, LOSES_ITS_FIRST_WORKER, WAITS

COUNTING = (sys.executable, "-m", "tests.support.counting_worker")


@dataclass(frozen=True)
class Count:
    """The proof."""

    file: str
    lines: int


@dataclass(frozen=True)
class Counts:
    """Proofs beside the files that were counted."""

    files: Sequence[Path]

    def parse(self, reported: Any, attempt: Attempt) -> Count | None:
        return Count(**reported)

    def find(self, ordinals: Iterable[int]) -> Mapping[int, Count]:
        proofs = {n: self.files[n].with_suffix(".proof") for n in ordinals}
        return {n: Count(**json.loads(proof.read_text())) for n, proof in proofs.items() if proof.exists()}


@dataclass
class Counting:
    """Runs of one job, whose op drives a worker for each file. seen: for each turn, the workers that ran, and the
    steps that held a slot."""

    folder: Path
    instance: dg.DagsterInstance
    launcher: LocalLauncher = field(default_factory=lambda: LocalLauncher(COUNTING))
    seen: list[tuple[int, set[str]]] = field(default_factory=list)
    results: Results[Count] = field(default_factory=Results)

    def run(self, *first_lines: str) -> dg.ExecuteInProcessResult:
        """Count files that begin with these lines, two lines each."""
        files = [self.folder / f"file-{n}" for n in range(len(first_lines))]
        for file, line in zip(files, first_lines, strict=True):
            file.write_text(f"{line}\nits other line\n")

        @dg.op
        def count(context: dg.OpExecutionContext) -> None:
            records = AttemptRecords(PyArrowFileIO(), str(self.folder))
            chunks = [Chunk(n, (file.name,)) for n, file in enumerate(files)]
            attempts = {n: Attempt("counting", "files", n, "1", {"file": str(file)}) for n, file in enumerate(files)}
            with driving(context, self.launcher, Counts(files), records, self.look) as drive:
                self.results = drive.results
                drive.run(drive.resume(chunks), attempts, keep_on=True)

        @dg.job
        def counting() -> None:
            count()

        return counting.execute_in_process(instance=self.instance)

    def look(self, results: Results[Count]) -> None:
        info = self.instance.event_log_storage.get_concurrency_info(POOL)
        self.seen.append((results.running, {slot.step_key for slot in info.claimed_slots}))

    def workers(self, number: int) -> list[int]:
        """The process ids of all workers started for a file."""
        started = self.folder / f"file-{number}.started"
        return [int(pid) for pid in started.read_text().split()] if started.exists() else []

    def taken(self) -> int:
        info = self.instance.event_log_storage.get_concurrency_info(POOL)
        return info.active_slot_count + info.pending_step_count + info.assigned_step_count


@pytest.fixture
def counting(tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> Counting:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(verdicts, "FIRST_WAIT_SECONDS", 0.1)
    instance.event_log_storage.set_concurrency_slots(POOL, 2)
    (tmp_path / "counted").mkdir()
    return Counting(tmp_path / "counted", instance)


def test_each_worker_has_a_slot_and_one_that_is_lost_is_tried_again(counting: Counting) -> None:
    result = counting.run("one", LOSES_ITS_FIRST_WORKER, "three")
    assert counting.results.proofs == {n: Count(f"file-{n}", 2) for n in range(3)}
    assert not counting.results.failures
    assert [len(counting.workers(n)) for n in range(3)] == [1, 2, 1]
    assert max(running for running, _ in counting.seen) <= 2
    assert set().union(*(steps for _, steps in counting.seen)) == {f"count[{n}]" for n in range(3)}
    assert counting.taken() == 0
    assert counting.instance.get_run_by_id(result.run_id).tags[PROCESS_TAG]
    messages = [entry.user_message for entry in counting.instance.all_logs(result.run_id)]
    assert any("chunk 1 (file-1): the worker lost its network" in message for message in messages)


def test_a_run_that_is_terminated_ends_its_workers(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    def terminate(_: Results[Count]) -> None:
        if counting.workers(0):
            raise dg.DagsterExecutionInterruptedError

    monkeypatch.setattr(counting, "look", terminate)
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        counting.run(HANGS)
    assert start_time(*counting.workers(0)) is None
    assert counting.taken() == 0


class Surviving(LocalLauncher):
    """Its workers outlive the run that started them, and are watched by their ids."""

    durable = True

    def __init__(self) -> None:
        super().__init__(COUNTING)
        self.handles: dict[str, Handle] = {}

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        handle = super().submit(attempt, environment)
        self.handles[handle.id] = handle
        return handle

    def poll(self, handles: Sequence[Handle]) -> dict[str, Ended]:
        return super().poll([self.handles[handle.id] for handle in handles])


def test_a_run_that_is_resumed_takes_over_the_workers_of_the_one_before(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting.launcher = Surviving()
    (counting.folder / "hold").touch()

    def lose_the_host(_: Results[Count]) -> None:
        if counting.workers(0):
            raise dg.DagsterExecutionInterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(counting, "look", lose_the_host)
        patch.setattr(dg.DagsterInstance, "run_will_resume", lambda *_: True)
        with pytest.raises(dg.DagsterExecutionInterruptedError):
            counting.run(WAITS)
    (worker,) = counting.workers(0)
    assert start_time(worker) is not None
    assert not counting.results.proofs
    (run,) = counting.instance.get_runs(limit=1)
    counting.instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)  # as run monitoring does it

    def release(_: Results[Count]) -> None:
        (counting.folder / "hold").unlink(missing_ok=True)

    monkeypatch.setattr(counting, "look", release)
    result = counting.run(WAITS)
    assert counting.results.proofs == {0: Count("file-0", 2)}
    assert counting.workers(0) == [worker]
    messages = [entry.user_message for entry in counting.instance.all_logs(result.run_id)]
    assert f"chunk 0 (file-0): local process {worker} found running" in messages
    assert counting.taken() == 0

"""The poll loop over real processes without Spark: who gets a slot, what counts as done, how workers end.
What real workers do is test_faults.py's."""

# No `from __future__ import annotations` here: Dagster compares the context's annotation itself.

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from sqlalchemy.exc import OperationalError

from lakehouse_assets.drive import ending, judging, slot_wait, this_run, verdicts
from lakehouse_assets.drive import slots as slots_module
from lakehouse_assets.drive.attempts import AttemptRecords
from lakehouse_assets.drive.chunk import Chunk
from lakehouse_assets.drive.drive import driving
from lakehouse_assets.drive.process_tag import start_time
from lakehouse_assets.drive.results import Results
from lakehouse_assets.drive.slots import POOL
from lakehouse_assets.protocol.assignment import Assignment
from lakehouse_assets.protocol.receipts import Receipt, Receipts
from lakehouse_assets.run.receipt_proofs import ReceiptProofs
from lakehouse_assets.step.window import Window
from resources.launchers import local
from resources.launchers.base import Attempt, Ended, Handle, Launcher, NotStarted
from resources.launchers.local import LocalLauncher
from tests.conftest import advice
from tests.support.attempts import attempt_at
from tests.support.dagster_server import until

TINY = (sys.executable, "-m", "tests.support.tiny_worker")


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "GRACE_SECONDS", 0.5)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


@dataclass(frozen=True)
class UnreadableAtTimes(ReceiptProofs):
    workers: "Workers"

    def find(self, ordinals: Iterable[int]) -> dict[int, Receipt]:
        if self.workers.unreadable:
            self.workers.unreadable -= 1
            raise OSError("S3 is out of reach")
        return super().find(ordinals)


class Workers:
    """Drives tiny workers from within a real asset, as the factory does."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.folder = folder
        (folder / "token").mkdir()
        self.instance = instance
        self.progress = Results[Receipt]()
        self.limits: list[int] = []
        self.unreadable = 0
        self.launcher: Launcher = LocalLauncher(TINY)

    def drive(self, *steps: str, keep_on: bool = True, timeout: timedelta | None = None) -> Results[Receipt]:
        """One chunk and one worker for each step."""
        chunks = [Chunk(i, (f"key-{i}",)) for i in range(len(steps))]
        receipts = Receipts(PyArrowFileIO(), str(self.folder))
        first = {
            c.ordinal: attempt_at(
                Assignment(
                    table="demo.tiny",
                    step=step,
                    token="token",
                    chunk=c.ordinal,
                    window=Window(keys=c.keys),
                    fork_base="base",
                    receipt=receipts.location("token", c.ordinal),
                    code_version="1",
                    code="1",
                ),
                timeout=timeout,
            )
            for c, step in zip(chunks, steps, strict=True)
        }

        proofs = UnreadableAtTimes(receipts, "token", lambda: {n: attempt.work for n, attempt in first.items()}, self)

        @dg.asset
        def tiny(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
            records = AttemptRecords(PyArrowFileIO(), receipts.folder("token"))
            with driving(context, self.launcher, proofs, records, self._report) as drive:
                self.progress = drive.results
                drive.run(chunks, first, keep_on=keep_on)
            return dg.MaterializeResult()

        self.result = dg.materialize([tiny], instance=self.instance)
        return self.progress

    def _report(self, state: Results) -> None:
        self.limits.append(state.running)

    def taken(self) -> int:
        info = self.instance.event_log_storage.get_concurrency_info(POOL)
        return info.active_slot_count + info.pending_step_count + info.assigned_step_count

    def child_is_gone(self, chunk: int) -> bool:
        pid = int(Path(self.folder, "token", f"{chunk:05d}.json.child").read_text())
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and start_time(pid) is not None:
            time.sleep(0.05)
        return start_time(pid) is None


@pytest.fixture(scope="module")
def shared_instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    folder = str(tmp_path_factory.mktemp("dagster"))
    with dg.DagsterInstance.local_temp(folder, overrides={"telemetry": {"enabled": False}}) as instance:
        yield instance


@pytest.fixture
def workers(tmp_path: Path, shared_instance: dg.DagsterInstance) -> Workers:
    shared_instance.event_log_storage.set_concurrency_slots(POOL, 4)
    return Workers(tmp_path, shared_instance)


def test_every_chunk_that_reports_has_its_receipt(workers: Workers) -> None:
    progress = workers.drive("report", "report")
    assert sorted(progress.proofs) == [0, 1] and not progress.failures
    assert progress.proofs[0].worker != progress.proofs[1].worker
    assert progress.links[0] == f"local process {progress.proofs[0].worker}"
    assert workers.taken() == 0


def test_no_more_run_at_once_than_the_pool_has_slots(workers: Workers) -> None:
    workers.instance.event_log_storage.set_concurrency_slots(POOL, 2)
    workers.drive(*["work"] * 5)
    spans = [tuple(map(float, p.read_text().split())) for p in Path(workers.folder, "token").glob("*.ran")]
    assert len(spans) == 5
    assert max(sum(start <= at < end for start, end in spans) for at, _ in spans) <= 2 == max(workers.limits)
    assert workers.taken() == 0


def test_what_the_step_raised_is_told(workers: Workers) -> None:
    (failure,) = workers.drive("complain").failures
    assert (failure.message, failure.traceback) == ("KeyError: 'carrier'", "  line 1\n")


@pytest.mark.parametrize("step", ["lose_s3", "miss_s3"])
def test_a_worker_that_lost_s3_is_made_again(workers: Workers, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "FIRST_WAIT_SECONDS", 0.1)
    progress = workers.drive(step)
    assert sorted(progress.proofs) == [0] and not progress.failures


def test_while_receipts_can_not_be_read_nobody_is_judged_and_the_others_go_on(workers: Workers) -> None:
    workers.unreadable = 3
    progress = workers.drive("write", "work", "complain")
    assert sorted(progress.proofs) == [0, 1] and [f.chunk.ordinal for f in progress.failures] == [2]
    assert workers.unreadable == 0 and workers.taken() == 0


def test_receipts_that_can_not_be_read_for_long_end_the_run(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "UNREADABLE_SECONDS", 0.5)
    workers.unreadable = 1000
    with pytest.raises(OSError, match="out of reach"):
        workers.drive("write", "hang")
    assert workers.child_is_gone(1) and workers.taken() == 0


def test_a_receipt_that_is_durable_counts_though_it_was_never_reported(workers: Workers) -> None:
    progress = workers.drive("write")
    assert sorted(progress.proofs) == [0] and not progress.failures


def test_a_torn_receipt_is_none(workers: Workers) -> None:
    (failure,) = workers.drive("tear").failures
    assert "SIGKILL" in failure.message and "no proof" in failure.message


def test_a_killed_worker_leaves_no_process_behind(workers: Workers) -> None:
    (failure,) = workers.drive("die").failures
    assert "killed (SIGKILL)" in failure.message and "memory" in failure.message
    assert workers.child_is_gone(0)
    assert workers.taken() == 0


@pytest.mark.parametrize("step", ["abandon", "abandon_and_complain"])
def test_a_worker_that_ended_by_itself_leaves_no_process_behind(workers: Workers, step: str) -> None:
    progress = workers.drive(step)
    assert len(progress.proofs) == (step == "abandon")
    assert workers.child_is_gone(0)
    assert workers.taken() == 0


def test_a_worker_that_ends_while_it_is_looked_at_leaves_no_process_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a look that finds it running and the next call it ends."""
    process = subprocess.Popen(["sh", "-c", "sleep 600 & exit 0"], start_new_session=True)
    handle = Handle(str(process.pid), process)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    look, looks = os.waitid, iter([None])
    monkeypatch.setattr(os, "waitid", lambda *of: next(looks, look(*of)))
    launcher = LocalLauncher(TINY)
    assert launcher.poll([handle]) == {} and handle.id in launcher.poll([handle])
    assert until(lambda: not group_lives(process.pid), seconds=5)


def group_lives(group: int) -> bool:
    with suppress(ProcessLookupError):
        os.killpg(group, 0)
        return True
    return False


def test_temporary_files_lie_in_the_home(workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, system = tmp_path / "home", tmp_path / "system"
    system.mkdir()
    monkeypatch.setenv("LAKEHOUSE_HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(system))
    monkeypatch.setattr(tempfile, "tempdir", None)

    def look(_: Results) -> None:
        found = {path.name[:4] for path in home.glob("tmp/**/*")}
        assert not list(system.iterdir())
        if {"cont", "mess", "step"} <= found:
            raise KeyboardInterrupt

    monkeypatch.setattr(workers, "_report", look)
    with pytest.raises(KeyboardInterrupt):
        workers.drive("hang", timeout=timedelta(seconds=60))
    assert not list(home.glob("tmp/lakehouse-pipes-*"))


def test_garbage_among_the_messages_is_shown_and_costs_nothing(workers: Workers) -> None:
    progress = workers.drive("garble")
    assert sorted(progress.proofs) == [0] and not progress.failures
    shown = [r.dagster_event.message for r in workers.instance.all_logs(workers.result.run_id) if r.dagster_event]
    assert sum("reading the message" in (text or "") for text in shown) == 5


@pytest.mark.parametrize(("keep_on", "done"), [(False, []), (True, [1])])
def test_behind_a_failure_nothing_more_starts_unless_the_others_go_on(workers: Workers, keep_on, done) -> None:
    workers.instance.event_log_storage.set_concurrency_slots(POOL, 1)
    progress = workers.drive("complain", "report", keep_on=keep_on)
    assert sorted(progress.proofs) == done
    assert [f.chunk.ordinal for f in progress.failures] == [0]
    assert workers.taken() == 0


def test_what_no_longer_starts_waits_for_no_slot(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    workers.instance.event_log_storage.set_concurrency_slots(POOL, 2)
    waiting: list[set[str]] = []

    def look(state: Results) -> None:
        if state.failures and state.running:
            info = workers.instance.event_log_storage.get_concurrency_info(POOL)
            waiting.append({step.step_key for step in info.pending_steps} - {"tiny[0]", "tiny[1]"})

    monkeypatch.setattr(workers, "_report", look)
    workers.drive("complain", "hang", "report", keep_on=False, timeout=timedelta(seconds=3))
    assert waiting[-1] == set()


def test_a_worker_that_hangs_is_ended_when_its_time_is_up(workers: Workers) -> None:
    (failure,) = workers.drive("hang", timeout=timedelta(seconds=5)).failures
    assert "still running after 0:00:05 (worker_timeout)" in failure.message
    assert workers.child_is_gone(0)
    assert workers.taken() == 0


def test_a_worker_that_reported_and_hangs_gives_its_slot_back(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "ENDING_SECONDS", 0.5)
    workers.instance.event_log_storage.set_concurrency_slots(POOL, 1)
    progress = workers.drive("linger", "report")
    assert sorted(progress.proofs) == [0, 1]
    assert start_time(int(progress.proofs[0].worker)) is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, dg.DagsterExecutionInterruptedError], ids=lambda e: e.__name__)
def test_an_interruption_ends_all_workers_and_frees_their_slots(workers: Workers, error, monkeypatch) -> None:
    workers.instance.event_log_storage.set_concurrency_slots(POOL, 2)

    def interrupt(state: Results) -> None:
        if len(list(Path(workers.folder, "token").glob("*.child"))) == 2:
            raise error

    monkeypatch.setattr(workers, "_report", interrupt)
    with pytest.raises(error):
        workers.drive("hang", "hang", "report")
    assert workers.child_is_gone(0) and workers.child_is_gone(1)
    assert not workers.progress.proofs
    assert workers.taken() == 0


@pytest.mark.parametrize("step", ["write", "tear", "die", "leave", "hang", "linger"])
def test_a_worker_s_end_is_told_in_our_words_alone(workers: Workers, step: str, monkeypatch) -> None:
    monkeypatch.setattr(verdicts, "FIRST_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(ending, "ENDING_SECONDS", 0.5)
    workers.drive(step, timeout=timedelta(seconds=2))
    assert advice(workers.instance) == []


def test_a_worker_that_never_came_to_speak_is_told_of_in_our_words_alone(workers: Workers) -> None:
    workers.launcher = LocalLauncher((sys.executable, "-c", "raise SystemExit(3)"))
    (failure,) = workers.drive("report").failures
    assert "exited with status 3" in failure.message
    assert advice(workers.instance) == []


@pytest.mark.parametrize(
    ("step", "error"), [("linger", dg.Failure), ("hang", KeyboardInterrupt)], ids=["red audit", "terminated"]
)
def test_a_run_that_ends_before_its_worker_tells_why_in_our_words_alone(
    workers: Workers, step: str, error: type[BaseException], monkeypatch
) -> None:
    def end(state: Results) -> None:
        if state.proofs or list(Path(workers.folder, "token").glob("*.child")):
            raise error

    monkeypatch.setattr(workers, "_report", end)
    with pytest.raises(error):
        workers.drive(step, timeout=timedelta(seconds=20))
    assert advice(workers.instance) == []


def terminating(workers: Workers, then: Callable[[], object] = lambda: None) -> Callable[[Results], None]:
    """A hook that has the run terminated as soon as its worker has a child; no signal is sent."""

    def look(state: Results) -> None:
        (run,) = workers.instance.get_runs(limit=1)
        if run.status == dg.DagsterRunStatus.STARTED and list(Path(workers.folder, "token").glob("*.child")):
            workers.instance.report_run_canceling(run)
            then()

    return look


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_termination_whose_signal_python_drops_ends_all_workers(workers: Workers, monkeypatch) -> None:
    class Destroyed:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    monkeypatch.setattr(workers, "_report", terminating(workers, then=Destroyed))
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        workers.drive("hang", timeout=timedelta(seconds=20))
    assert workers.child_is_gone(0)
    assert workers.taken() == 0


def test_a_signal_that_comes_while_workers_are_ended_lets_none_of_them_go(workers: Workers, monkeypatch) -> None:
    monkeypatch.setattr(workers, "_report", terminating(workers))
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        workers.drive("resist", timeout=timedelta(seconds=20))
    assert workers.child_is_gone(0)
    assert workers.taken() == 0


def test_while_the_instance_can_not_be_asked_workers_go_on(workers: Workers, monkeypatch) -> None:
    monkeypatch.setattr(this_run, "STATUS_SECONDS", 0.0)
    ask, refused = workers.instance.get_run_by_id, []

    def asked(run_id: str) -> dg.DagsterRun | None:
        if workers.limits and len(refused) < 3:
            refused.append(run_id)
            raise OperationalError("SELECT", None, Exception("the database is restarting"))
        return ask(run_id)

    monkeypatch.setattr(workers.instance, "get_run_by_id", asked)
    progress = workers.drive("work")
    assert len(refused) == 3 and sorted(progress.proofs) == [0]


def test_what_the_run_s_log_does_not_take_costs_no_worker(workers: Workers, monkeypatch) -> None:
    storage = workers.instance.event_log_storage
    store, refused = storage.store_event, []

    def stored(event: dg.EventLogEntry) -> None:
        if workers.limits and len(refused) < 6:
            refused.append(event)
            raise OperationalError("INSERT", None, Exception("the database is restarting"))
        store(event)

    monkeypatch.setattr(storage, "store_event", stored)
    progress = workers.drive("report", "report", "complain")
    assert (
        len(refused) == 6 and sorted(progress.proofs) == [0, 1] and [f.chunk.ordinal for f in progress.failures] == [2]
    )


def test_a_slot_that_can_not_be_given_back_yet_is_given_back_later(workers: Workers, monkeypatch) -> None:
    storage = workers.instance.event_log_storage
    storage.set_concurrency_slots(POOL, 1)
    free, refused = storage.free_concurrency_slot_for_step, []

    def freed(run_id: str, step: str) -> None:
        if len(refused) < 3:
            refused.append(step)
            raise OperationalError("DELETE", None, Exception("the database is restarting"))
        free(run_id, step)

    monkeypatch.setattr(storage, "free_concurrency_slot_for_step", freed)
    progress = workers.drive("report", "report")
    assert len(refused) == 3 and sorted(progress.proofs) == [0, 1] and workers.taken() == 0


def test_who_was_given_a_slot_takes_it_whoever_else_became_due(workers: Workers, monkeypatch) -> None:
    storage = workers.instance.event_log_storage
    monkeypatch.setattr(slots_module, "CLAIM_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(verdicts, "FIRST_WAIT_SECONDS", 1.0)
    waits = iter([1.0, 0.1])  # the first to wait is due last
    monkeypatch.setattr(verdicts.random, "uniform", lambda *_: next(waits))
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
    progress = workers.drive("lose_s3", "lose_s3")
    assert sorted(progress.proofs) == [0, 1]


class Blocking(LocalLauncher):
    """Its submit returns when the worker has ended, as the inline one's. told: what the run's log had before that."""

    blocking = True

    def __init__(self, log: Callable[[], list[str]]) -> None:
        super().__init__(TINY)
        self._log = log
        self.told: list[str] = []

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        self.told = self._log()
        handle = super().submit(attempt, environment)
        handle.state.wait()
        return handle


def test_a_worker_that_runs_in_submit_is_said_to_have_started_before(workers: Workers) -> None:
    def log() -> list[str]:
        (run,) = workers.instance.get_runs(limit=1)
        return [record.user_message for record in workers.instance.all_logs(run.run_id)]

    workers.launcher = launcher = Blocking(log)
    workers.drive("report")
    assert launcher.told[-1] == "chunk 0 (key-0): started in this run's own process"
    assert sum("started" in message and "chunk 0" in message for message in log()) == 1


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait is told after tenths of a second, where it would be after seconds and minutes."""
    monkeypatch.setattr(slots_module, "CLAIM_INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(slot_wait, "NOTICED_SECONDS", 0.1)
    monkeypatch.setattr(slot_wait, "REPEATED_SECONDS", 0.3)


def told_of_slots(workers: Workers) -> list[dg.EventLogEntry]:
    (run,) = workers.instance.get_runs(limit=1)
    return [e for e in workers.instance.all_logs(run.run_id) if "slot" in e.message]


def test_a_wait_for_a_slot_is_told_with_the_runs_that_hold_it(workers: Workers, impatient, monkeypatch) -> None:
    storage = workers.instance.event_log_storage
    storage.set_concurrency_slots(POOL, 1)
    assert storage.claim_concurrency_slot(POOL, "the-holder", "step").is_claimed
    assert not storage.claim_concurrency_slot(POOL, "the-next", "step", priority=1).is_claimed
    waiting: list[bool] = []

    def look(state: Results) -> None:
        waiting.append(state.waiting)
        assert len(waiting) < 200, "it is never told"
        if sum("place 2 of 2" in e.message for e in told_of_slots(workers)) == 2:
            for run in ("the-next", "the-holder"):
                storage.free_concurrency_slots_for_run(run)

    monkeypatch.setattr(workers, "_report", look)
    progress = workers.drive("report")
    assert sorted(progress.proofs) == [0]
    *waits, got = told_of_slots(workers)
    assert len(waits) >= 2
    for told in waits[:2]:
        assert (
            "chunk 0 (key-0) has waited" in told.message and "the pool lake_workers, whose limit is 1" in told.message
        )
        assert "held by run the-holder (1 slot)" in told.message
        assert told.dagster_event.engine_event_data.metadata == {
            "pool": dg.MetadataValue.pool(POOL),
            "holder 1: 1 slot": dg.MetadataValue.dagster_run("the-holder"),
        }
    assert "chunk 0 (key-0) has its slot, after" in got.message
    assert not waiting[0] and any(waiting) and not waiting[-1]


def test_that_its_own_workers_hold_the_slots_is_told_once_a_run(workers: Workers, impatient) -> None:
    workers.instance.event_log_storage.set_concurrency_slots(POOL, 1)
    assert sorted(workers.drive(*["work"] * 4).proofs) == [0, 1, 2, 3]
    (told,) = told_of_slots(workers)
    assert "held by this run's own workers: chunk 1 (key-1) and those after it start as these end" in told.message


def test_who_holds_the_slots_is_asked_only_while_one_is_waited_for(workers: Workers, impatient, monkeypatch) -> None:
    storage, asked = workers.instance.event_log_storage, []

    def ask(pool: str) -> None:
        asked.append(pool)
        raise OperationalError("SELECT", None, Exception("the database is restarting"))

    monkeypatch.setattr(storage, "get_concurrency_info", ask)
    workers.drive("work", "work")
    assert asked == []
    storage.set_concurrency_slots(POOL, 1)
    assert sorted(workers.drive("work", "work").proofs) == [0, 1]
    assert asked


class Full(LocalLauncher):
    """Has no room for its first and its third worker."""

    asked = 0

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        self.asked += 1
        if self.asked in (1, 3):
            raise NotStarted("no capacity", transient=True)
        return super().submit(attempt, environment)


def test_a_shortage_is_as_long_as_it_lasts_not_as_long_ago_as_the_one_before(workers: Workers, monkeypatch) -> None:
    monkeypatch.setattr(verdicts, "FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(verdicts, "REFUSED_SECONDS", 0.2)
    workers.launcher = Full(TINY)
    progress = workers.drive("lose_s3")
    assert sorted(progress.proofs) == [0] and not progress.failures


class Tokens(LocalLauncher):
    """Knows its workers by their attempts' keys, as ECS does: one that ended is found by asking for it again only."""

    durable = True

    def __init__(self) -> None:
        super().__init__(TINY)
        self.made: dict[str, Handle] = {}
        self.stopped: set[str] = set()
        self.interrupted = False

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        if attempt.key not in self.made:
            self.made[attempt.key] = super().submit(attempt, environment)
        if self.interrupted:
            raise dg.DagsterExecutionInterruptedError
        return self.made[attempt.key]

    def find(self, attempt: Attempt) -> Handle | None:  # type: ignore[override]
        handle = self.made.get(attempt.key)
        return handle if handle and not super().poll([handle]) else None

    def poll(self, handles: Sequence[Handle]) -> dict[str, Ended]:
        told = super().poll(handles)
        return {id: replace(end, stopped=id in self.stopped) for id, end in told.items()}

    def cancel(self, handles: Sequence[Handle]) -> None:
        self.stopped |= {handle.id for handle in handles}
        super().cancel(handles)


def test_what_a_run_terminated_while_it_asked_has_stopped_is_made_again(workers: Workers, monkeypatch) -> None:
    monkeypatch.setattr(verdicts, "FIRST_WAIT_SECONDS", 0.1)
    workers.launcher = launcher = Tokens()
    launcher.interrupted = True
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        workers.drive("report")
    assert len(launcher.stopped) == 1 and not workers.progress.proofs
    launcher.interrupted = False
    progress = workers.drive("report")
    assert sorted(progress.proofs) == [0] and not progress.failures


def test_an_interrupted_worker_is_no_zombie(workers: Workers) -> None:
    before = _zombies()
    workers.drive("hang", timeout=timedelta(seconds=0.2))
    assert _zombies() <= before


def _zombies() -> set[int]:
    """The pids of this process's children that ended and were not waited for."""
    found = set()
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                found.add(int(child))
    return found

"""Runs whose process died are failed and their slots come back; runs that live, here or elsewhere, are left alone."""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import dagster as dg
import pytest
from dagster._core.storage.runs import SqliteRunStorage

from lakehouse_assets.drive import liveness
from lakehouse_assets.drive.liveness import KEPT, PROCESS_TAG, hold_lock, is_dead, reap, start_time
from lakehouse_assets.drive.slots import POOL
from lakehouse_assets.environment.process_locks import ProcessLocks
from tests.support.dagster_server import until
from tests.support.killed_runs import die, forked, in_container, killed, run_paused, started

STATUS = dg.DagsterRunStatus


@pytest.fixture
def home(instance: dg.DagsterInstance) -> dg.DagsterInstance:
    """Runs are on SQLite, as in a home."""
    instance.event_log_storage.set_concurrency_slots(POOL, 1)
    return instance


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    return tmp_path / "dagster" / "alive"


# Where a process dies


@dg.op(pool=POOL)
def work() -> None: ...


@dg.job
def working() -> None:
    work()


def held_only(home: dg.DagsterInstance) -> None:
    hold_lock(home, "never created")
    die()


def created(home: dg.DagsterInstance) -> None:
    run_id = str(uuid4())
    hold_lock(home, run_id)
    home.create_run_for_job(working, run_id=run_id)
    die()


def dying(event: str, before: bool) -> Callable[[dg.DagsterInstance], None]:
    def run(home: dg.DagsterInstance) -> None:
        change = SqliteRunStorage.handle_run_event

        def deadly(storage: SqliteRunStorage, run_id: str, told: dg.DagsterEvent, *more: object) -> None:
            if before and told.event_type.name == event:
                die()
            change(storage, run_id, told, *more)
            if told.event_type.name == event:
                die()

        SqliteRunStorage.handle_run_event = deadly  # type: ignore[method-assign,assignment]
        working.execute_in_process(instance=home, raise_on_error=False)

    return run


def at_work(home: dg.DagsterInstance) -> None:
    killed.execute_in_process(instance=home, raise_on_error=False)


@pytest.mark.parametrize(
    ("dies", "before", "reaped"),
    [
        (held_only, None, []),
        (created, STATUS.NOT_STARTED, [STATUS.FAILURE]),
        (dying("RUN_START", before=True), STATUS.NOT_STARTED, [STATUS.FAILURE]),
        (dying("RUN_START", before=False), STATUS.STARTED, [STATUS.FAILURE]),
        (at_work, STATUS.STARTED, [STATUS.FAILURE]),
        (dying("RUN_SUCCESS", before=True), STATUS.STARTED, [STATUS.FAILURE]),
        (dying("RUN_SUCCESS", before=False), STATUS.SUCCESS, []),
    ],
    ids=["held", "created", "starting", "started", "at work", "ending", "ended"],
)
def test_a_run_that_is_killed_at_any_step_is_found_and_holds_nothing(
    home: dg.DagsterInstance,
    locks: Path,
    dies: Callable[[dg.DagsterInstance], None],
    before: STATUS | None,
    reaped: list[STATUS],
) -> None:
    child = forked(lambda: dies(home))
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert [run.status for run in home.get_runs()] == ([before] if before else [])

    found = reap(home)
    assert [home.get_run_by_id(run).status for run in found] == reaped
    assert [run.status for run in home.get_runs()] == (reaped or ([before] if before else []))
    assert home.event_log_storage.get_concurrency_run_ids() == set()
    assert list(locks.iterdir()) == []
    assert reap(home) == []


def test_a_run_that_is_killed_while_it_waits_for_a_pool_leaves_the_queue(home: dg.DagsterInstance) -> None:
    """Dagster's executor waits before an op begins; a free slot would be given to the dead."""
    storage = home.event_log_storage
    assert storage.claim_concurrency_slot(POOL, "another", "step").is_claimed
    child = forked(lambda: working.execute_in_process(instance=home, raise_on_error=False))
    until(lambda: storage.get_concurrency_run_ids() > {"another"})
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    (run,) = home.get_runs()
    assert reap(home) == [run.run_id]
    assert storage.get_concurrency_run_ids() == {"another"}


@dg.asset_check(asset="checked")
def check() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=True)


def test_its_checks_keep_their_last_verdicts(home: dg.DagsterInstance) -> None:
    """Dagster would show them as failed."""

    @dg.asset
    def checked(context: dg.AssetExecutionContext) -> None:
        if context.run.tags.get("killed"):
            die()

    def run(**tags: str) -> None:
        dg.materialize([checked, check], instance=home, tags=tags)

    run()
    child = forked(lambda: run(killed="yes"))
    os.waitpid(child, 0)
    (killed_run,) = reap(home)
    record = home.event_log_storage.get_latest_asset_check_execution_by_key([check.check_key])[check.check_key]
    assert record.run_id == killed_run
    assert record.evaluation, "it is only planned"
    assert record.evaluation.passed
    assert KEPT in record.evaluation.metadata


def test_a_message_names_the_process(home: dg.DagsterInstance) -> None:
    child = forked(lambda: at_work(home))
    os.waitpid(child, 0)
    (run,) = reap(home)
    message = home.get_records_for_run(run).records[-1].event_log_entry.dagster_event.message
    assert f"process {child} on {socket.gethostname()}" in message
    assert "re-execute" in message


# Who is alive


def test_a_run_that_works_is_alive_until_it_is_killed(home: dg.DagsterInstance) -> None:
    child = forked(lambda: run_paused(home))
    run = started(home)
    assert reap(home) == []
    os.kill(child, signal.SIGSTOP)  # as a machine that sleeps, whatever the clocks say afterwards
    assert reap(home) == []
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert reap(home) == [run]


@pytest.mark.parametrize("host", [None, "elsewhere"], ids=["of the same host name", "of another"])
def test_a_run_in_a_container_is_alive_until_it_is_killed(
    home: dg.DagsterInstance, tmp_path: Path, host: str | None
) -> None:
    child = in_container(lambda: run_paused(home), tmp_path, host)
    run = started(home)
    assert reap(home) == []
    os.kill(child, signal.SIGKILL)
    assert until(lambda: reap(home)) == [run]
    message = home.get_records_for_run(run).records[-1].event_log_entry.dagster_event.message
    assert f"(process 1 on {host or socket.gethostname()})" in message


def test_a_run_is_alive_to_its_own_process(home: dg.DagsterInstance) -> None:
    @dg.op
    def look(context: dg.OpExecutionContext) -> None:
        assert reap(context.instance) == []

    @dg.job
    def looking() -> None:
        look()

    assert looking.execute_in_process(instance=home).success
    assert reap(home) == []


def test_a_run_that_was_marked_as_failed_keeps_its_slots_until_its_process_is_gone(home: dg.DagsterInstance) -> None:
    """Its workers may still be ending."""
    child = forked(lambda: run_paused(home))
    run = started(home)
    assert home.event_log_storage.claim_concurrency_slot(POOL, run, "pause").is_claimed
    home.report_run_failed(home.get_run_by_id(run), "by a person")
    assert reap(home) == []
    assert home.event_log_storage.get_concurrency_run_ids() == {run}
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert reap(home) == []
    assert home.event_log_storage.get_concurrency_run_ids() == set()


def test_one_process_at_a_time_is_given_a_dead_run(tmp_path: Path) -> None:
    child = forked(lambda: (ProcessLocks(tmp_path).hold("run"), die()))
    os.waitpid(child, 0)
    locks = ProcessLocks(tmp_path)
    for dead in locks.gone():
        assert dead.name == "run"
        assert list(ProcessLocks(tmp_path).gone()) == []
    assert list(locks.gone()) == []


def test_one_that_could_not_be_failed_is_given_again(tmp_path: Path) -> None:
    child = forked(lambda: (ProcessLocks(tmp_path).hold("run"), die()))
    os.waitpid(child, 0)
    with pytest.raises(OSError, match="locked"):
        for _ in ProcessLocks(tmp_path).gone():
            raise OSError("database is locked")
    assert [dead.name for dead in ProcessLocks(tmp_path).gone()] == ["run"]


def test_what_a_run_starts_does_not_keep_it_alive(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def start() -> None:
        ProcessLocks(tmp_path / "alive").hold("run")
        note.write_text(str(subprocess.Popen(["sleep", "600"]).pid))
        die()

    os.waitpid(forked(start), 0)
    try:
        assert [dead.name for dead in ProcessLocks(tmp_path / "alive").gone()] == ["run"]
    finally:
        os.kill(int(note.read_text()), signal.SIGKILL)


# Runs of versions that had no locks: by their process's tag, on its own host only


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def tag_of(pid: int) -> dict[str, str]:
    return {PROCESS_TAG: f"{socket.gethostname()}:{pid}:{start_time(pid)}"}


def _run(
    instance: dg.DagsterInstance,
    tags: dict[str, str],
    status: dg.DagsterRunStatus,
    parent: dg.DagsterRun | None = None,
) -> dg.DagsterRun:
    @dg.job
    def nothing() -> None: ...

    before = parent and parent.run_id
    return instance.create_run_for_job(nothing, tags=tags, status=status, parent_run_id=before, root_run_id=before)


@pytest.mark.parametrize(
    ("tag", "started", "dead"),
    [
        ("here:7:100", "100", False),
        ("here:7:100", None, True),
        ("here:7:100", "200", True),  # the pid belongs to another process by now
        ("elsewhere:7:100", None, False),
        ("fe80::1:7:100", None, False),
    ],
)
def test_dead_is_a_process_of_this_host_that_is_gone_or_another(
    tag: str, started: str | None, dead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness.socket, "gethostname", lambda: "here")
    monkeypatch.setattr(liveness, "start_time", lambda pid: started)
    assert is_dead(tag) is dead


def test_a_killed_process_is_gone_even_while_nobody_has_waited_for_it(process: subprocess.Popen[bytes]) -> None:
    tag = tag_of(process.pid)[PROCESS_TAG]
    process.kill()
    while start_time(process.pid) is not None:  # the kill takes effect when it does; the zombie stays till wait()
        time.sleep(0.01)
    assert is_dead(tag)


@pytest.mark.parametrize(
    "status", [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
)
def test_a_run_whose_process_was_killed_fails_and_gives_its_slots_back(
    instance: dg.DagsterInstance, process: subprocess.Popen[bytes], status: dg.DagsterRunStatus
) -> None:
    instance.event_log_storage.set_concurrency_slots(POOL, 1)
    run = _run(instance, tag_of(process.pid), status)
    assert instance.event_log_storage.claim_concurrency_slot(POOL, run.run_id, "step[0]").is_claimed

    assert reap(instance) == []

    process.kill()
    process.wait()
    assert reap(instance) == [run.run_id]
    assert instance.get_run_by_id(run.run_id).status is dg.DagsterRunStatus.FAILURE
    message = instance.get_records_for_run(run.run_id).records[-1].event_log_entry.dagster_event.message
    assert str(process.pid) in message
    assert "re-execute" in message
    assert instance.event_log_storage.claim_concurrency_slot(POOL, "another run", "step[0]").is_claimed
    assert reap(instance) == []


def test_runs_that_ended_or_carry_no_process_are_left_alone(
    instance: dg.DagsterInstance, process: subprocess.Popen[bytes]
) -> None:
    tags = tag_of(process.pid)
    process.kill()
    process.wait()
    ended = _run(instance, tags, dg.DagsterRunStatus.SUCCESS)
    other = _run(instance, {}, dg.DagsterRunStatus.STARTED)
    assert reap(instance) == []
    assert instance.get_run_by_id(ended.run_id).status is dg.DagsterRunStatus.SUCCESS
    assert instance.get_run_by_id(other.run_id).status is dg.DagsterRunStatus.STARTED


def test_a_run_that_ends_well_while_it_is_looked_at_stays_green(
    instance: dg.DagsterInstance, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _run(instance, tag_of(process.pid), dg.DagsterRunStatus.STARTED)

    def listed_before_it_ended(filters: dg.RunsFilter) -> list[dg.DagsterRun]:
        found = list(type(instance).get_runs(instance, filters))
        instance.report_dagster_event(dg.DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, "nothing"), run.run_id)
        process.kill()
        process.wait()
        return found

    monkeypatch.setattr(instance, "get_runs", listed_before_it_ended)
    assert reap(instance) == []
    assert instance.get_run_by_id(run.run_id).status is dg.DagsterRunStatus.SUCCESS


def test_a_re_execution_of_a_dead_run_is_left_alone_until_it_has_a_process_of_its_own(
    instance: dg.DagsterInstance, process: subprocess.Popen[bytes]
) -> None:
    tags = tag_of(process.pid)
    process.kill()
    process.wait()
    parent = _run(instance, tags, dg.DagsterRunStatus.FAILURE)
    run = _run(instance, tags, dg.DagsterRunStatus.STARTING, parent)  # Dagster copies a parent's tags
    assert reap(instance) == []
    with subprocess.Popen([sys.executable, "-c", ""]) as own:
        instance.add_run_tags(run.run_id, tag_of(own.pid))
    assert reap(instance) == [run.run_id]

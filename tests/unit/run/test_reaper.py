"""Runs whose process died are failed and their slots come back; runs that live, here or elsewhere, are left alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import dagster as dg
import pytest

from lakehouse_assets.drive import this_run
from lakehouse_assets.drive.this_run import PROCESS_TAG, start_time
from lakehouse_assets.run.in_flight import reap

POOL = "lake_workers"


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
    monkeypatch.setattr(this_run.socket, "gethostname", lambda: "here")
    monkeypatch.setattr(this_run, "start_time", lambda pid: started)
    assert this_run.is_dead(tag) is dead


def test_a_tag_names_this_process() -> None:
    assert this_run.process_tag() == tag_of(os.getpid())
    assert not this_run.is_dead(this_run.process_tag()[PROCESS_TAG])


def test_a_killed_process_is_gone_even_while_nobody_has_waited_for_it(process: subprocess.Popen[bytes]) -> None:
    tag = tag_of(process.pid)[PROCESS_TAG]
    process.kill()
    while start_time(process.pid) is not None:  # the kill takes effect when it does; the zombie stays till wait()
        time.sleep(0.01)
    assert this_run.is_dead(tag)


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

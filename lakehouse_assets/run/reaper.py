"""Finds runs of this host whose process is gone, reports them as failed and frees their slots of the pool.
Dagster's default launcher does not notice such deaths. Runs elsewhere are watched by their own run launcher."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import dagster as dg
from dagster._core.storage.tags import HIDDEN_TAG_PREFIX

# Dagster's UI does not show tags with this prefix, and this tag is of no use to a person.
PROCESS_TAG = f"{HIDDEN_TAG_PREFIX}lakehouse_process"
ACTIVE = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]


def process_tag(pid: int | None = None) -> dict[str, str]:
    """The run tag that names a process, by default this one: ``{PROCESS_TAG: "<hostname>:<pid>:<start time>"}``.

    The start time tells a process from a later one that was given the same pid.
    Raises ProcessLookupError when there is no such process.
    """
    pid = os.getpid() if pid is None else pid
    started = start_time(pid)
    if started is None:
        raise ProcessLookupError(f"no process {pid}")
    return {PROCESS_TAG: f"{socket.gethostname()}:{pid}:{started}"}


def start_time(pid: int) -> str | None:
    """When a process of this host started, in the system's own format. None when it is gone; a zombie is gone too."""
    if Path("/proc/self/stat").is_file():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # Counted after the command, which may contain spaces: state is field 3, starttime field 22 (proc(5)).
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    fields = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True
    ).stdout.split()
    return None if not fields or fields[0].startswith("Z") else "-".join(fields[1:]).replace(":", ".")


def is_dead(tag: str, hostname: str, started: Callable[[int], str | None]) -> bool:
    """Whether a tag names a process of ``hostname`` that is gone. Raises ValueError for another kind of tag."""
    host, pid, start = tag.rsplit(":", 2)
    return host == hostname and started(int(pid)) != start


def reap(instance: dg.DagsterInstance) -> list[str]:
    """Fail the active runs whose process on this host is gone, and free their slots. Returns their ids."""
    reaped = []
    for run in instance.get_runs(dg.RunsFilter(statuses=ACTIVE)):
        tag = _own_tag(instance, run)
        if tag is None or not is_dead(tag, socket.gethostname(), start_time):
            continue
        # Read again: since the runs were listed, it may have ended successfully, and its process with it.
        now = instance.get_run_by_id(run.run_id)
        if now is None or now.status not in ACTIVE:
            continue
        instance.report_run_failed(
            now,
            f"The run's process ({tag.rsplit(':', 2)[1]} on {socket.gethostname()}) died before the run had ended: it "
            "was killed, ran out of memory, or the machine was restarted. Nothing half-written is visible; re-execute "
            "the run from failure to continue with the chunks that were staged.",
        )
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
        reaped.append(run.run_id)
    return reaped


def _own_tag(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str | None:
    """The run's process tag. A re-execution begins with a copy of its parent's, which does not count."""
    tag = run.tags.get(PROCESS_TAG)
    parent = instance.get_run_by_id(run.parent_run_id) if tag and run.parent_run_id else None
    return None if parent and parent.tags.get(PROCESS_TAG) == tag else tag

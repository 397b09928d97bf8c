"""Finds runs of this host whose process is gone, reports them failed and gives their pool slots back.
Dagster's default launcher does not notice such deaths; remote runs are their launcher's to watch."""

from __future__ import annotations

import socket

import dagster as dg

from lakehouse_assets.drive.process_tag import PROCESS_TAG, is_dead, start_time

UNDER_WAY = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]


def reap(instance: dg.DagsterInstance) -> list[str]:
    """Fail the runs under way whose process on this host is gone, and free their slots. Returns their ids."""
    reaped = []
    for run in instance.get_runs(dg.RunsFilter(statuses=UNDER_WAY)):
        tag = _own_tag(instance, run)
        if tag is None or not is_dead(tag, socket.gethostname(), start_time):
            continue
        # Asked again: it may have ended well, and its process with it, since the runs were listed.
        now = instance.get_run_by_id(run.run_id)
        if now is None or now.status not in UNDER_WAY:
            continue
        instance.report_run_failed(
            now,
            f"The run's process ({tag.rsplit(':', 2)[1]} on {socket.gethostname()}) died without an end of its own: it "
            "was killed, ran out of memory, or the machine was restarted. Nothing half-written is visible; re-execute "
            "the run from failure to go on with the chunks that were staged.",
        )
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
        reaped.append(run.run_id)
    return reaped


def _own_tag(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str | None:
    """The run's process tag. A re-execution is created with its parent's, which says nothing until it sets its own."""
    tag = run.tags.get(PROCESS_TAG)
    parent = instance.get_run_by_id(run.parent_run_id) if tag and run.parent_run_id else None
    return None if parent and parent.tags.get(PROCESS_TAG) == tag else tag

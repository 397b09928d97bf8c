"""Finds runs of this host whose process is gone, reports them as failed and frees their slots of the pool.

Dagster's default launcher does not notice such deaths. Runs elsewhere are watched by their own run launcher.
"""

from __future__ import annotations

import socket

import dagster as dg

from lakehouse_assets.drive.this_run import PROCESS_TAG, is_dead

ACTIVE = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]


def reap(instance: dg.DagsterInstance) -> list[str]:
    """Fails the active runs whose process on this host is gone, and frees their slots. Returns the runs' ids."""
    reaped = []
    for run in instance.get_runs(dg.RunsFilter(statuses=ACTIVE)):
        tag = _own_tag(instance, run)
        if tag is None or not is_dead(tag):
            continue
        # Read again: since it was listed, the run may have ended successfully, and its process with it.
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
    """Returns the run's own process tag. A re-execution begins with a copy of its parent's, which does not count."""
    tag = run.tags.get(PROCESS_TAG)
    parent = instance.get_run_by_id(run.parent_run_id) if tag and run.parent_run_id else None
    return None if parent and parent.tags.get(PROCESS_TAG) == tag else tag

"""Asks Dagster what became of the runs that left files, and of those that resumed them: all tokens at once.

What follows from it is in leases.py. The only file of this room that knows Dagster.
"""

from __future__ import annotations

from collections.abc import Collection

import dagster as dg
from dagster._core.storage.tags import PARENT_RUN_ID_TAG, RESUME_RETRY_TAG

from lakehouse_assets.collect.leases import Chain

FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)


def chains(instance: dg.DagsterInstance, tokens: Collection[str]) -> dict[str, Chain]:
    """Returns, for each token whose run Dagster knows, the state of the run and of those that resumed it.

    This takes two queries, however many tokens there are: the runs, then the resumed runs since the oldest of them.
    """
    heads = instance.get_run_records(dg.RunsFilter(run_ids=list(tokens))) if tokens else []
    if not heads:
        return {}
    # Dagster's filter takes what was created later than a time.
    since = min(record.create_timestamp for record in heads)
    resumed = instance.get_run_records(dg.RunsFilter(tags={RESUME_RETRY_TAG: "true"}, created_after=since))
    members = {record.dagster_run.run_id: [record.dagster_run] for record in heads}
    head_of = {token: token for token in members}
    for record in sorted(resumed, key=lambda record: record.storage_id):  # parents come before those that resume them
        run = record.dagster_run
        head = head_of.get(run.parent_run_id or run.tags.get(PARENT_RUN_ID_TAG, ""))  # Python's API sets no tags
        if head is not None and run.run_id not in members:
            head_of[run.run_id] = head
            members[head].append(run)
    return {
        record.dagster_run.run_id: Chain(
            int(record.create_timestamp.timestamp() * 1000),
            unfinished=any(run.status not in FINISHED for run in members[record.dagster_run.run_id]),
            succeeded=any(run.is_success for run in members[record.dagster_run.run_id]),
        )
        for record in heads
    }

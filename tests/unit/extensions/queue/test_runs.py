"""Which runs the queue takes for its own: those that it asked for, in its own code location."""

from __future__ import annotations

import dagster as dg
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteRepositoryOrigin

from lakehouse_assets.extensions.queue.tick import QUEUE_TAG, TABLE_TAG, Runs
from tests.support.tables import numbers

TABLE = numbers()


def ended(instance: dg.DagsterInstance, location: str) -> dg.DagsterRun:
    """A run of the table that failed, asked for by the queue of that name in this code location."""
    place = GrpcServerCodeLocationOrigin("127.0.0.1", 4000, location_name=location)
    return instance.add_run(
        dg.DagsterRun(
            job_name="__ASSET_JOB",
            status=dg.DagsterRunStatus.FAILURE,
            asset_selection=frozenset({TABLE.key}),
            tags={QUEUE_TAG: "q", TABLE_TAG: TABLE.identifier},
            remote_job_origin=RemoteRepositoryOrigin(place, "__repository__").get_job_origin("__ASSET_JOB"),
        )
    )


def nobody(_: str) -> None:
    raise AssertionError("nobody looks for what a run noted")


def test_runs_of_another_code_location_whose_queue_has_the_same_name_tell_nothing(
    instance: dg.DagsterInstance,
) -> None:
    own = ended(instance, "ours")
    ended(instance, "theirs")
    runs = Runs(instance, "q", [TABLE], nobody, "ours")  # type: ignore[arg-type]
    assert [run.run_id for run in runs.ended] == [own.run_id]
    (lane,) = runs.lanes([TABLE.identifier])
    assert lane.last_ended == own.run_id

"""Which runs the queue takes for its own: those that it asked for, in its own code location."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteRepositoryOrigin
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehouse_assets.drive.chunks import Chunk
from lakehouse_assets.extensions.queue.hook import QueueRecords
from lakehouse_assets.extensions.queue.inbox import Failed
from lakehouse_assets.extensions.queue.tick import QUEUE_TAG, TABLE_TAG, Runs
from lakehouse_assets.run.plan import Plans
from tests.support.tables import numbers, run_plan

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


def test_what_a_failed_run_had_published_is_learned(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    run = ended(instance, "ours")
    plans = Plans(TABLE.identifier, PyArrowFileIO(), str(tmp_path))
    plans.write(run_plan(run.run_id, [Chunk(0, ("1",)), Chunk(1, ("2",))]))
    QueueRecords(plans).write_failed(run.run_id, Failed(run.run_id, ("2",), "why", ("1",)))
    (found,) = Runs(instance, "q", [TABLE], lambda _: plans, "ours").outcomes((), ())
    assert (found.covered.keys(), found.bad, found.published) == ({"1", "2"}, {"2"}, {"1"})

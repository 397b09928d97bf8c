"""Which partitions runs and backfills are about to write, as Dagster's own storage tells it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
from dagster._core.execution.asset_backfill import AssetBackfillData
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

from lakehouse_assets.run.in_flight import Keys, flights, location_of, location_of_sensor, tags_of_location
from tests.support.tables import DAYS, numbers, whole

DAILY, WHOLE = numbers(), whole()
JOB = "lakehouse_maintenance"
STARTED = dg.DagsterRunStatus.STARTED
ONE, TWO, THREE = "2024-01-01", "2024-01-02", "2024-01-03"


def found(instance: dg.DagsterInstance, location: str | None = None) -> dict[str, Keys]:
    """By table the keys that are about to be written, all flights together."""
    return {name: _together(f.keys for f in of) for name, of in flights(instance, [DAILY, WHOLE], location).items()}


def _together(keys: Iterable[Keys]) -> Keys:
    some = list(keys)
    return None if None in some else frozenset(key for one in some for key in one or ())


def add(instance: dg.DagsterInstance, *assets: dg.AssetKey, **options: Any) -> None:
    options = {"job_name": "__ASSET_JOB", "status": STARTED, "asset_selection": frozenset(assets) or None} | options
    instance.add_run(dg.DagsterRun(**options))


def span(first: str, last: str) -> dict[str, str]:
    return {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}


def test_nothing_is_written_where_nothing_runs(instance: dg.DagsterInstance) -> None:
    add(instance, DAILY.key, status=dg.DagsterRunStatus.SUCCESS)
    add(instance, DAILY.key, status=dg.DagsterRunStatus.FAILURE)
    add(instance, job_name=JOB)
    assert found(instance) == {}


@pytest.mark.parametrize(
    ("tags", "keys"),
    [
        ({"dagster/partition": ONE}, {ONE}),
        (span(ONE, THREE), {ONE, TWO, THREE}),
        ({}, None),
        ({"dagster/partition": "2024-01"}, None),  # of a monthly asset beside it
        (span("2024-01", "2024-02"), None),
        (span(THREE, "2030-01-01"), None),
    ],
)
def test_the_keys_of_a_run(instance: dg.DagsterInstance, tags: dict[str, str], keys: set[str] | None) -> None:
    add(instance, DAILY.key, tags=tags)
    assert found(instance) == {DAILY.identifier: keys}


def test_a_table_without_partitions_is_written_as_a_whole(instance: dg.DagsterInstance) -> None:
    add(instance, WHOLE.key, tags={"dagster/partition": ONE})
    assert found(instance) == {WHOLE.identifier: None}


def of_location(name: str, job: str = "nightly") -> RemoteJobOrigin:
    place = GrpcServerCodeLocationOrigin("127.0.0.1", 4000, location_name=name)
    return RemoteRepositoryOrigin(place, "__repository__").get_job_origin(job)


def test_a_sensor_knows_its_code_location(instance: dg.DagsterInstance) -> None:
    place = GrpcServerCodeLocationOrigin("127.0.0.1", 4000, location_name="ours")
    assert location_of_sensor(dg.build_sensor_context(instance)) is None
    assert (
        location_of_sensor(dg.SensorEvaluationContext(None, None, None, None, None, code_location_origin=place))
        == "ours"
    )


def test_runs_are_found_by_their_code_location_in_dagsters_storage(instance: dg.DagsterInstance) -> None:
    for place in ("theirs", "ours"):
        add(instance, job_name=JOB, remote_job_origin=of_location(place))
    add(instance, job_name=JOB)

    def locations(of: str | None) -> set[str | None]:
        return {location_of(run) for run in instance.get_runs(dg.RunsFilter(tags=tags_of_location(of)))}

    assert locations("ours") == {"ours"}
    assert locations(None) == {"ours", "theirs", None}


def asset_job(*keys: dg.AssetKey) -> dg.JobDefinition:
    """A job that materializes assets with these keys, whoever declares them."""

    def made(key: dg.AssetKey) -> dg.AssetsDefinition:
        @dg.asset(key=key)
        def nothing() -> None: ...

        return nothing

    return dg.Definitions([*map(made, keys)], jobs=[dg.define_asset_job("nightly")]).resolve_job_def("nightly")


@dg.job
def of_ops() -> None:
    dg.op(name="work")(lambda: None)()


def start(instance: dg.DagsterInstance, job: dg.JobDefinition, location: str | None) -> dg.DagsterRun:
    """A run of the whole job, which names no asset, as a schedule or the launchpad starts it."""
    run = instance.create_run_for_job(
        job, status=STARTED, remote_job_origin=of_location(location) if location else None
    )
    assert run.asset_selection is None
    return run


@pytest.mark.parametrize("location", ["theirs", "ours", None])
def test_a_job_of_ops_writes_no_table(instance: dg.DagsterInstance, location: str | None) -> None:
    start(instance, of_ops, location)
    assert found(instance, "ours") == {}


def test_a_job_writes_the_tables_that_are_its_assets(instance: dg.DagsterInstance) -> None:
    start(instance, asset_job(dg.AssetKey("other"), WHOLE.key), "ours")
    assert found(instance, "ours") == {WHOLE.identifier: None}


def test_what_another_code_location_does_with_assets_of_the_same_keys_does_not_count(
    instance: dg.DagsterInstance,
) -> None:
    start(instance, asset_job(DAILY.key), "theirs")
    add(instance, DAILY.key, remote_job_origin=of_location("theirs"))
    assert found(instance, "ours") == {}
    started = start(instance, asset_job(DAILY.key), None)
    (flight,) = flights(instance, [DAILY, WHOLE], "ours")[DAILY.identifier]
    assert flight.name == f"run {started.run_id}", "Python code may have started it for this location"


def test_the_keys_of_several_runs_are_put_together(instance: dg.DagsterInstance) -> None:
    add(instance, DAILY.key, tags={"dagster/partition": ONE})
    add(instance, DAILY.key, tags={"dagster/partition": THREE}, status=dg.DagsterRunStatus.NOT_STARTED)
    assert found(instance) == {DAILY.identifier: {ONE, THREE}}
    add(instance, DAILY.key)
    assert found(instance) == {DAILY.identifier: None}


def backfill(instance: dg.DagsterInstance, *keys: str, status: BulkActionStatus = BulkActionStatus.REQUESTED) -> None:
    """As the UI makes one, together with another asset."""
    other = dg.AssetSpec("other", partitions_def=DAYS)
    partitions = DAYS.subset_with_partition_keys(keys)
    data = AssetBackfillData.empty(
        AssetGraphSubset(partitions_subsets_by_asset_key={DAILY.key: partitions, other.key: partitions}), 0.0, None
    )
    instance.add_backfill(
        PartitionBackfill(
            backfill_id=f"{status.name}-{'-'.join(keys)}",
            status=status,
            from_failure=False,
            tags={},
            backfill_timestamp=0.0,
            asset_selection=[DAILY.key, other.key],
            asset_backfill_data=data,
        )
    )


def test_the_keys_of_a_backfill_count_before_its_runs_are_there(instance: dg.DagsterInstance) -> None:
    backfill(instance, ONE, TWO)
    backfill(instance, THREE, status=BulkActionStatus.COMPLETED_SUCCESS)
    assert found(instance) == {DAILY.identifier: {ONE, TWO}}


def test_a_backfill_whose_target_can_not_be_read_may_write_all_of_its_tables(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    backfill(instance, ONE)

    def unreadable(*_: object) -> None:
        raise ValueError("of an older definition")

    monkeypatch.setattr(PartitionBackfill, "get_asset_backfill_data", unreadable)
    assert found(instance) == {DAILY.identifier: None}

"""A table that another catalog has by its mark: a run says so, the collector leaves it, until a person takes it over.
What the collector does by itself is in tests/integration/test_collect_lineage.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from botocore.exceptions import ClientError

from lakehouse_assets.commit.owner import OwnerMark, mark_location, read_mark, write_mark
from lakehouse_assets.declare.columns import column
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import StageAgain
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.maintenance.job import maintenance_job
from lakehouse_assets.maintenance.table_jobs import take_over_job
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.run.table_run import TableRun
from tests.conftest import failure_text
from tests.support.faults import FaultyLake, tiny
from tests.support.lakes import path_of

ELSEWHERE = "lake in /elsewhere/catalog.db"
DAY = "2024-01-01"


@pytest.fixture
def lake(settings: Settings) -> Iterator[FaultyLake]:
    """With a table that another catalog has."""
    settings.home.mkdir(exist_ok=True)
    with dg.DagsterInstance.ephemeral() as instance:
        lake = FaultyLake(settings, instance)
        assert lake.run(tiny(), DAY).success
        table = lake.table(tiny())
        write_mark(table, replace(OwnerMark.of(table), catalog=ELSEWHERE))
        yield lake


def warnings(lake: FaultyLake, run: dg.ExecuteInProcessResult) -> list[tuple[int, str]]:
    """The warnings of a run about owners, each with its place among the events."""
    logs = lake.instance.all_logs(run.run_id)
    return [(n, log.user_message) for n, log in enumerate(logs) if "belongs to another catalog" in log.user_message]


def execute(lake: FaultyLake, job: dg.JobDefinition, config: dict[str, Any]) -> dg.ExecuteInProcessResult:
    resources = {"lakehouse": Lakehouse(lake.settings)}
    return job.execute_in_process(run_config=config, resources=resources, instance=lake.instance, raise_on_error=False)


def take_over(lake: FaultyLake, table: str = "demo.numbers") -> dg.ExecuteInProcessResult:
    return execute(lake, take_over_job([tiny()]), {"table": table})


def collect(lake: FaultyLake) -> dg.ExecuteInProcessResult:
    return execute(
        lake, maintenance_job([tiny()], EXTENSIONS), {"levels": ["collect"], "dry_run": False, "patient": False}
    )


def test_a_run_says_before_its_workers_start_that_another_catalog_has_the_table(lake: FaultyLake) -> None:
    run = lake.run(tiny(), DAY)
    assert run.success, "whether it is true, a person must know"
    ((at, text),) = warnings(lake, run)
    assert ELSEWHERE in text
    assert "demo.numbers" in text
    assert "lakehouse_take_over" in text
    started = [
        n for n, log in enumerate(lake.instance.all_logs(run.run_id)) if "partitions in 1 chunks" in log.user_message
    ]
    assert at < started[0]


def test_nothing_is_collected_until_a_person_takes_the_table_over(lake: FaultyLake) -> None:
    refused = collect(lake)
    assert not refused.success
    assert ELSEWHERE in failure_text(refused)
    taken = take_over(lake)
    assert taken.success
    (output,) = [event.step_output_data for event in taken.all_events if event.is_successful_output]
    assert output.metadata["catalog_before"].value == ELSEWHERE
    mark = read_mark(lake.table(tiny()))
    assert mark
    assert mark.catalog == output.metadata["catalog"].value
    assert mark.settled_ms > 0
    assert collect(lake).success
    assert not warnings(lake, lake.run(tiny(), DAY))


def test_only_a_table_that_is_there_can_be_taken_over(lake: FaultyLake) -> None:
    assert ("unknown table demo.other; the declared tables are demo.numbers") in failure_text(
        take_over(lake, "demo.other")
    )
    lake.table(tiny()).catalog.drop_table("demo.numbers")
    assert "not in the catalog" in failure_text(take_over(lake))


def test_a_storage_that_takes_no_mark_is_told_with_the_table(lake: FaultyLake) -> None:
    mark = path_of(mark_location(lake.table(tiny()).location()))
    mark.unlink()
    mark.mkdir()
    assert f"table demo.numbers: {mark.as_posix()!r} can't be read: " in failure_text(take_over(lake))


def test_a_storage_that_refuses_to_be_asked_fails_no_run(lake: FaultyLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """As S3 does with who may not list the bucket."""

    def refuse(_: Any) -> None:
        raise PermissionError("AWS Error ACCESS_DENIED during HeadObject operation")

    monkeypatch.setattr("lakehouse_assets.run.table_run.read_mark", refuse)
    assert lake.run(tiny(), DAY).success


def test_a_storage_that_takes_no_mark_is_told_with_what_to_do(
    lake: FaultyLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "Access Denied"}}, "PutObject")

    monkeypatch.setattr("lakehouse_assets.maintenance.collect.seen.write_mark", refuse)
    text = failure_text(take_over(lake))
    assert "table demo.numbers" in text
    assert "can't be marked as this catalog's" in text
    assert "s3:PutObject" in text


def test_a_run_that_is_staged_again_says_once_that_another_catalog_has_the_table(
    lake: FaultyLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    wider = (*tiny().columns, column("extra", "string"))
    publish, calls = TableRun._publish, []

    def moved_at_first(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise StageAgain("others changed the columns")
        return publish(*arguments)

    monkeypatch.setattr(TableRun, "_publish", moved_at_first)
    run = lake.run(tiny(columns=wider, on_schema_change="append_new_columns"), DAY)
    assert run.success
    assert len(calls) == 2
    assert len(warnings(lake, run)) == 1

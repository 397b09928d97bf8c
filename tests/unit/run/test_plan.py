"""Which run a run carries on, which chunks it has, and which of them are staged or published already.
How the chunks are driven is test_drive.py's."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import botocore.session
import dagster as dg
import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import SortOrder

from lakehouse_assets.commit import tokens
from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.drive.chunk import Chunk
from lakehouse_assets.errors import PublishRefused
from lakehouse_assets.protocol.assignment import Assignment, Window
from lakehouse_assets.run.plan import plan_chunks, publish_token, published_chunks
from lakehouse_assets.run.receipt_proofs import usable
from lakehouse_assets.run.resume import run_token
from tests.support.faults import age, from_failure
from tests.support.tables import numbers, whole
from tests.support.tiny_worker import receipt_of

KEYS = [f"2024-01-{n:02}" for n in range(1, 8)]


def assignment_of(chunk: Chunk) -> Assignment:
    window = Window(keys=chunk.keys)
    return Assignment("demo.numbers", "step", "run", chunk.ordinal, window, "base", "receipt", "1", "1")


def chunks(size: int) -> list[Chunk]:
    return plan_chunks(numbers(partitions_per_worker=size), KEYS)


@pytest.mark.parametrize(("size", "sizes"), [(None, [7]), (3, [3, 3, 1]), (7, [7]), (1, [1] * 7)])
def test_chunks_hold_all_keys_in_order(size: int | None, sizes: list[int]) -> None:
    planned = plan_chunks(numbers(partitions_per_worker=size), KEYS)
    assert [len(chunk.keys) for chunk in planned] == sizes
    assert [chunk.ordinal for chunk in planned] == list(range(len(sizes)))
    assert [key for chunk in planned for key in chunk.keys] == KEYS


def test_a_table_without_partitions_is_one_chunk() -> None:
    assert plan_chunks(whole(), ()) == [Chunk(0, ())]


def test_only_re_executions_from_failure_carry_on() -> None:
    @dg.job
    def job() -> None: ...

    with dg.instance_for_test() as instance:

        def run(tags: dict[str, str]) -> dg.DagsterRun:
            return instance.create_run_for_job(job, tags=tags)

        first = run({})
        second = run(from_failure(first.run_id))
        third = run(from_failure(second.run_id))
        afresh = run({"dagster/parent_run_id": third.run_id, "dagster/root_run_id": first.run_id})
        behind_afresh = run(from_failure(afresh.run_id))

        def token(of: dg.DagsterRun) -> str:
            return run_token("demo.t", instance, of).text

        assert [token(r) for r in (first, second, third)] == [first.run_id] * 3
        assert token(afresh) == token(behind_afresh) == afresh.run_id
        instance.delete_run(first.run_id)
        with pytest.raises(PublishRefused, match=r"table demo.t: the run .* is no longer in Dagster.* 14 days.*anew"):
            token(third)


@pytest.mark.parametrize(("days", "resumable"), [(13.9, True), (14.1, False)])
def test_a_run_is_resumed_for_two_weeks_from_the_head_of_its_chain(days: float, resumable: bool) -> None:
    @dg.job
    def job() -> None: ...

    with dg.instance_for_test() as instance:
        first = instance.create_run_for_job(job)
        age(instance, first.run_id, timedelta(days=days))
        second = instance.create_run_for_job(job, tags=from_failure(first.run_id))
        third = instance.create_run_for_job(job, tags=from_failure(second.run_id))
        if resumable:
            assert run_token("demo.t", instance, third).text == first.run_id
        else:
            with pytest.raises(PublishRefused, match=rf"run {first.run_id}.* 14 days before this one.*Materialize"):
                run_token("demo.t", instance, third)


def test_receipts_count_for_the_very_work_that_is_asked_for() -> None:
    asked = [assignment_of(chunk) for chunk in chunks(3)]
    good = [receipt_of(assignment) for assignment in asked]
    window = Window(keys=asked[0].window.keys)
    others = [
        replace(asked[0], window=replace(window, keys=("2024-01-01",))),
        replace(asked[0], window=replace(window, landing="elsewhere")),
        replace(asked[0], window=replace(window, start=datetime(2024, 1, 1, 5, tzinfo=UTC))),
        replace(asked[0], window=replace(window, dimensions={"region": ("eu",)})),
        replace(asked[0], table="demo.letters"),
        replace(asked[0], step="another"),
        replace(asked[0], token="another"),
        replace(asked[0], fork_base="another"),
        replace(asked[0], code_version="2"),
        replace(asked[0], code="2"),
        replace(asked[0], unique=("n",)),
        replace(asked[0], spark_conf={"spark.sql.session.timeZone": "Asia/Tokyo"}),
        replace(asked[0], chunk=7),
    ]
    work = {assignment.chunk: assignment.work for assignment in asked}
    assert usable([*map(receipt_of, others), *good], work) == good
    elsewhere = replace(asked[0], compute="emr", package="2", catalog={"uri": "u"}, receipt="elsewhere")
    assert elsewhere.work == asked[0].work, "where it runs decides no row"


# Parts of a run


def metadata(*published: str) -> TableMetadata:
    """Of a table on which snapshots, expired since, were published with these tokens."""
    properties: dict[str, str] = {}
    for n, token in enumerate(published, start=1):
        properties |= tokens.token_property(RunToken(token, datetime.now(UTC)), n)
    return new_table_metadata(Schema(), PartitionSpec(), SortOrder(order_id=0), "file:///nowhere", properties)


def test_all_chunks_are_published_with_the_runs_own_token() -> None:
    planned = chunks(3)
    assert publish_token("run", planned, planned) == "run"
    assert published_chunks("t", metadata("run"), "run", planned) == {0: 1, 1: 1, 2: 1}


def test_parts_add_up_and_are_no_repetition_of_each_other() -> None:
    planned = chunks(1)
    parts = [[planned[n] for n in part] for part in ((0, 1, 2, 5), (4,))]
    names = [publish_token("run", planned, part) for part in parts]
    assert len({*names, "run"}) == 3
    assert published_chunks("t", metadata(*names), "run", planned) == {0: 1, 1: 1, 2: 1, 5: 1, 4: 2}


def test_a_part_of_many_pieces_has_a_name_that_glue_takes() -> None:
    run = str(uuid.uuid4())
    planned = [Chunk(n, (str(n),)) for n in range(1000)]
    name = publish_token(run, planned, planned[::2])
    model = botocore.session.get_session().get_service_model("glue")
    longest = model.shape_for("TableInput").members["Parameters"].key.metadata["max"]
    published = metadata(name)
    # PyIceberg makes parameters of a table's properties.
    assert all(len(key) <= longest for key in published.properties)
    assert published_chunks("t", published, run, planned) == dict.fromkeys(range(0, 1000, 2), 1)


def test_parts_of_another_plan_or_run_do_not_count() -> None:
    name = publish_token("run", chunks(1), chunks(1)[:2])
    assert published_chunks("t", metadata(name), "run", chunks(3)) == {}
    assert published_chunks("t", metadata(name), "ru", chunks(1)) == {}
    assert published_chunks("t", metadata("run-2"), "run", chunks(1)) == {}

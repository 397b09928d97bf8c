"""Which run a run resumes, for how long it may, and when it is refused.
What a resumed run need not do again is in test_plan.py and test_journal.py."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehouse_assets.commit.tokens import KEEP, NEWEST
from lakehouse_assets.declare.modes import Append
from lakehouse_assets.errors import PublishRefused
from lakehouse_assets.run.in_flight import FIRST, LAST, PARTITION, keys_of_run
from lakehouse_assets.run.plan import Plans, plan_chunks, publish_token
from lakehouse_assets.run.resume import refuse_repeated_append, run_token
from lakehouse_assets.run.run_tags import APPEND_AGAIN as TAG
from tests.support.faults import age, from_failure
from tests.support.tables import numbers, published_by, run_plan

NO_PLANS = Plans("demo.numbers", PyArrowFileIO(), "/nowhere")


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
        after_afresh = run(from_failure(afresh.run_id))

        def token(of: dg.DagsterRun) -> str:
            return run_token("demo.t", instance, of).text

        assert [token(r) for r in (first, second, third)] == [first.run_id] * 3
        assert token(afresh) == token(after_afresh) == afresh.run_id
        instance.delete_run(first.run_id)
        with pytest.raises(PublishRefused, match=r"table demo.t: the run .* is no longer in Dagster.* 14 days.*again"):
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


def all_of(run: dg.DagsterRun, **tags: str) -> dict[str, str]:
    """The tags of its re-execution as a whole."""
    return {"dagster/parent_run_id": run.run_id, "dagster/root_run_id": run.run_id, **tags}


def test_rows_that_any_repeated_run_has_added_are_added_again_only_by_who_names_that_run() -> None:
    @dg.job
    def job() -> None: ...

    with dg.instance_for_test() as instance:

        def run(tags: dict[str, str]) -> dg.DagsterRun:
            return instance.create_run_for_job(job, tags=tags)

        def check(of: dg.DagsterRun, *published: str) -> None:
            table = numbers(write_mode=Append(), unique=[])
            refuse_repeated_append(table, published_by(*published), NO_PLANS, instance, of)

        first = run({})
        again = run(all_of(first))
        check(first, first.run_id)
        check(run(from_failure(first.run_id)), first.run_id)
        check(again)
        for of in (again, run(all_of(again)), run(from_failure(again.run_id)), run(all_of(again, **{TAG: "true"}))):
            with pytest.raises(PublishRefused, match=f"{first.run_id}.* {TAG}: {first.run_id}"):
                check(of, first.run_id)
        with pytest.raises(PublishRefused, match=first.run_id):
            check(again, f"{first.run_id}.abc.def:0-1")  # a part of it
        allowed = run(all_of(first, **{TAG: first.run_id}))
        check(allowed, first.run_id)
        check(run(from_failure(allowed.run_id)), first.run_id, allowed.run_id)
        inherited = run(all_of(allowed, **{TAG: first.run_id}))
        with pytest.raises(PublishRefused, match=allowed.run_id):
            check(inherited, first.run_id, allowed.run_id)


def test_rows_that_another_repetition_of_the_same_run_has_added_are_not_added_again() -> None:
    @dg.job
    def job() -> None: ...

    table = numbers(write_mode=Append(), unique=[])
    with dg.instance_for_test() as instance:

        def run(day: int, tags: dict[str, str]) -> dg.DagsterRun:
            return instance.create_run_for_job(job, tags={PARTITION: f"2024-01-0{day}", **tags})

        def check(of: dg.DagsterRun, *published: str) -> None:
            refuse_repeated_append(table, published_by(*published), NO_PLANS, instance, of)

        first = run(1, {})
        done = run(1, all_of(run(1, all_of(first))))
        for again in (run(1, all_of(first)), run(1, from_failure(first.run_id)), run(1, all_of(run(1, all_of(first))))):
            with pytest.raises(PublishRefused, match=f"repeats the work of the run {done.run_id}.* {TAG}: "):
                check(again, "of nobody", done.run_id)
        check(run(2, all_of(first)), done.run_id)
        check(run(1, {}), done.run_id)
        check(run(1, from_failure(done.run_id)), done.run_id)
        allowed = run(1, all_of(first, **{TAG: done.run_id}))
        check(allowed, done.run_id)

        of_backfill = run(1, {"dagster/backfill": "b1"})
        b2, b3 = ({"dagster/backfill": name, "dagster/parent_backfill_id": "b1"} for name in ("b2", "b3"))
        done = run(1, b2)
        for again in (run(1, b3), run(1, all_of(of_backfill))):
            with pytest.raises(PublishRefused, match=f"repeats the work of the run {done.run_id}"):
                check(again, done.run_id)
        check(run(2, b3), done.run_id)
        check(run(2, all_of(of_backfill)), done.run_id)


def test_rows_that_the_table_may_have_forgotten_are_added_again_only_by_who_says_so() -> None:
    @dg.job
    def job() -> None: ...

    table, others = numbers(write_mode=Append(), unique=[]), [f"other-{n}" for n in range(NEWEST)]
    with dg.instance_for_test() as instance:
        first = instance.create_run_for_job(job)
        again = instance.create_run_for_job(job, tags=all_of(first))
        allowed = instance.create_run_for_job(job, tags=all_of(first, **{TAG: first.run_id}))
        refuse_repeated_append(table, published_by(*others), NO_PLANS, instance, again)
        age(instance, first.run_id, KEEP + timedelta(days=1))
        refuse_repeated_append(table, published_by(*others[1:]), NO_PLANS, instance, again)
        with pytest.raises(PublishRefused, match=rf"may have added its rows.*{TAG}: {first.run_id}"):
            refuse_repeated_append(table, published_by(*others), NO_PLANS, instance, again)
        refuse_repeated_append(table, published_by(*others), NO_PLANS, instance, allowed)
        instance.delete_run(first.run_id)
        with pytest.raises(PublishRefused, match="may have added its rows"):
            refuse_repeated_append(table, published_by(*others), NO_PLANS, instance, again)


def test_rows_that_a_backfill_has_added_are_not_added_again_by_its_re_execution(tmp_path: Path) -> None:
    @dg.job
    def job() -> None: ...

    days = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-10")
    table = numbers(write_mode=Append(), unique=[], partitions=days, partitions_per_worker=1, publish_others=True)
    plans = Plans("demo.numbers", PyArrowFileIO(), str(tmp_path))
    with dg.instance_for_test() as instance:

        def run(backfill: str, first: int, last: int, **tags: str) -> dg.DagsterRun:
            """Of the backfill's that partitions of these days in January are asked of."""
            span = {FIRST: f"2024-01-0{first}", LAST: f"2024-01-0{last}"}
            return instance.create_run_for_job(job, tags={"dagster/backfill": backfill, **span, **tags})

        def check(of: dg.DagsterRun, *published: str) -> None:
            refuse_repeated_append(table, published_by(*published or [first.run_id]), plans, instance, of)

        def backfill(name: str, **tags: str) -> PartitionBackfill:
            return PartitionBackfill(name, BulkActionStatus.FAILED, False, tags, 0.0)

        first = run("b1", 1, 3)
        b2, b3 = ({"dagster/parent_backfill_id": parent} for parent in ("b1", "b2"))
        instance.add_backfill(backfill("b2", **b2))
        check(run("b1", 2, 5))
        check(run("b2", 4, 5, **b2))
        check(run("b3", 4, 5, **b3))
        check(run("b4", 1, 3))
        refused = run("b2", 3, 5, **b2)
        # Dagster takes the backfill's tags from who re-executes one of its runs after its end.
        whole = instance.create_run_for_job(job, tags=all_of(refused) | {k: refused.tags[k] for k in (FIRST, LAST)})
        for again in (refused, run("b3", 1, 1, **b3), whole):
            with pytest.raises(PublishRefused, match=f"repeats the work of the run {first.run_id}.*from failure"):
                check(again)
        check(run("b2", 3, 5, **b2, **{TAG: first.run_id}))

        plan = run_plan(first.run_id, plan_chunks(table, [f"2024-01-0{day}" for day in (1, 2, 3)]))
        plans.write(plan)
        part = publish_token(plan, plan.chunks[:2])
        check(run("b2", 3, 3, **b2), part)
        with pytest.raises(PublishRefused, match="repeats the work of the run"):
            check(run("b2", 2, 3, **b2), part)


def test_ranges_of_dynamic_partitions_are_told_apart() -> None:
    @dg.job
    def job() -> None: ...

    names = dg.DynamicPartitionsDefinition(name="names")
    table = numbers(write_mode=Append(), unique=[], partitions=names)
    with dg.instance_for_test() as instance:
        instance.add_dynamic_partitions("names", ["a", "b", "c"])
        run = instance.create_run_for_job(job, tags={FIRST: "b", LAST: "c"})
        assert keys_of_run(run, table, instance) == {"b", "c"}

"""What was published after it was read is requested until it is read: tick by tick, with real runs, and as arithmetic.
The ticks of a real daemon are in integration/test_automation.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Event, Thread

import dagster as dg
import pytest
from dagster._core.storage.event_log.base import AssetEventSummaryRecord
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_assets.run.updated import PublishedSinceRead, Reading, behind_upstream, when_updated
from tests.support.faults import from_failure, span

UP, OTHER, DOWN = (dg.AssetKey(["demo", name]) for name in ("up", "other", "down"))
DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-03-01")
FIRST, SECOND, THIRD = DAYS.get_partition_keys()[:3]
NOON = datetime(2030, 1, 1, 12, 0, 10, tzinfo=UTC)


@dataclass
class Location:
    """A code location with its instance and its ticks, half a minute apart. while_down_runs: what happens meanwhile."""

    instance: dg.DagsterInstance
    condition: dg.AutomationCondition = field(default_factory=lambda: when_updated(UP))
    while_down_runs: Callable[[], object] = lambda: None
    while_up_runs: Callable[[], object] = lambda: None
    cursor: object = None
    now: datetime = NOON

    def definitions(self) -> dg.Definitions:
        single = {"partitions_def": DAYS, "backfill_policy": dg.BackfillPolicy.single_run()}

        @dg.asset(key=OTHER)
        def other() -> None: ...

        @dg.asset(key=UP, **single)
        def up() -> None:
            self.while_up_runs()

        @dg.asset(key=DOWN, deps=[UP, OTHER], automation_condition=self.condition, **single)
        def down() -> None:
            self.while_down_runs()

        return dg.Definitions([other, up, down])

    def tick(self) -> set[str]:
        """The partitions of ``down`` that are asked for."""
        result = dg.evaluate_automation_conditions(
            self.definitions(), self.instance, cursor=self.cursor, evaluation_time=self.now
        )
        self.cursor, self.now = result.cursor, self.now + timedelta(seconds=30)
        return set(result.get_requested_partitions(DOWN))

    def publish(self, key: dg.AssetKey, *days: str) -> None:
        for day in days or (None,):
            self.instance.report_runless_asset_event(dg.AssetMaterialization(key, partition=day))

    def publish_and_look(self, day: str) -> None:
        """Nothing is asked for while a run works."""
        self.publish(UP, day)
        assert self.tick() == set()

    def run(self, *keys: dg.AssetKey, days: Sequence[str], **tags: str) -> str:
        """A run of a range, started by whomever; returns its id."""
        job = self.definitions().resolve_implicit_global_asset_job_def()
        done = job.execute_in_process(
            instance=self.instance, asset_selection=list(keys), tags=span(days) | tags, raise_on_error=False
        )
        return done.run_id

    def run_that_fails(self) -> str:
        self.while_down_runs = lambda: 1 / 0
        run = self.run(DOWN, days=[FIRST])
        self.while_down_runs = lambda: None
        return run


@pytest.fixture
def empty() -> Iterator[Location]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Location(instance)


@pytest.fixture
def loaded(empty: Location) -> Location:
    """Three days that are up to date."""
    empty.publish(OTHER)
    empty.run(UP, days=[FIRST, THIRD])
    empty.run(DOWN, days=[FIRST, THIRD])
    assert empty.tick() == set()
    return empty


def test_an_update_between_the_request_and_the_next_tick_is_acted_on(loaded: Location) -> None:
    loaded.publish(UP, FIRST)
    assert loaded.tick() == {FIRST}
    loaded.while_down_runs = lambda: loaded.publish(UP, FIRST)
    loaded.run(DOWN, days=[FIRST])
    assert loaded.tick() == {FIRST}


def test_an_update_while_the_run_works_is_acted_on_once_when_it_ended(loaded: Location) -> None:
    loaded.publish(UP, FIRST)
    assert loaded.tick() == {FIRST}

    loaded.while_down_runs = lambda: loaded.publish_and_look(FIRST)
    loaded.run(DOWN, days=[FIRST])
    assert loaded.tick() == {FIRST}
    loaded.while_down_runs = lambda: None
    loaded.run(DOWN, days=[FIRST])
    assert [loaded.tick() for _ in range(3)] == [set()] * 3


def test_a_run_of_a_persons_own_that_read_before_the_update_is_not_taken_for_its_answer(loaded: Location) -> None:
    loaded.while_down_runs = lambda: loaded.publish_and_look(SECOND)
    loaded.run(DOWN, days=[FIRST, THIRD])
    assert loaded.tick() == {SECOND}
    loaded.while_down_runs = lambda: None
    loaded.run(DOWN, days=[SECOND])
    assert loaded.tick() == set()


def test_what_one_run_published_and_read_is_up_to_date(loaded: Location) -> None:
    loaded.run(UP, DOWN, days=[FIRST, THIRD])
    assert loaded.tick() == set()


def test_a_resumed_run_read_when_the_first_of_its_chain_did(loaded: Location) -> None:
    failed = loaded.run_that_fails()
    loaded.publish(UP, FIRST)
    loaded.run(DOWN, days=[FIRST], **from_failure(failed))
    assert loaded.tick() == {FIRST}
    again = from_failure(failed) | {"dagster/is_resume_retry": "false"}
    loaded.run(DOWN, days=[FIRST], **again)  # re-execute all
    assert loaded.tick() == set()


def test_what_a_failed_run_was_asked_for_is_asked_for_again_on_the_hour_until_somebody_mends_it(
    loaded: Location,
) -> None:
    loaded.publish(UP, FIRST)
    assert loaded.tick() == {FIRST}
    for _ in range(2):
        loaded.run_that_fails()
        assert [loaded.tick() for _ in range(5)] == [set()] * 5
        loaded.now = loaded.now.replace(minute=0, second=10) + timedelta(hours=1)
        assert loaded.tick() == {FIRST}
    loaded.run(DOWN, days=[FIRST])
    loaded.now += timedelta(hours=1)
    assert loaded.tick() == set()


def test_a_run_that_ends_while_a_tick_looks_is_not_asked_for_again(
    loaded: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded.publish(UP, FIRST)
    assert loaded.tick() == {FIRST}
    began, may_end = Event(), Event()
    loaded.while_down_runs = lambda: (began.set(), may_end.wait(20))
    run = Thread(target=loaded.run, args=[DOWN], kwargs={"days": [FIRST]})
    run.start()
    assert began.wait(20)
    evaluate = PublishedSinceRead.evaluate

    def meanwhile(self: PublishedSinceRead, context: object) -> object:
        found = evaluate(self, context)
        may_end.set()
        run.join(20)
        return found

    monkeypatch.setattr(PublishedSinceRead, "evaluate", meanwhile)
    loaded.now += timedelta(hours=1)
    assert loaded.tick() == set()
    assert not run.is_alive()


def test_a_failed_run_whose_upstream_is_published_again_is_asked_for_at_once(loaded: Location) -> None:
    loaded.publish(UP, FIRST)
    assert loaded.tick() == {FIRST}
    loaded.run_that_fails()
    assert loaded.tick() == set()
    loaded.publish(UP, FIRST)
    assert loaded.tick() == {FIRST}
    assert loaded.tick() == set()


def test_a_terminated_run_is_left_alone_for_the_hour(loaded: Location) -> None:
    loaded.publish(UP, FIRST)
    assert loaded.tick() == {FIRST}
    job = loaded.definitions().resolve_implicit_global_asset_job_def()
    run = loaded.instance.create_run_for_job(job, asset_selection={DOWN}, tags=span([FIRST]))
    assert loaded.tick() == set()
    loaded.instance.report_run_canceled(run)
    assert [loaded.tick() for _ in range(5)] == [set()] * 5
    loaded.now += timedelta(hours=1)
    assert loaded.tick() == {FIRST}


def test_what_happens_while_a_dependency_is_missing_or_running_is_acted_on_behind_it(empty: Location) -> None:
    assert empty.tick() == set()
    empty.publish(UP, FIRST)
    assert [empty.tick() for _ in range(2)] == [set()] * 2
    empty.publish(OTHER)
    assert empty.tick() == {FIRST}
    empty.run(DOWN, days=[FIRST])

    empty.publish(UP, FIRST)

    def look_and_fail() -> None:
        assert [empty.tick() for _ in range(2)] == [set()] * 2
        looked.append(True)
        raise ValueError

    looked: list[bool] = []
    empty.while_up_runs = look_and_fail
    empty.run(UP, days=[FIRST, SECOND])
    assert looked
    assert empty.tick() == {FIRST}


def test_history_is_not_asked_for_because_it_is_missing_nor_by_another_dependency(empty: Location) -> None:
    empty.publish(OTHER)
    empty.publish(UP, FIRST, SECOND)
    assert empty.tick() == set()
    empty.publish(OTHER)
    assert empty.tick() == set()
    empty.publish(UP, SECOND)
    assert empty.tick() == {SECOND}


@pytest.mark.parametrize("cursor", ["kept", "lost"])
def test_a_deployment_that_changes_the_condition_loses_nothing(loaded: Location, cursor: str) -> None:
    loaded.condition = dg.AutomationCondition.eager()
    loaded.tick()
    loaded.publish(UP, FIRST)
    loaded.tick()  # of the past for eager(): not asked for
    loaded.publish(UP, SECOND)
    loaded.condition = when_updated(UP)
    loaded.cursor = loaded.cursor if cursor == "kept" else None
    assert loaded.tick() == {FIRST, SECOND}
    loaded.run_that_fails()
    loaded.condition = when_updated(UP, OTHER) & ~dg.AutomationCondition.missing()
    loaded.now += timedelta(hours=1)
    assert loaded.tick() == {FIRST, SECOND}


def test_a_deployment_forgets_no_update_of_what_was_never_made(empty: Location) -> None:
    empty.publish(UP, FIRST)
    assert empty.tick() == set()
    empty.publish(UP, SECOND)
    assert empty.tick() == set()  # the other one is missing
    empty.condition = ~dg.AutomationCondition.in_progress() & when_updated(UP, OTHER).with_label(None)
    assert empty.tick() == set()
    empty.condition = when_updated(UP)
    empty.publish(OTHER)
    assert empty.tick() == {SECOND}


@pytest.mark.parametrize("first", ["2026-08-31", "2026-09-07"], ids=["whole months", "weeks that begin in a month"])
def test_a_month_waits_for_its_last_week(first: str) -> None:
    weeks = dg.WeeklyPartitionsDefinition(first, day_offset=1)

    @dg.asset(key=UP, partitions_def=weeks)
    def up() -> None: ...

    months = dg.MonthlyPartitionsDefinition("2026-09-01")

    @dg.asset(key=DOWN, deps=[UP], partitions_def=months, automation_condition=when_updated(UP))
    def down() -> None: ...

    defs, cursor = dg.Definitions([up, down]), None
    with dg.DagsterInstance.ephemeral() as instance:

        def asked_for(month: int, day: int, *published: str) -> set[str]:
            nonlocal cursor
            for week in published:
                instance.report_runless_asset_event(dg.AssetMaterialization(UP, partition=week))
            now = datetime(2026, month, day, 0, 0, 30, tzinfo=UTC)
            result = dg.evaluate_automation_conditions(defs, instance, cursor=cursor, evaluation_time=now)
            cursor = result.cursor
            return set(result.get_requested_partitions(DOWN))

        assert asked_for(9, 8) == set()
        all_weeks = weeks.get_partition_keys(datetime(2026, 10, 26, tzinfo=UTC))
        assert asked_for(10, 26, *all_weeks) == {"2026-09-01"}
        instance.report_runless_asset_event(dg.AssetMaterialization(DOWN, partition="2026-09-01"))
        assert asked_for(11, 1) == set(), "the week from 26 October is not over"
        assert asked_for(11, 2) == set(), "it is, and not published"
        assert asked_for(11, 4, "2026-10-26") == {"2026-10-01"}


KEYS = "abcd"


@given(
    published=st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from("rst")), max_size=8),
    read=st.dictionaries(st.sampled_from(KEYS), st.tuples(st.integers(0, 9), st.sets(st.sampled_from("rst")))),
    never=st.integers(0, 9),
)
def test_what_is_looked_up_together_is_what_each_alone_would_be(published, read, never) -> None:
    """Each key is made of the two upstream keys beside it; events have odd ids, readings even ones."""
    events = [
        AssetEventSummaryRecord(storage_id=2 * n + 1, run_id=run, asset_key=UP, partition=key, timestamp=0.0)
        for n, (key, run) in enumerate(published)
    ]
    readings = {key: Reading(2 * after, frozenset(runs)) for key, (after, runs) in read.items()}

    def downstream(keys) -> list[str]:
        return [key for key in KEYS if any(abs(ord(key) - ord(up)) <= 1 for up in keys)]

    expected = {
        key
        for key in KEYS
        for event in events
        if key in downstream([event.partition])
        and event.storage_id > readings.get(key, Reading(2 * never)).after
        and event.run_id not in readings.get(key, Reading(2 * never)).runs
    }
    assert behind_upstream(events, readings, Reading(2 * never), downstream) == expected

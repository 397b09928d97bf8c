"""Assignments: the same on both sides of the process border, and which of their fields decide the rows."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from lakehouse_assets.environment.machine import LIBRARY, VERSION
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.step.window import Window
from lakehouse_assets.wire.work import CAUSE, Assignment, Cause, HookWork, MergeWork
from lakehouse_assets.worker.perform import perform

WINDOW = Window(
    keys=("2024-01-01|b",),
    start=datetime(2024, 1, 1, tzinfo=UTC),
    end=datetime(2024, 1, 2, tzinfo=UTC),
    dimensions={"letter": ("b",)},
    landing="s3://landing/demo",
)
ASSIGNMENT = Assignment(
    table="demo.t",
    step="steps:t",
    token="token",
    chunk=3,
    window=WINDOW,
    fork_base="base",
    receipt="receipt",
    code_version="1",
    code="2",
    base_snapshot_id=2**62,
    unique=("id",),
    catalog={"type": "sql"},
    spark_conf={"spark.x": "1"},
)


def test_an_assignment_is_the_same_on_the_other_side() -> None:
    payload = json.loads(json.dumps(ASSIGNMENT.to_fields()))
    assert payload["kind"] == "stage"
    assert Assignment.from_json(payload) == ASSIGNMENT


def test_a_window_in_a_time_zone_is_the_same_work_on_the_other_side() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    zoned = replace(WINDOW, start=datetime(2024, 3, 31, tzinfo=berlin), end=datetime(2024, 4, 1, tzinfo=berlin))
    assignment = replace(ASSIGNMENT, window=zoned, merge=MergeWork(("id",), order_by="at"))
    other = Assignment.from_json(json.loads(json.dumps(assignment.to_fields())))
    assert other == assignment
    assert other.work == assignment.work
    assert other.window.start_date == date(2024, 3, 31)
    assert pickle.loads(pickle.dumps(other.window)) == zoned  # as Spark does with what a function of Python uses


@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("Africa/Monrovia", date(1971, 6, 1)),  # -00:44:30
        ("Europe/Amsterdam", date(1936, 12, 31)),  # +00:19:32
        ("Europe/Paris", date(1910, 1, 1)),  # +00:09:21
        ("America/New_York", date(1883, 1, 1)),  # -04:56:02
    ],
)
def test_a_window_whose_offset_has_seconds_is_the_same_work_on_the_other_side(zone: str, day: date) -> None:
    start = datetime.combine(day, time(), ZoneInfo(zone))
    assignment = replace(ASSIGNMENT, window=replace(WINDOW, start=start, end=start + timedelta(days=1)))
    other = Assignment.from_json(json.loads(json.dumps(assignment.to_fields())))
    assert (other.window.start, other.window.start_date) == (start, day)
    assert other.work == assignment.work
    for offset in ("Z", "+02:00"):  # of an older version's plan
        fields = assignment.to_fields()
        fields["window"]["start"] = f"2024-01-01T00:00:00{offset}"
        assert Assignment.from_json(fields).window.start == datetime.fromisoformat(f"2024-01-01T00:00:00{offset}")


@pytest.mark.parametrize("library", ["0.1.9", None])
def test_work_of_another_version_of_the_library_is_refused_by_name(library: str | None) -> None:
    payload = {**ASSIGNMENT.to_fields(), LIBRARY: library}
    with pytest.raises(
        ValueError, match=rf"the run has lakehouse-assets {library}, but its worker has {re.escape(VERSION)}"
    ):
        Assignment.from_json(payload)
    told = perform(payload, start_session=pytest.fail, settings=read_settings)["error"]
    assert f"its worker has {VERSION}" in told["message"]
    assert told[CAUSE] == Cause.WORKER, "not the step's fault"


def test_a_field_that_this_code_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="uniq"):
        Assignment.from_json(ASSIGNMENT.to_fields() | {"uniq": ["id"]})


def test_what_a_hook_tells_is_the_same_in_the_run_and_in_its_worker() -> None:
    work = HookWork("shop.hooks:Greeted", {10: (1, 2), 9: "nine"})
    assignment = replace(ASSIGNMENT, extensions={"greeting": work})
    assert Assignment.from_json(assignment.to_json()).work == assignment.work
    assert replace(assignment, extensions={"greeting": replace(work, hook="shop.hooks:Other")}).work != assignment.work
    with pytest.raises(TypeError, match="set is not JSON"):
        HookWork("shop.hooks:Greeted", {1})


@pytest.mark.parametrize("version", [{"version": 1}, {"version": None}])
def test_an_assignment_of_another_version_is_refused(version: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="this code reads version 2: deploy the code location and the workers"):
        Assignment.from_json(ASSIGNMENT.to_fields() | version)


@pytest.mark.parametrize(
    "difference",
    [
        {"base_snapshot_id": None},
        {"fork_base": "other"},
        {"code": "3"},
        {"spark_conf": {}},
        {"unique": ()},
        {"window": replace(WINDOW, landing="s3://landing/other")},
    ],
)
def test_what_decides_the_rows_is_other_work(difference: dict[str, Any]) -> None:
    assert replace(ASSIGNMENT, **difference).work != ASSIGNMENT.work


def test_where_a_worker_runs_is_the_same_work() -> None:
    assert replace(ASSIGNMENT, compute="emr", catalog={}, receipt="elsewhere").work == ASSIGNMENT.work

"""Assignments: the same on both sides of the process border, and which of their fields decide the rows."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from lakehouse_assets.protocol.assignment import Assignment
from lakehouse_assets.step.window import Window

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
    payload = json.loads(json.dumps(ASSIGNMENT.to_json()))
    assert payload["kind"] == "stage"
    assert Assignment.from_json(payload) == ASSIGNMENT


@pytest.mark.parametrize("version", [{"version": 2}, {"version": None}])
def test_an_assignment_of_another_version_is_refused(version: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="this code reads version 1: deploy the code location and the workers"):
        Assignment.from_json(ASSIGNMENT.to_json() | version)


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

"""Assignments and receipts of rewrites survive JSON, and identify the work they stand for.
How a worker acts on them is in test_fork_rewrites.py."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lakehouse_assets.wire.receipts import Receipt
from lakehouse_assets.wire.work import Digest, RewriteAssignment, Rewritten

ASSIGNMENT = RewriteAssignment(
    "demo.numbers", "token", 1, "base", "receipt", False, ("n", "text"), spark_conf={"spark.a": "1"}
)
RECEIPT = Receipt(
    table="demo.numbers",
    token="token",
    chunk=1,
    work=ASSIGNMENT.work,
    fork_base="base",
    metadata_location="after",
    created_at="2024-01-01T00:00:00+00:00",
    worker="host",
    rewritten=Rewritten({"a.parquet": Digest(1, 2, -3, -4)}, {}),
)


def test_an_assignment_survives_json() -> None:
    payload = json.loads(json.dumps(ASSIGNMENT.to_fields()))
    assert payload["kind"] == "rewrite"
    assert RewriteAssignment.from_json(payload) == ASSIGNMENT


def test_a_receipt_survives_json() -> None:
    assert Receipt.from_json(RECEIPT.to_json()) == RECEIPT


@pytest.mark.parametrize("kind", [ASSIGNMENT.to_fields(), RECEIPT.to_fields()])
def test_another_version_is_refused(kind: dict) -> None:
    with pytest.raises(ValueError, match="version 99"):
        (RewriteAssignment if "kind" in kind else Receipt).from_json({**kind, "version": 99})


def test_the_work_is_what_is_rewritten_and_how() -> None:
    others = [
        replace(ASSIGNMENT, fork_base="other"),
        replace(ASSIGNMENT, sorts=True),
        replace(ASSIGNMENT, zorder=("n",)),
        replace(ASSIGNMENT, token="other"),
        replace(ASSIGNMENT, spark_conf={}),
    ]
    assert len({ASSIGNMENT.work, *(other.work for other in others)}) == len(others) + 1
    assert replace(ASSIGNMENT, compute="ecs", catalog={"uri": "x"}, receipt="y").work == ASSIGNMENT.work

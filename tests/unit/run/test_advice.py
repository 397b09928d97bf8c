"""What a failed run tells a person to do: it follows the cause; and what a resumed run stages again, with the reason.
That it is done so: integration/test_faults.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lakehouse_assets.cli.pipeline import Pipeline, failure_reason
from lakehouse_assets.commit.audit import OWN_COMMITS, AuditFinding
from lakehouse_assets.declare.modes import Append
from lakehouse_assets.drive.chunks import Chunk, WorkerFailure
from lakehouse_assets.run.report import advice_after, audit_failure
from lakehouse_assets.wire.work import Cause
from tests.conftest import failure_text
from tests.support.faults import FaultyLake, Signs, from_failure, staged_again, tiny
from tests.support.projects import make_project
from tests.support.tables import numbers

FIRST, LAST = "2024-01-01", "2024-01-03"


def after(*causes: Cause, added: bool = False) -> str:
    return advice_after([WorkerFailure(Chunk(0, ()), "x", cause=cause) for cause in causes], added=added)


def test_input_that_is_corrected_is_read_anew_by_all_chunks() -> None:
    assert "re-execute all" in after(Cause.WORKER, Cause.STEP, Cause.INPUT)


def test_a_lost_worker_is_no_reason_to_stage_all_anew() -> None:
    assert after(Cause.WORKER) == "re-execute from failure to redo only what is missing"


def test_a_step_that_raised_may_itself_be_wrong_or_what_it_reads() -> None:
    found = after(Cause.WORKER, Cause.STEP)
    assert "step or the declaration, re-execute from failure" in found
    assert "input, re-execute all" in found


@pytest.mark.parametrize("cause", Cause)
def test_rows_that_others_have_added_are_not_added_again(cause: Cause) -> None:
    assert "re-execute from failure: re-executing all would add" in after(cause, added=True)


def test_a_red_audit_advises_what_the_docs_do() -> None:
    said = audit_failure(numbers(), [FIRST], [AuditFinding("unique", "n is not unique", {})]).description or ""
    assert "change the step, re-execute from failure; if you change its input, re-execute all" in said
    finding = AuditFinding(OWN_COMMITS, "roll back, then materialize again in a new run", {})
    own = audit_failure(numbers(), [FIRST], [finding])
    assert "re-execute" not in (own.description or ""), "that finding says itself what to do"


def test_a_resumed_run_says_what_is_staged_again_and_why(lake: FaultyLake) -> None:
    signs = Signs(lake)
    signs.fail(LAST)
    first = lake.run(tiny(), FIRST, LAST)
    assert not first.success
    assert "change the step or the declaration, re-execute from failure" in failure_text(first)
    signs.fail()
    resumed = lake.run(tiny(unique=["n", "text"]), FIRST, LAST, tags=from_failure(first.run_id))
    assert resumed.success, failure_text(resumed)
    assert staged_again(lake, resumed) == ["demo.numbers: chunks 0, 1 are staged again: their declaration changed"]


@pytest.mark.parametrize(
    ("mode", "advice"),
    [
        ({}, "begins a new run, which stages everything again"),
        (
            {"write_mode": Append(), "unique": [], "publish_others": True},
            "that this one has published: leave those out",
        ),
    ],
    ids=["overwrite", "append"],
)
def test_of_a_run_that_the_ui_can_not_re_execute_a_person_reads_what_to_do_instead(
    lake: FaultyLake, mode: dict[str, Any], advice: str
) -> None:
    Signs(lake).fail(LAST)
    said = failure_text(lake.run(tiny(**mode), FIRST, LAST))
    assert "A command launched this run" in said
    assert advice in said


@pytest.mark.long("A run of the command itself; the test before holds what is said.")
def test_of_a_run_of_make_run_a_person_reads_only_what_the_ui_can_do(
    lake: FaultyLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Signs(lake).fail(LAST)
    monkeypatch.delitem(sys.modules, "tests.support.tiny_location", raising=False)  # it has another test's settings
    monkeypatch.chdir(make_project(tmp_path / "project", "tests.support.tiny_location"))
    pipeline = Pipeline()
    (selection,) = pipeline.selections(pipeline.keys_of("demo"), lake.instance)
    with dg.instance_for_test() as instance:  # on disk, as its run loads the location by its name
        result = pipeline.execute(instance, selection)
        said = failure_reason(result)
    assert "re-execute from failure" in said
    assert "A command launched this run" not in said

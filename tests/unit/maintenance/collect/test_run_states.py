"""What Dagster knows of the runs that left files, and of those that resumed them.
What follows from it is in test_leases.py."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest
from dagster._core.storage.runs import SqlRunStorage

from lakehouse_assets.maintenance.collect.needed import chains
from tests.support.faults import from_failure


@dg.job
def job() -> None: ...


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def run(instance: dg.DagsterInstance, status: str, tags: dict[str, str] | None = None) -> str:
    return instance.create_run_for_job(job, status=dg.DagsterRunStatus[status], tags=tags or {}).run_id


@pytest.mark.parametrize(
    ("status", "unfinished", "succeeded"),
    [
        ("NOT_STARTED", True, False),
        ("STARTED", True, False),
        ("CANCELING", True, False),
        ("SUCCESS", False, True),
        ("FAILURE", False, False),
        ("CANCELED", False, False),
    ],
)
def test_a_run_by_its_status(instance: dg.DagsterInstance, status: str, unfinished: bool, succeeded: bool) -> None:
    token = run(instance, status)
    (found,) = chains(instance, [token]).values()
    assert (found.unfinished, found.succeeded) == (unfinished, succeeded)


def test_whoever_resumes_a_run_keeps_it_alive_or_finishes_it(instance: dg.DagsterInstance) -> None:
    first, second, third = (run(instance, "FAILURE") for _ in range(3))
    again = run(instance, "FAILURE", from_failure(first))
    run(instance, "STARTED", from_failure(again))
    run(instance, "SUCCESS", from_failure(second))
    afresh = run(instance, "STARTED", {"dagster/parent_run_id": third, "dagster/root_run_id": third})
    found = chains(instance, [first, second, third, afresh, "another instance's"])
    assert {token: (chain.unfinished, chain.succeeded) for token, chain in found.items()} == {
        first: (True, False),
        second: (False, True),
        third: (False, False),
        afresh: (True, False),
    }


def test_two_queries_however_many_tokens(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [run(instance, "FAILURE") for _ in range(20)]
    asked = []
    records = SqlRunStorage.get_run_records
    monkeypatch.setattr(SqlRunStorage, "get_run_records", lambda *a, **k: asked.append(1) or records(*a, **k))
    assert len(chains(instance, tokens)) == 20
    assert len(asked) == 2
    assert chains(instance, []) == {}

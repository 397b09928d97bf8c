"""What each worker of a run is given, where no launcher or step is needed to see it.
What becomes of an assignment is in tests/unit/wire/test_assignment.py and in the integration tests."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehouse_assets.commit.fork import ForkBase
from lakehouse_assets.commit.strategies import strategy_of
from lakehouse_assets.declare.table import LONGEST_WORKER
from lakehouse_assets.drive.chunks import Journal
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.run.attempts import first_attempts
from lakehouse_assets.run.plan import plan_chunks
from lakehouse_assets.run.resource import Lakehouse
from tests.support.tables import numbers, run_plan


@pytest.mark.parametrize(("declared", "expected"), [(None, LONGEST_WORKER), (timedelta(hours=1), timedelta(hours=1))])
def test_no_worker_runs_longer_than_the_collector_waits_for_it(
    settings: Settings, declared: timedelta | None, expected: timedelta
) -> None:
    table = numbers(worker_timeout=declared)
    plan = run_plan("token", plan_chunks(table, ("2024-01-01",)))
    run = SimpleNamespace(
        table=table,
        lakehouse=Lakehouse(settings),
        plan=plan,
        strategy=strategy_of(table.write_mode),
        journal=Journal(PyArrowFileIO(), "file:///staging"),
        context=SimpleNamespace(run=SimpleNamespace(run_id="run")),
    )
    base, evolution = ForkBase("file:///base.metadata.json", None), SimpleNamespace(left_out=(), undeclared=())
    (attempt,) = first_attempts(run, base, evolution, {}).values()  # type: ignore[arg-type]  of a run only this
    assert attempt.timeout == expected

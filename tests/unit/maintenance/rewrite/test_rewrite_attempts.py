"""What each worker of a rewrite is given, where no launcher is needed to see it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehouse_assets.declare.table import LONGEST_WORKER
from lakehouse_assets.drive.chunks import Journal
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.maintenance.rewrite.plan import PlannedChunk, RewritePlan
from lakehouse_assets.maintenance.rewrite.spark_rewrite import first_attempts
from lakehouse_assets.run.resource import Lakehouse
from tests.support.tables import numbers


@pytest.mark.parametrize(("declared", "expected"), [(None, LONGEST_WORKER), (timedelta(hours=1), timedelta(hours=1))])
def test_no_worker_runs_longer_than_the_collector_waits_for_it(
    settings: Settings, declared: timedelta | None, expected: timedelta
) -> None:
    table = numbers(worker_timeout=declared)
    plan = RewritePlan(False, (), (PlannedChunk("file:///base.metadata.json", ()),))
    (attempt,) = first_attempts(
        table, Lakehouse(settings), plan, "run.1", Journal(PyArrowFileIO(), "file:///staging"), "run"
    ).values()
    assert attempt.timeout == expected

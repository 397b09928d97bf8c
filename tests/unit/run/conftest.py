"""The lake of tests that really run, with workers that need no Spark.
What its workers are told to do is in tests/support/faults.py."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest

from lakehouse_assets.environment.settings import Settings
from tests.support.faults import FaultyLake


@pytest.fixture
def lake(settings: Settings) -> Iterator[FaultyLake]:
    settings.home.mkdir(exist_ok=True)
    with dg.DagsterInstance.ephemeral() as instance:
        yield FaultyLake(settings, instance)

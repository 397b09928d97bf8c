"""Tiny workers on one Dagster instance for all tests of a file, as each instance takes a second to make."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from lakehouse_assets.drive.slots import POOL
from lakehouse_assets.environment.launchers import local
from tests.support.instances import light_instance
from tests.support.tiny_drive import Workers


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "GRACE_SECONDS", 0.5)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


@pytest.fixture(scope="module")
def shared_instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    with light_instance(tmp_path_factory.mktemp("dagster")) as instance:
        yield instance


@pytest.fixture
def workers(tmp_path: Path, shared_instance: dg.DagsterInstance) -> Workers:
    shared_instance.event_log_storage.set_concurrency_slots(POOL, 4)
    return Workers(tmp_path, shared_instance)

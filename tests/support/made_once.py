"""Keeps in the tests' process what its libraries would make anew each time: models of services, compiled statements.
Nothing here changes what a test finds, only how long it takes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from threading import RLock

import pytest
from botocore.loaders import JSONFileLoader
from cachetools import LRUCache, cached
from dagster._core.storage.event_log.sqlite import consolidated_sqlite_event_log, sqlite_event_log
from dagster._core.storage.runs.sqlite import sqlite_run_storage
from dagster._core.storage.schedules.sqlite import sqlite_schedule_storage
from dagster._core.storage.sql import create_engine

DAGSTERS_SQLITE = (consolidated_sqlite_event_log, sqlite_event_log, sqlite_run_storage, sqlite_schedule_storage)


@pytest.fixture(autouse=True, scope="session")
def service_models_are_read_once() -> Iterator[None]:
    """Each session of boto3 reads its services' models anew: 0.3 s for a client, which tests make by hundreds."""
    with pytest.MonkeyPatch.context() as patch:
        load = cache(JSONFileLoader().load_file)
        patch.setattr(JSONFileLoader, "load_file", lambda self, path: load(path))
        yield


@pytest.fixture(autouse=True, scope="session")
def statements_are_compiled_once() -> Iterator[None]:
    """Dagster's SQLite storages make an engine for each connection, which compiles each statement anew: a fifth of what
    a test's run takes. The connections stay what they were, as no pool keeps them."""
    engine_of = cached(LRUCache(maxsize=64), key=lambda address, **options: address, lock=RLock())(create_engine)
    with pytest.MonkeyPatch.context() as patch:
        for module in DAGSTERS_SQLITE:
            patch.setattr(module, "create_engine", engine_of)
        yield
